"""The events of a job, in order: the newest few thousand, with ids from which a reader can resume, even after another
master has taken over. Written by the master's thread, read by any number of others.

A master keeps the events of many jobs, and as objects they take fifty times as much memory as compressed JSON. So all
but the newest few are compressed, in blocks.
"""

from __future__ import annotations

import math
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import TypeAdapter

from essp_common.job.status import JobEvent

Kind = Literal[
    "state", "phase", "report", "checkpoint", "failure", "warning", "condition", "consumer", "change", "finished"
]
_KEPT = 5000
_BLOCK = 100
"""Number of events that are compressed together."""
_EVENTS = TypeAdapter(list[JobEvent])


class EventLog:
    """The events of one job. Thread-safe."""

    def __init__(self, kept: int = _KEPT, now: Callable[[], float] = time.time) -> None:
        """`kept`: how many of the newest events are kept. `now`: seconds since 1970."""
        self._kept = kept
        self._newest: list[JobEvent] = []
        """Less than a block."""
        self._blocks: deque[bytes] = deque(maxlen=math.ceil(kept / _BLOCK))
        """The events before these, compressed."""
        self._changed = threading.Condition()
        # time-based, so that a reader of an earlier master's events continues with these
        self._last = int(now() * 1000)
        self.first = self._last + 1
        """Id of the first event, still kept or not."""

    @property
    def last(self) -> int:
        """Id of the newest event; lower than `first` if there are no events."""
        return self._last

    def add(self, kind: Kind, message: str, data: Mapping[str, Any]) -> None:
        """Append an event with the current time, and wake waiting readers."""
        with self._changed:
            self._last += 1
            event = JobEvent(id=self._last, time=datetime.now(UTC), kind=kind, message=message, data=dict(data))
            self._newest.append(event)
            if len(self._newest) == _BLOCK:
                self._blocks.append(zlib.compress(_EVENTS.dump_json(self._newest)))
                self._newest = []
            self._changed.notify_all()

    def after(self, last: int, timeout_s: float = 0.0) -> Sequence[JobEvent]:
        """Return the events after id `last`, oldest first; wait up to `timeout_s` for the first one.

        Events that are no longer kept are missing: the reader sees the gap in the ids. An id beyond the newest one is
        of an earlier master, whose clock was ahead; all events come after it.
        """
        with self._changed:
            last = last if last <= self._last else 0
            if timeout_s > 0:
                self._changed.wait_for(lambda: self._last > last, timeout_s)
            missed = min(self._last - last, self._kept)
            found, blocks = list(self._newest), list(self._blocks)
        while blocks and len(found) < missed:  # without the lock, as writers wait for it
            found = _EVENTS.validate_json(zlib.decompress(blocks.pop())) + found
        return found[-missed:] if missed else []
