"""The clips of a loop: from the job to batches that a feed sends to the device.

    job (master, decoders, extractors) ──▶ intake ──▶ prefetch ──next──▶ the feed

A trainer's clips take the same path through the same parts. Instead of checkpoints a loop has positions: its clips
start at any position of the job. Clips are released as soon as the feed has copied them; for a loop that rejoins at an
earlier position they are decoded again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Protocol

from essp.loops.membership import Membership
from essp.loops.running_job import RunningJob
from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import PhasePlan
from essp_common.quantities import counted
from essp_common.runtime import ids
from essp_engine.intake.fetch_processes import FetchProcesses
from essp_engine.intake.ordered import Delivery, IntakeOptions, OrderedIntake, PhaseEnd
from essp_engine.intake.wanted import in_flight
from essp_engine.loading.batch import Batch, Transform, View
from essp_engine.loading.pixel_batches import PixelBatches
from essp_engine.loading.prefetch import Prefetch, PrefetchOptions
from essp_engine.loading.settings import LoadingSettings
from essp_engine.planning.phases import Phases

log = logging.getLogger(__name__)


class Clips(Protocol):
    """The source of a feed: batches in order, from `start` on. `next` and `finish` are called by one thread; the others
    are thread-safe."""

    start: Position
    phases: Sequence[PhasePlan]

    @property
    def queued(self) -> int:
        """Number of clips that are prepared or being prepared."""

    def next(self, timeout_s: float) -> Batch | PhaseEnd | None:
        """The next batch, or the end of a phase after its last batch; None if it is not ready within `timeout_s`.

        Raises the error that stopped the job, or an error of the view.
        """

    def finish(self, items: Sequence[Delivery]) -> None:
        """Release the frames of this batch, the oldest that is in use."""

    def reached(self, position: Position) -> None:
        """Record the position of the loop."""

    def check(self) -> None:
        """Raises the error that stopped the job, or `EsspError` with the reason of its failure."""

    def log_failures(self) -> None:
        """Log new failures: clips that are missing, or replaced by others without the loop noticing."""

    def close(self) -> None:
        """Leave the job. Idempotent."""


def batches_of(phases: Phases, consumer: str) -> PixelBatches | None:
    """The batches of a consumer, if it limits them in pixels."""
    pixels = phases.spec.consumers[consumer].batch_pixels
    return None if pixels is None else PixelBatches(phases, pixels)


class JobClips:
    """The clips of a consumer of a job, prepared by threads of this process."""

    def __init__(
        self,
        job: RunningJob,
        membership: Membership,
        consumer: str,
        view: View,
        transform: Transform | None = None,
        batches: PixelBatches | None = None,
    ) -> None:
        """Takes ownership of `membership` and one use of `job`, and closes both. `view`: makes what the caller sees of
        a clip, or what `transform` is given. `batches`: if they are limited in pixels."""
        self._job = job
        self._membership = membership
        self._logged = 0
        """Number of failures that were logged."""
        with ExitStack() as stack:
            stack.callback(job.close)
            stack.callback(membership.leave)
            self.phases = job.phases
            self.start = self._position = membership.began()
            membership.follow(lambda: self._position)
            self._prefetch = stack.enter_context(closing(self._prepared(consumer, view, transform, batches)))
            self._resources = stack.pop_all()

    @property
    def queued(self) -> int:
        return self._prefetch.queued

    def next(self, timeout_s: float) -> Batch | PhaseEnd | None:
        return self._prefetch.next(timeout_s)

    def finish(self, items: Sequence[Delivery]) -> None:
        self._prefetch.finish(items)

    def reached(self, position: Position) -> None:
        self._position = position

    def check(self) -> None:
        self._job.check()
        self._membership.check()

    def log_failures(self) -> None:
        status = self._job.status()
        if status is None or status.counts.failed == self._logged:
            return
        counts = status.counts
        self._logged = counts.failed
        for failure in status.failures:
            named = ", ".join(example.video for example in failure.examples)
            made = counted(failure.count, "clip")
            log.warning("%s could not be made (%s, %s), of %s", made, failure.stage, failure.kind, named)
        if counts.skipped:
            log.warning("%s left out, since no other video could replace them", counted(counts.skipped, "clip"))

    def close(self) -> None:
        self._resources.close()

    def _prepared(
        self, consumer: str, view: View, transform: Transform | None, batches: PixelBatches | None
    ) -> Prefetch:
        job, start, settings = self._job, self.start, LoadingSettings()
        options = job.spec.consumers[consumer]
        stream = job.spec.streams[options.stream]
        at_once = settings.fetch_processes or settings.fetches
        fetches, read = in_flight(job.spec.clip, stream, job.cache_url, at_once)
        processes = settings.fetch_processes if fetches else 0
        intake = OrderedIntake(
            job.adapters.bus,
            job.adapters.cache,
            IntakeOptions(
                job=job.spec.name,
                consumer=ids.loop_consumer(consumer),
                stream=options.stream,
                feature=stream.feature,
                worker=self._membership.incarnation,
                fence=job.fence,
                since=job.since,
                run_of=partial(job.control.run_of, job.spec.name),
                fetches=fetches,
                read=read,
                prepare=view,
                elsewhere=FetchProcesses.of(processes, job.cache_url, settings.tenant, read, view),
            ),
            job.phases,
            start,
        )
        return Prefetch(
            intake,
            job.phases,
            start,
            PrefetchOptions(
                options.batch_size,
                settings.prefetch_batches,
                consumer,
                transform=transform,
                stop=None if batches is None else batches.stop,
            ),
        )
