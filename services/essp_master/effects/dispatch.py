"""The effects of a job: messages, and freed bytes. All of them go through the outbox."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import partial
from itertools import chain

from essp_common import topics
from essp_common.bus.port import Bus
from essp_common.cache.port import FrameCache, job_prefix
from essp_common.pb.v1.messages_pb2 import Control
from essp_common.runtime import tracing
from essp_engine.seeding.instructions import Instruction, IssueUnits, PublishSkip, ReleaseClip
from essp_master.effects.outbox import Effect, Outbox
from essp_master.job.job import Job


class Dispatch:
    """Publishes for jobs. Called under the owner's lock."""

    def __init__(self, bus: Bus, cache: FrameCache, outbox: Outbox, lock: threading.RLock) -> None:
        self._bus = bus
        self._cache = cache
        self._outbox = outbox
        self._lock = lock

    def instruction(self, job: Job, instruction: Instruction) -> None:
        """Publish work units or a skipped clip, or free the bytes of a clip."""
        if isinstance(instruction, IssueUnits):  # by far the most frequent instruction
            self._outbox.add(self._units(job, instruction), job.name)
            return
        self.carry_out(job, self.prepared(job, instruction) or [])

    def prepared(self, job: Job, instruction: Instruction) -> list[Effect] | None:
        """Return the effects of `instruction`; None for an instruction about the job itself. Raises an error if the
        instruction is invalid."""
        match instruction:
            case IssueUnits():
                return [self._units(job, instruction)]
            case PublishSkip():
                return [
                    partial(
                        self._bus.publish,
                        topic,
                        str(message.clip.index).encode(),
                        message.SerializeToString(),
                        topics.clip_partition(message.clip.purpose, message.clip.index, self._bus.partitions),
                    )
                    for topic, message in job.messages.skips(instruction)
                ]
            case ReleaseClip():
                releases = job.messages.releases(instruction)
                return [partial(self._cache.ack, cache_key, consumer) for cache_key, consumer in releases]
        return None

    def carry_out(self, job: Job, effects: Iterable[Effect]) -> None:
        """Queue these effects of a job."""
        for effect in effects:
            self._outbox.add(effect, job.name)

    def command(self, job: Job, command: Control.Command) -> None:
        """Publish a command about a job to all workers."""
        self._publish(job, topics.CONTROL, job.name.encode(), job.control(command).SerializeToString())

    def publish_again(self, command: Control) -> None:
        """Publish the last command of a job once more."""
        key = command.job.encode()
        self._outbox.add(partial(self._bus.publish, topics.CONTROL, key, command.SerializeToString()), command.job)

    def mark(self, job: Job) -> None:
        """Publish a marker message behind all messages about a job so far."""
        self._publish(job, topics.PROGRESS, job.name.encode(), job.mark().SerializeToString())

    def purge(self, job: str) -> None:
        """Free all bytes of a job."""
        self._outbox.add(partial(self._cache.purge, job_prefix(job)), job)

    def sweep(self, job: Job) -> None:
        """Free what workers stored for a job after it had ended: they learn of its end a moment later."""
        job.leftovers = False
        self._outbox.add(partial(self._sweep, job), job.name)

    def _sweep(self, job: Job) -> None:
        found = self._cache.purge(job_prefix(job.name))
        with self._lock:
            job.swept(found)

    def _units(self, job: Job, instruction: IssueUnits) -> Effect:
        if tracing.traces():
            plan = job.run.preflight.phases.plans[instruction.phase_index]
            for clip in chain.from_iterable(instruction.units):
                tracing.issued(job.name, plan.purpose, plan.epoch, clip.index)
        return partial(self._issue, job.messages.units(instruction))

    def _issue(self, units: Iterable[tuple[bytes, bytes]]) -> None:
        publish = self._bus.publish
        for key, unit in units:
            publish(topics.SEEDS, key, unit)

    def _publish(self, job: Job, topic: str, key: bytes, value: bytes) -> None:
        self._outbox.add(partial(self._bus.publish, topic, key, value), job.name)
