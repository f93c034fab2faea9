"""An intake in order, and what is upstream of it: a bus, a cache, and messages of features."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from essp_common import topics
from essp_common.bus.memory import MemoryBus
from essp_common.cache.memory import MemoryCache
from essp_common.cache.port import clip_key, stream_key
from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import (
    ClipRef,
    FeatureReady,
    PhasePlan,
    Progress,
    Purpose,
)
from essp_engine.intake.ordered import Delivery, IntakeOptions, OrderedIntake, PhaseEnd

JOB = "job-1"
CONSUMER = "trainer.flow"
FLOW = IntakeOptions(job=JOB, consumer=CONSUMER, stream="flow10", feature="flow", worker="w1", fence=3)
BEGINNING = Position(0, 0)


def plan(purpose: Purpose, epoch: int, clips: int) -> PhasePlan:
    return PhasePlan(purpose=purpose, epoch=epoch, clips=clips)


class OrderedBench:
    """A bus, a cache, and the upstream half of the pipeline."""

    def __init__(self, fetches: int = 0) -> None:
        self.fetches = fetches
        self.bus = MemoryBus()
        self.cache = MemoryCache.from_url("memory://?bytes=1MiB")
        self.bus.ensure_topics({t: topics.partitions(t) for t in (*topics.FIXED, topics.features("flow"))})

    def feature(
        self,
        phase_plan: PhasePlan,
        index: int,
        attempt: int = 0,
        skipped: str = "",
        job: str = JOB,
        stream: str = "flow10",
        fence: int = 0,
        send: bool = True,
    ) -> str:
        """An extractor's effects: bytes into the cache, then the message."""
        clip = ClipRef(job=job, purpose=phase_plan.purpose, epoch=phase_plan.epoch, index=index, attempt=attempt)
        key = "" if skipped else stream_key(clip_key(job, clip.purpose, clip.epoch, index, attempt), stream)
        if key:
            self.cache.put(key, f"{clip.purpose}.{clip.epoch}.{index}.{attempt}".encode(), [CONSUMER], 60)
        message = FeatureReady(clip=clip, stream=stream, key=key, skipped=skipped, fence=fence)
        if send:
            self.send(topics.features("flow"), index, message.SerializeToString())
        return key

    def send(self, topic: str, index: int, value: bytes) -> None:
        self.bus.publish(topic, str(index).encode(), value, partition=index % topics.DATA_PARTITIONS)

    @contextmanager
    def intake(
        self,
        phases: list[PhasePlan],
        options: IntakeOptions = FLOW,
        start: Position = BEGINNING,
        clock: Callable[[], float] = time.monotonic,
    ) -> Iterator[OrderedIntake]:
        options = replace(options, fetches=self.fetches)
        intake = OrderedIntake(self.bus, self.cache, options, phases, start, clock)
        try:
            yield intake
        finally:
            intake.close()

    def progress(self) -> list[Progress]:
        reader = self.bus.subscribe([topics.PROGRESS], group=None)
        return [Progress.FromString(record.value) for record in reader.poll(100_000, 0)]

    def backlog(self, options: IntakeOptions = FLOW) -> int:
        return self.bus.backlog(topics.features("flow"), options.group)


def take_all(intake: OrderedIntake) -> list[Delivery | PhaseEnd]:
    """Everything that can be taken now."""
    found = []
    while (taken := intake.take(0)) is not None:
        found.append(taken)
    return found


def places(taken: list[Delivery | PhaseEnd]) -> list[tuple[int, int | str]]:
    return [(t.phase_index, t.clip.index if isinstance(t, Delivery) else "end") for t in taken]
