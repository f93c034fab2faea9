"""Batches of one stream from a running job, for a loop that is not a trainer.

    job (master, decoders, extractors) ──▶ intake ──▶ prefetch ──▶ device feed ──next──▶ the caller's loop

It is the path of a trainer, of the same parts. In place of checkpoints the caller keeps positions: a feed starts at any
position of its job, and gives from there on what an uninterrupted one gives. Clips are given back as soon as a batch on
the device holds them; a loop that comes again at an earlier position has them made again.
"""

from __future__ import annotations

import logging
import os
import threading
from contextlib import ExitStack, closing
from dataclasses import dataclass

import torch

from essp.loops.membership import Membership
from essp.loops.running_job import RunningJob
from essp_common.features.sampling import wanted_frames
from essp_common.learning.fetch_processes import FetchProcesses
from essp_common.learning.wanted import in_flight
from essp_common.messages.ordered import IntakeOptions, OrderedIntake, PhaseEnd
from essp_common.planning.position import Position
from essp_common.runtime import ids
from essp_trainer.config import TrainerSettings
from essp_trainer.data.device_feed import DeviceFeed
from essp_trainer.data.prefetch import Batch, Prefetch, PrefetchOptions, View

log = logging.getLogger(__name__)

_NEXT_S = 0.2


@dataclass(frozen=True, slots=True)
class FeedOptions:
    """What a feed does with the clips, and where."""

    consumer: str
    """One of the job's `consumers`."""
    view: View
    """What the caller sees of a clip; runs in a thread."""
    device: torch.device


class Feed:
    """The batches of one of the consumers of a job. Used from one thread, but for `close`."""

    def __init__(self, job: RunningJob, membership: Membership, options: FeedOptions) -> None:
        """Takes over `membership`, and one use of `job`; closes both."""
        self.pid = os.getpid()
        self._job = job
        self._membership = membership
        self._closing = threading.Lock()
        self._told = 0
        """Failures that are in the log."""
        with ExitStack() as stack:
            stack.callback(job.close)
            stack.callback(membership.leave)
            self.position = membership.began()
            """Where the batch that `next` gives begins."""
            membership.follow(lambda: self.position)
            prefetch = self._prefetch(options)
            feed = DeviceFeed(prefetch, options.device, options.consumer, finish_sent=True)
            self._device_feed = stack.enter_context(closing(feed))
            self._resources = stack.pop_all()

    def next(self) -> Batch | PhaseEnd | None:
        """The next batch, or the end of an epoch after its last batch; waits for it. None: the job is over.

        Raises what stopped the job, the error of `view`, or `EsspError` with the reason for which the job failed.
        """
        if self.position.phase_index >= len(self._job.phases):
            return None
        while (item := self._device_feed.next(_NEXT_S)) is None:
            self._job.check()
            self._membership.check()
        if isinstance(item, PhaseEnd):
            self.position = Position(item.phase_index + 1, 0)
            self._tell_of_failures()
        else:
            self.position = item.position
        return item

    def close(self) -> None:
        """Leave the job. Idempotent, from any thread."""
        if self.pid != os.getpid():  # a fork has none of its threads
            return
        with self._closing:
            self._resources.close()

    def _prefetch(self, options: FeedOptions) -> Prefetch:
        job, start, settings = self._job, self.position, TrainerSettings()
        consumer = job.spec.consumers[options.consumer]
        stream = job.spec.streams[consumer.stream]
        at_once = settings.fetch_processes or settings.fetches
        fetches, read = in_flight(job.spec.clip, stream, job.cache_url, at_once)
        processes = settings.fetch_processes if fetches else 0
        intake = OrderedIntake(
            job.adapters.bus,
            job.adapters.cache,
            IntakeOptions(
                job=job.spec.name,
                consumer=ids.loop_consumer(options.consumer),
                stream=consumer.stream,
                feature=stream.feature,
                worker=self._membership.incarnation,
                fence=job.fence,
                fetches=fetches,
                read=read,
                elsewhere=FetchProcesses.of(processes, job.cache_url, settings.tenant, read),
            ),
            job.phases,
            start,
        )
        return Prefetch(
            intake,
            job.phases,
            start,
            options.view,
            PrefetchOptions(
                batch_size=consumer.batch_size,
                ahead=settings.prefetch_batches * consumer.batch_size,
                loaders=settings.loaders,
                wanted_frames=wanted_frames(job.spec.clip, stream),
                name=options.consumer,
            ),
        )

    def _tell_of_failures(self) -> None:
        """In the log, after an epoch with new ones: clips are missing or stand in for others, and the loop cannot see
        that."""
        status = self._job.status()
        if status is None or status.counts.failed == self._told:
            return
        counts = status.counts
        self._told = counts.failed
        for failure in status.failures:
            named = ", ".join(example.video for example in failure.examples)
            log.warning("%d clips could not be made (%s, %s): of %s", failure.count, failure.stage, failure.kind, named)
        if counts.skipped:
            log.warning("%d clips were left out, since no other video could stand in", counts.skipped)
