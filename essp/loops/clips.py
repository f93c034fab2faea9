"""The clips of one loop, from a job, prepared in batches: what a feed sends to the device.

    job (master, decoders, extractors) ──▶ intake ──▶ prefetch ──next──▶ the feed

It is the path of a trainer, of the same parts. In place of checkpoints the loop keeps positions: its clips start at any
position of the job, and go on from there as if nothing had been before. Clips are given back as soon as the feed has
copied them; a loop that comes again at an earlier position has them made again.
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
from essp_engine.loading.prefetch import Prefetch, PrefetchOptions
from essp_engine.loading.settings import LoadingSettings

log = logging.getLogger(__name__)


class Clips(Protocol):
    """What a feed takes: batches in order, from `start` on. `next` and `finish` are for one thread, the rest is
    thread-safe."""

    start: Position
    phases: Sequence[PhasePlan]

    @property
    def queued(self) -> int:
        """Clips prepared or being prepared."""

    def next(self, timeout_s: float) -> Batch | PhaseEnd | None:
        """The next batch, or the end of a phase after its last batch; None if it is not ready within `timeout_s`.

        Raises what stopped the job, or the error of a view.
        """

    def finish(self, items: Sequence[Delivery]) -> None:
        """The frames of this batch, the oldest of those that were given, are not needed any more."""

    def reached(self, position: Position) -> None:
        """The loop is there."""

    def check(self) -> None:
        """Raises what stopped the job, or `EsspError` with the reason for which it failed."""

    def tell_of_failures(self) -> None:
        """In the log, if there are new ones: clips are missing or stand in for others, and the loop cannot see that."""

    def close(self) -> None:
        """Leave the job. Idempotent."""


class JobClips:
    """The clips of one of the consumers of a job, as one of the threads of this process prepares them."""

    def __init__(
        self,
        job: RunningJob,
        membership: Membership,
        consumer: str,
        view: View,
        transform: Transform | None = None,
    ) -> None:
        """Takes over `membership`, and one use of `job`; closes both. `view`: what the caller sees of a clip, or what
        `transform` is given of it."""
        self._job = job
        self._membership = membership
        self._told = 0
        """Failures that are in the log."""
        with ExitStack() as stack:
            stack.callback(job.close)
            stack.callback(membership.leave)
            self.phases = job.phases
            self.start = self._position = membership.began()
            membership.follow(lambda: self._position)
            self._prefetch = stack.enter_context(closing(self._prepared(consumer, view, transform)))
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

    def tell_of_failures(self) -> None:
        status = self._job.status()
        if status is None or status.counts.failed == self._told:
            return
        counts = status.counts
        self._told = counts.failed
        for failure in status.failures:
            named = ", ".join(example.video for example in failure.examples)
            made = counted(failure.count, "clip")
            log.warning("%s could not be made (%s, %s): of %s", made, failure.stage, failure.kind, named)
        if counts.skipped:
            log.warning("left out, since no other video could stand in: %s", counted(counts.skipped, "clip"))

    def close(self) -> None:
        self._resources.close()

    def _prepared(self, consumer: str, view: View, transform: Transform | None) -> Prefetch:
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
            PrefetchOptions(options.batch_size, settings.prefetch_batches, consumer, transform=transform),
        )
