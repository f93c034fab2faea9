"""Two ways of reading a subscription: for as long as the process runs, and once through a whole topic."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

from essp_common.bus.port import Bus, Record, Subscription
from essp_common.errors import Unavailable
from essp_common.runtime.retry import Outage

_RECORDS = 2000
_POLL_S = 0.5
_AFTER_S = 0.1
"""At the end, too: the broker of `essp servers` names an end that lies within its last batch."""
_SILENT_S = 5.0
"""How long a record may take that is there: a client of Kafka connects first. What does not come for so long is none
for people, such as the mark of a transaction, which takes an offset, too."""
_MORE_S = 1.0
"""For how long what comes meanwhile is read, too: on a topic with traffic there is no end of it."""


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
    bus: Bus, topic: str, leaving: Callable[[], bool] = lambda: False, whole: bool = False
) -> Iterator[Record]:
    """What a topic holds now, from its beginning; also some of what comes meanwhile.

    Ends early once `leaving()`. Raises `NotFound`, and `Unavailable` if the bus does not answer. `whole`: also if it is
    silent before the end, which otherwise counts as the end.
    """
    subscription = bus.subscribe([topic], group=None)
    try:
        last = {number: offsets[-1] for number, offsets in enumerate(bus.held(topic)) if offsets}
        deadline = time.monotonic() + _SILENT_S
        while not leaving():
            at_end = not last
            records = subscription.poll(_RECORDS, _POLL_S if last else _AFTER_S)
            yield from records
            for record in records:
                if record.offset >= last.get(record.partition, record.offset + 1):
                    del last[record.partition]
            if records and not at_end:
                deadline = time.monotonic() + (_SILENT_S if last else _MORE_S)
            elif time.monotonic() >= deadline or (at_end and not records):
                break
        if last and whole and not leaving():
            raise Unavailable(f"{topic}: the broker has sent nothing for {_SILENT_S:g} s, and not all that it holds")
    finally:
        subscription.close()
