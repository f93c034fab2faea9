"""Hundreds of workers and ranks: as many as there are partitions have work, and each clip is trained once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from essp_common import topics
from essp_common.bus.memory import MemoryBus
from essp_common.cache.memory import MemoryCache
from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import ClipReady, ClipRef, DecodeSeed, Made, Progress, Recipe, Seed, StreamRequest
from essp_engine.intake.ordered import Delivery, IntakeOptions, OrderedIntake
from essp_engine.seeding.instructions import Instruction, IssueUnits
from essp_master.ledger.ledger import Ledger
from tests.harness.ledger_config import CLIP_BYTES, ledger_config

WORKERS, PARTITIONS, CLIPS = 500, 512, 1000
JOB = "many"
TRAINER = "trainer.rgb"


class Crowd:
    """A master, 500 decoders, and a trainer of 500 ranks."""

    def __init__(self) -> None:
        self.bus, self.cache = MemoryBus(partitions=PARTITIONS), MemoryCache()
        self.bus.ensure_topics({t: topics.partitions(t, PARTITIONS) for t in topics.FIXED})
        self._progress = self.bus.subscribe([topics.PROGRESS], "master")
        self._config = ledger_config(
            epochs=1, clips=CLIPS, videos=CLIPS, consumers={TRAINER: "rgb"}, budget=1000 * CLIP_BYTES
        )
        self.ledger = Ledger(self._config)
        self._decoders = [self.bus.subscribe([topics.SEEDS], "decoder") for _ in range(WORKERS)]
        self._ranks = [
            OrderedIntake(self.bus, self.cache, self._options(n), self._config.phases, Position(0, 0))
            for n in range(WORKERS)
        ]
        self.decoded: Counter[int] = Counter()
        """By decoder."""
        self.trained: list[Counter[Position]] = [Counter() for _ in self._ranks]
        """By rank."""
        self._do(self.ledger.start())

    def _options(self, rank: int) -> IntakeOptions:
        return IntakeOptions(JOB, TRAINER, "rgb", "rgb", rank=rank, world_size=WORKERS)

    def work(self) -> None:
        """Let everybody do what can be done once."""
        for number, decoder in enumerate(self._decoders):
            for record in decoder.poll(100, 0):
                self._decode(number, DecodeSeed.FromString(record.value))
                decoder.done(record)
        for number, rank in enumerate(self._ranks):
            taken = []
            while (item := rank.take(0)) is not None:
                if isinstance(item, Delivery):
                    taken.append(item)
                    self.trained[number][Position(item.phase_index, item.clip.index)] += 1
            rank.finish(taken)
        for record in self._progress.poll(10_000, 0):
            self._do([*self.ledger.account(Progress.FromString(record.value)), *self.ledger.issue()])

    def close(self) -> None:
        for rank in self._ranks:
            rank.close()
        for decoder in self._decoders:
            decoder.close()

    def _do(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, IssueUnits):
                plan = self._config.phases[instruction.phase_index]
                for unit in instruction.units:
                    seeds = [Seed(index=clip.index) for clip in unit]
                    message = DecodeSeed(job=JOB, purpose=plan.purpose, epoch=plan.epoch, seeds=seeds)
                    self.bus.publish(topics.SEEDS, str(unit[0].index).encode(), message.SerializeToString())

    def _decode(self, number: int, unit: DecodeSeed) -> None:
        for seed in unit.seeds:
            self.decoded[number] += 1
            ref = ClipRef(job=JOB, purpose=unit.purpose, epoch=unit.epoch, index=seed.index)
            key = f"{unit.purpose}.{unit.epoch}.{seed.index}"
            self.cache.put(key, b"clip", [TRAINER], 60)
            recipe = Recipe(streams=[StreamRequest(stream="rgb", feature="rgb", consumers=[TRAINER])])
            ready = ClipReady(clip=ref, key=key, recipe=recipe)
            partition = topics.clip_partition(ref.purpose, ref.index, self.bus.partitions)
            self.bus.publish(topics.CLIPS, b"", ready.SerializeToString(), partition)
            made = Made(purpose=unit.purpose, epoch=unit.epoch, indices=[seed.index], bytes=[CLIP_BYTES])
            self.bus.publish(topics.PROGRESS, b"", Progress(job=JOB, made=made).SerializeToString())


@pytest.mark.slow
@pytest.mark.lane("long")
def test_five_hundred_decoders_and_ranks_have_work_and_each_clip_is_trained_once() -> None:
    crowd = Crowd()
    total = sum(plan.clips for plan in crowd._config.phases)
    for _ in range(20):
        crowd.work()
        if crowd.ledger.closed == total:
            break
    crowd.close()
    assert crowd.ledger.closed == total
    clips = sum(crowd.trained, Counter())
    assert len(clips) == total
    assert set(clips.values()) == {1}
    assert sum(bool(rank) for rank in crowd.trained) == WORKERS, "no rank is without work"
    assert len(crowd.decoded) > 0.9 * WORKERS, "seeds fall on partitions by chance"
    assert crowd.cache.usage().keys == 0
