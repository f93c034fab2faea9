"""The effects of a job: messages, and bytes that are freed. All of them go through the outbox."""

from __future__ import annotations

import threading
from functools import partial

from essp_common import topics
from essp_common.bus.port import Bus
from essp_common.cache.port import FrameCache, job_prefix
from essp_common.pb.v1.messages_pb2 import Control
from essp_master.effects.outbox import Outbox
from essp_master.job.job import Job
from essp_master.ledger.instructions import Instruction, IssueUnit, PublishSkip, ReleaseClip


class Dispatch:
    """Publishes for jobs. Called under the owner's lock."""

    def __init__(self, bus: Bus, cache: FrameCache, outbox: Outbox, lock: threading.RLock) -> None:
        self._bus = bus
        self._cache = cache
        self._outbox = outbox
        self._lock = lock

    def instruction(self, job: Job, instruction: Instruction) -> None:
        """Publish a work unit or a skipped clip, or free the bytes of a clip."""
        match instruction:
            case IssueUnit():
                key, unit = job.messages.unit(instruction)
                self._publish(topics.SEEDS, key, unit)
            case PublishSkip():
                for topic, message in job.messages.skips(instruction):
                    index = message.clip.index
                    partition = index % topics.DATA_PARTITIONS
                    self._publish(topic, str(index).encode(), message.SerializeToString(), partition)
            case ReleaseClip():
                for cache_key, consumer in job.messages.releases(instruction):
                    self._outbox.add(partial(self._cache.ack, cache_key, consumer))

    def command(self, job: Job, command: Control.Command) -> None:
        """Tell all workers what to do about a job."""
        self._publish(topics.CONTROL, job.name.encode(), job.control(command).SerializeToString())

    def mark(self, job: Job) -> None:
        """Publish a mark behind all messages about a job so far."""
        self._publish(topics.PROGRESS, job.name.encode(), job.mark().SerializeToString())

    def purge(self, job: Job) -> None:
        """Free all bytes of a job."""
        self._outbox.add(partial(self._cache.purge, job_prefix(job.name)))

    def sweep(self, job: Job) -> None:
        """Free what workers stored for a job that had ended: they learn of its end a moment later."""
        job.leftovers = False
        self._outbox.add(partial(self._sweep, job))

    def _sweep(self, job: Job) -> None:
        found = self._cache.purge(job_prefix(job.name))
        with self._lock:
            job.swept(found)

    def _publish(self, topic: str, key: bytes, value: bytes, partition: int | None = None) -> None:
        self._outbox.add(partial(self._bus.publish, topic, key, value, partition))
