"""What a worker made, told to the master in batches: a message for some clips, not one for each.

A message of its own for each clip costs the master more than all else that it does about the clip. So what the lanes
of a worker make is kept here for `WINDOW_S` at most, or until `RECORDS` records are finished, and told together; at
once when the worker has nothing else in hand, since then somebody may be waiting for it.

What comes after the report of a record in the order of effects (the ack of what it was made of, and that the record is
done) is put off with `then`, and happens when the report is durable. So nothing is lost: whoever dies, or cannot reach
the bus, with reports untold has those records delivered again, to itself or others, and making a clip twice is
harmless. What cannot be told is kept, and told by the next `flush`.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from essp_common import topics
from essp_common.bus.port import Bus
from essp_common.pb.v1.messages_pb2 import ClipRef, Made, Progress, Purpose
from essp_common.runtime.failpoints import failpoint

WINDOW_S = 0.2
"""Longest that a report is kept while its worker goes on."""
RECORDS = 16
"""Most records that are finished and not told: they are delivered again when the worker dies, and have to be among
those that the next one is warned of (`bus.port.SUSPECTS`)."""

Effect = Callable[[], object]


class _Kind(NamedTuple):
    """What can be told in one message."""

    job: str
    fence: int
    purpose: Purpose
    epoch: int
    stream: str


class _Report(NamedTuple):
    kind: _Kind
    place: int
    attempt: int
    size: int
    seconds: float


class Reports:
    """The reports of one worker. Thread-safe."""

    def __init__(self, bus: Bus, worker: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._bus = bus
        self._worker = worker
        self._clock = clock
        self._lock = threading.Lock()
        self._telling = threading.Lock()
        self._reports: list[_Report] = []
        self._effects: list[Effect] = []
        self._records = 0
        self._since_s: float | None = None
        """When the first of what is kept came."""

    def made(self, clip: ClipRef, fence: int, size: int, seconds: float, stream: str = "") -> None:
        """A clip is in the cache, or a stream of it; it takes up `size` bytes."""
        kind = _Kind(clip.job, fence, clip.purpose, clip.epoch, stream)
        with self._lock:
            self._begin()
            self._reports.append(_Report(kind, clip.index, clip.attempt, size, seconds))

    def then(self, effect: Effect) -> None:
        """Have this done once all that was reported before is durable. More than once is harmless."""
        with self._lock:
            self._begin()
            self._effects.append(effect)

    def finished(self, effect: Effect) -> None:
        """`then`, for the last effect of a record."""
        self.then(effect)
        with self._lock:
            self._records += 1

    @property
    def due(self) -> bool:
        """It is time for `flush`, though the worker has other things in hand."""
        with self._lock:
            return self._since_s is not None and (self._records >= RECORDS or self._clock() >= self._since_s + WINDOW_S)

    def flush(self) -> None:
        """Tell all, durably, and do what was to be done then. Raises `TransientError`; then the rest is kept."""
        with self._telling:
            with self._lock:
                reports, effects, records = list(self._reports), list(self._effects), self._records
                self._records, self._since_s = 0, None
            told = done = 0
            try:
                if reports:
                    self._tell(reports)
                    told = len(reports)
                    failpoint("worker.reported")
                for effect in effects:
                    effect()
                    done += 1
            finally:
                with self._lock:
                    del self._reports[:told], self._effects[:done]
                    if done < len(effects):
                        self._records += records
                        self._begin()

    def _begin(self) -> None:
        if self._since_s is None:
            self._since_s = self._clock()

    def _tell(self, reports: Sequence[_Report]) -> None:
        kinds: dict[_Kind, list[_Report]] = defaultdict(list)
        for report in reports:
            kinds[report.kind].append(report)
        for kind, alike in kinds.items():
            attempts = [report.attempt for report in alike]
            made = Made(
                purpose=kind.purpose,
                epoch=kind.epoch,
                stream=kind.stream,
                indices=[report.place for report in alike],
                attempts=attempts if any(attempts) else (),
                bytes=[report.size for report in alike],
                seconds=sum(report.seconds for report in alike),
            )
            progress = Progress(job=kind.job, worker=self._worker, fence=kind.fence, made=made)
            self._bus.publish(topics.PROGRESS, kind.job.encode(), progress.SerializeToString())
        self._bus.flush()
