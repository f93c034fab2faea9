"""Two ways of reading a subscription: for as long as the process runs, and once through a whole topic."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

from essp_common.bus.port import Bus, Record, Subscription
from essp_common.runtime.retry import Outage

_RECORDS = 2000
_FIRST_S = 3.0
"""How long the first message of a topic may take: a client of Kafka connects first."""
_NEXT_S = 0.5


def batches(
    subscription: Subscription, stopping: threading.Event, who: str, max_records: int, timeout_s: float
) -> Iterator[Sequence[Record]]:
    """What each poll returns (also nothing), until `stopping` is set. A bus that does not answer is polled again.

    `who` begins the line in the log that says so.
    """
    outage = Outage(who, stopping.wait)
    while not stopping.is_set():
        records: Sequence[Record] = ()
        with outage:
            records = subscription.poll(max_records, timeout_s)
        yield records


def read_all(
    bus: Bus, topic: str, first_s: float | None = None, leaving: Callable[[], bool] = lambda: False
) -> Iterator[Record]:
    """What a topic holds now, from its beginning until no record has come for half a second.

    `first_s`: how long the first record may take. Ends early once `leaving()`. Raises `Unavailable` if the bus does not
    answer.
    """
    subscription = bus.subscribe([topic], group=None)
    try:
        deadline = time.monotonic() + (_FIRST_S if first_s is None else first_s)
        while not leaving():
            left_s = deadline - time.monotonic()
            records = subscription.poll(_RECORDS, max(0.0, min(_NEXT_S, left_s)))
            yield from records
            if records:
                deadline = time.monotonic() + _NEXT_S
            elif left_s <= 0:
                return
    finally:
        subscription.close()
