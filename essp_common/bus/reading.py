"""Two ways of reading a subscription: continuously while the process runs, or once through a whole topic."""

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
"""Poll timeout at the end, which is polled as well: the broker of `essp servers` reports an end within its
last batch."""
_SILENT_S = 5.0
"""How long an existing record may take to arrive: a Kafka client connects first. An offset without a record in that
time is not a message, but for example the marker of a transaction."""
_MORE_S = 1.0
"""For how long records that arrive during the read are included: on a busy topic, they never end."""


def batches(
    subscription: Subscription, stopping: threading.Event, who: str, max_records: int, timeout_s: float
) -> Iterator[Sequence[Record]]:
    """Yield the result of each poll (also empty ones) until `stopping` is set. If the bus does not answer, it is polled
    again, with a log line that begins with `who`.
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
    """Yield what a topic contains now, from its beginning; may include some records that arrive in the meantime.

    Ends early once `leaving()`. Raises `NotFound`, and `Unavailable` if the bus does not answer. `whole`: raise it also
    if the bus falls silent before the end, which otherwise counts as the end.
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
