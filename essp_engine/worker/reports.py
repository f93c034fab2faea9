"""Reports a worker's results to the master in batches: one message for several clips.

A message for each clip would cost the master more than everything else it does about the clip. So the clips made by a
worker's lanes are collected for at most `WINDOW_S`, or until there are `CLIPS` clips or `RECORDS` finished records, and
are reported together. A worker with no other records reports at once, because a consumer may be waiting.

Effects that must follow the report of a record (acknowledging its input, and committing the record) are deferred with
`then`, and run when the report is durable. So nothing is lost: if a worker dies or cannot reach the bus before it has
reported, its records are delivered again, and making a clip twice is harmless. Unpublished reports stay here until the
next `flush`.
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
"""Longest time that a report is kept while its worker continues."""
RECORDS = 16
"""Maximum finished records that are not reported. If the worker dies they are delivered again, and must be among those
that the next worker suspects (`bus.port.SUSPECTS`)."""
CLIPS = 256
"""Maximum clips that wait to be reported at the end of a record: larger batches do not reduce the master's cost per
clip. If a consumer finishes a clip before the master knows that it was made, that costs several times as much."""

Effect = Callable[[], object]


class _Kind(NamedTuple):
    """The common fields of one message."""

    job: str
    fence: int
    purpose: Purpose
    epoch: int
    stream: str


_Clip = tuple[_Kind, int, int]
"""The kind, the index and the attempt of a clip, or of a stream of it."""


class _Report(NamedTuple):
    kind: _Kind
    clip_index: int
    attempt: int
    size: int
    seconds: float

    @property
    def clip(self) -> _Clip:
        return self.kind, self.clip_index, self.attempt


class Reports:
    """The reports of one worker. Thread-safe."""

    def __init__(self, bus: Bus, worker: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._bus = bus
        self._worker = worker
        self._clock = clock
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._reports: dict[_Clip, _Report] = {}
        self._effects: list[Effect] = []
        self._records = 0
        self._since_s: float | None = None
        """When the first of the kept reports arrived."""

    def made(self, clip: ClipRef, fence: int, size: int, seconds: float, stream: str = "") -> None:
        """Report that a clip, or a stream of it, is in the cache; it takes `size` bytes. A clip that is reported again
        before the next `flush`, since a stage tries again what it published, counts once."""
        kind = _Kind(clip.job, fence, clip.purpose, clip.epoch, stream)
        report = _Report(kind, clip.index, clip.attempt, size, seconds)
        with self._lock:
            self._begin()
            self._reports[report.clip] = report

    def then(self, effect: Effect) -> None:
        """Run this after everything reported before is durable. The effect must be safe to repeat."""
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
        """Whether it is time to `flush` although the worker has other records."""
        with self._lock:
            if self._since_s is None:
                return False
            enough = self._records >= RECORDS or len(self._reports) >= CLIPS
            return enough or self._clock() >= self._since_s + WINDOW_S

    def flush(self) -> None:
        """Publish all reports durably, then run the deferred effects. Raises `TransientError`, and keeps what is
        left."""
        with self._flushing:
            with self._lock:
                reports, effects, records = list(self._reports.values()), list(self._effects), self._records
                self._records, self._since_s = 0, None
            published: list[_Report] = []
            done = 0
            try:
                if reports:
                    self._publish(reports)
                    published = reports
                    failpoint("worker.reported")
                # Only now: a crash before this line redelivers the records, instead of losing their reports.
                for effect in effects:
                    effect()
                    done += 1
            finally:
                with self._lock:
                    for report in published:
                        if self._reports[report.clip] is report:  # else it was reported again meanwhile
                            del self._reports[report.clip]
                    del self._effects[:done]
                    if done < len(effects):
                        self._records += records
                        self._begin()

    def _begin(self) -> None:
        if self._since_s is None:
            self._since_s = self._clock()

    def _publish(self, reports: Sequence[_Report]) -> None:
        kinds: dict[_Kind, list[_Report]] = defaultdict(list)
        for report in reports:
            kinds[report.kind].append(report)
        for kind, alike in kinds.items():
            attempts = [report.attempt for report in alike]
            made = Made(
                purpose=kind.purpose,
                epoch=kind.epoch,
                stream=kind.stream,
                indices=[report.clip_index for report in alike],
                attempts=attempts if any(attempts) else (),
                bytes=[report.size for report in alike],
                seconds=sum(report.seconds for report in alike),
            )
            progress = Progress(job=kind.job, worker=self._worker, fence=kind.fence, made=made)
            self._bus.publish(topics.PROGRESS, kind.job.encode(), progress.SerializeToString())
        self._bus.flush()
