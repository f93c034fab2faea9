"""Decoders, extractors and consumers that do no real work, around a real master over memory adapters.

One thread, step by step, so that a test decides when who does what. The consumers are `OrderedIntake`, as in a trainer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from essp_common import topics
from essp_common.artifacts import checkpoint_writer
from essp_common.artifacts.checkpoint_files import in_memory
from essp_common.artifacts.manifest import MODEL_FILE, Manifest, ModelDescription
from essp_common.bus.memory import MemoryBus
from essp_common.cache.memory import MemoryCache
from essp_common.cache.port import clip_key, stream_key
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import pack_table, to_table
from essp_common.catalog.rows import VideoRow
from essp_common.job.feature_layout import COLOURS
from essp_common.job.position import Position
from essp_common.job.spec import JobSpec
from essp_common.messages.recipe import clip_consumers
from essp_common.objects.directory import DirectoryStore
from essp_common.pb.v1.messages_pb2 import (
    AGGREGATOR,
    DAMAGED,
    DECODER,
    CheckpointReady,
    ClipReady,
    ClipRef,
    Control,
    DecodeSeed,
    Failed,
    FeatureReady,
    Finished,
    Made,
    PhasePlan,
    Progress,
)
from essp_common.runtime import ids
from essp_common.wiring import Adapters, Stores
from essp_engine.intake.ordered import Delivery, IntakeOptions, OrderedIntake
from essp_master.config import MasterSettings
from essp_master.service import Master, build


class Clock:
    """Time that stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def adapters_in(folder: Path) -> Adapters:
    """Memory bus and cache, and a directory as the store."""
    bus = MemoryBus()
    bus.ensure_topics({topic: topics.partitions(topic) for topic in topics.FIXED})
    return Adapters(bus, MemoryCache(64 * 2**20), Stores([f"file://{folder}"]))


def make_catalog(folder: Path, videos: int = 8) -> str:
    """A catalog of made-up videos of two classes, for training and testing; its URI."""
    store = DirectoryStore(str(folder))
    store.put("catalog.parquet", _catalog(videos))
    return store.uri("catalog.parquet")


@cache
def _catalog(videos: int) -> bytes:
    """Its file, which is the same in any folder; most tests need one."""
    rows = [
        VideoRow(f"{split}/v{n}.mp4", f"file:///videos/{split}/v{n}.mp4", f"c{n % 2}", split, 1000 + n, "e",
                 width=64, height=48, frame_count=60, last_frame=59, seekable=True, keyframe_pts=(0, 30),
                 keyframe_frame=(0, 30), keyframe_offset=(0, 5000))
        for split in ("train", "test")
        for n in range(videos)
    ]  # fmt: skip
    return pack_table(to_table(Catalog(tuple(rows))))


def make_job(folder: Path, **more: Any) -> JobSpec:
    """A small training job on two streams; its catalog is made too."""
    document: dict[str, Any] = {
        "name": "small",
        "output": f"file://{folder}/out",
        "data": {"catalog": make_catalog(folder)},
        "clip": {"frames": 3, "resize": {"height": 16, "width": 16}},
        "sampling": {"clips_per_video": 2, "clips_per_epoch": 10},
        "streams": {"rgb": {}, "diff": {"feature": "frame_diff", "params": {"length": 2}}},
        "trainers": {name: {"stream": name, "batch_size": 2, "augment": {"crop": 16}} for name in ("rgb", "diff")},
        "epochs": 2,
        "limits": {"budget": "64KiB", "dead_ratio": 0.9},
    }
    return JobSpec.model_validate(document | more)


SIZES = [10, 4, 10, 4, 16]
"""Clips of each phase of `make_job`: two epochs, each validated on the video of each class set aside, and the test."""
EVERYTHING = [(number, index) for number, clips in enumerate(SIZES) for index in range(clips)]


def save_checkpoint(
    store: DirectoryStore, trainer: str, position: Position, final: bool = False, digest: str = ""
) -> None:
    """A checkpoint of a trainer of `make_job`, of which nobody is told."""
    model = ModelDescription(
        name="small", feature="rgb", layout=COLOURS, channels=3, classes=("c0", "c1"), dropout=0.5, crop=16,
        evaluation_scale=0.875,
    )  # fmt: skip
    manifest = Manifest(
        job="small", trainer=trainer, step=position.index + 1, updates=1, epoch=0, position=position,
        spec_digest="", model=model, final=final, epochs=2, digest=digest,
    )  # fmt: skip
    checkpoint_writer.claim(store, trainer).save(manifest, in_memory({MODEL_FILE: b"weights"}), keep=2)


@dataclass
class Fleet:
    """Everybody but the master."""

    adapters: Adapters
    job: JobSpec
    bad: Callable[[DecodeSeed], str] = lambda unit: ""
    """Why a unit's video cannot be decoded; empty: it can."""
    decoders: int = 1
    units: list[DecodeSeed] = field(default_factory=list)
    trained: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    most_bytes: int = 0
    intakes: dict[str, OrderedIntake] = field(default_factory=dict)

    def __post_init__(self) -> None:
        bus = self.adapters.bus
        features = {s.feature for s in self.job.streams.values() if s.feature != "rgb"}
        bus.ensure_topics({topics.features(f): topics.DATA_PARTITIONS for f in features})
        self._seeds = [bus.subscribe([topics.SEEDS], "decoder") for _ in range(self.decoders)]
        self._clips = bus.subscribe([topics.CLIPS], "extractor.frame_diff")
        self._control = bus.subscribe([topics.CONTROL], None)
        self.commands: list[Control] = []

    def close(self) -> None:
        """Leave."""
        for subscription in (*self._seeds, self._clips, self._control):
            subscription.close()
        for intake in self.intakes.values():
            intake.close()

    def learn(self) -> list[Control]:
        """Read what the master commands; who trains does so from the first command of the job on."""
        new = [Control.FromString(record.value) for record in self._control.poll(100, 0)]
        self.commands += new
        for command in new:
            under_way = command.command in (Control.START, Control.PAUSE, Control.RESUME)
            if command.job == self.job.name and under_way and not self.intakes:
                self.open(list(command.snapshot.phases), {})
        return new

    def open(self, phases: list[PhasePlan], start: dict[str, Position]) -> None:
        """Have the consumers begin."""
        for consumer, stream in self.job.readers().items():
            options = IntakeOptions(self.job.name, consumer, stream, self.job.streams[stream].feature)
            position = start.get(consumer, Position(0, 0))
            self.intakes[consumer] = OrderedIntake(self.adapters.bus, self.adapters.cache, options, phases, position)
            self.trained.setdefault(consumer, [])

    def decode(self, most: int = 1000) -> int:
        """Decode what is in the queue; how many units."""
        count = 0
        for subscription in self._seeds:
            for record in subscription.poll(most, 0):
                self._decode(DecodeSeed.FromString(record.value))
                subscription.done(record)
                count += 1
        return count

    def lose_seeds(self) -> int:
        """Take the seeds in the queue and forget them; how many."""
        count = 0
        for subscription in self._seeds:
            for record in subscription.poll(1000, 0):
                count += len(DecodeSeed.FromString(record.value).seeds)
                subscription.done(record)
        return count

    def extract(self) -> int:
        """Make the features of the clips that wait for it."""
        records = self._clips.poll(1000, 0)
        for record in records:
            self._extract(ClipReady.FromString(record.value))
            self._clips.done(record)
        return len(records)

    def train(self, consumer: str, most: int = 1000) -> int:
        """Take and finish clips; how many."""
        intake, count = self.intakes[consumer], 0
        while count < most and (taken := intake.take(0)) is not None:
            if isinstance(taken, Delivery):
                if not taken.skipped:
                    self.trained[consumer].append((taken.phase_index, taken.clip.index))
                intake.finish([taken])
                count += 1
        return count

    def work(self) -> int:
        """One round for everybody; how much was done."""
        self.learn()
        done = self.decode() + self.extract()
        return done + sum(self.train(consumer) for consumer in self.intakes)

    def finish(self, uri: str = "file:///model", fence: int = 0) -> None:
        """The trainers' final checkpoints, and the aggregator's word."""
        for trainer in self.job.trainers:
            ready = CheckpointReady(job=self.job.name, trainer=trainer, uri=f"file:///{trainer}", final=True)
            self.report(Progress(checkpoint=ready, fence=fence))
        finished = Finished(job=self.job.name, stage=AGGREGATOR, uri=uri, metrics={"test.fused.top1": 0.9})
        self.report(Progress(finished=finished, fence=fence))

    def report(self, progress: Progress) -> None:
        """Publish progress."""
        progress.job, progress.worker = self.job.name, "w1"
        self.adapters.bus.publish(topics.PROGRESS, self.job.name.encode(), progress.SerializeToString())

    def clips_of(self, number: int) -> list[int]:
        """The indices issued of a phase, in order of issue."""
        first = next(c for c in self.commands if c.command == Control.START).snapshot.phases[number]
        return [
            seed.index
            for unit in self.units
            if (unit.purpose, unit.epoch) == (first.purpose, first.epoch)
            for seed in unit.seeds
        ]

    def _decode(self, unit: DecodeSeed) -> None:
        fences = [command.fence for command in self.commands if command.job == self.job.name]
        if unit.job != self.job.name or (fences and unit.fence < fences[-1]):
            return  # of another job, or of an older master
        self.units.append(unit)
        reason = self.bad(unit)
        for seed in unit.seeds:
            ref = ClipRef(job=unit.job, purpose=unit.purpose, epoch=unit.epoch, index=seed.index, attempt=seed.attempt,
                          class_id=seed.class_id, video_id=unit.video.id, first_frame=seed.first_frame)  # fmt: skip
            if reason:
                failed = Failed(clip=ref, stage=DECODER, reason=reason, kind=DAMAGED)
                self.report(Progress(failed=failed, fence=unit.fence))
                continue
            key = clip_key(unit.job, unit.purpose, unit.epoch, seed.index, seed.attempt)
            value = bytes(64 + 3 * 16 * 16 * 3)
            self._put(key, value, clip_consumers(unit.recipe))
            ready = ClipReady(clip=ref, key=key, bytes=len(value), recipe=unit.recipe)
            partition = seed.index % topics.DATA_PARTITIONS
            self.adapters.bus.publish(topics.CLIPS, b"", ready.SerializeToString(), partition)
            self._report_made(ref, "", value, unit.fence)

    def _extract(self, ready: ClipReady) -> None:
        for stream in ready.recipe.streams:
            if stream.feature == "rgb" or ready.skipped:
                continue
            self.adapters.cache.get(ready.key)
            key, value = stream_key(ready.key, stream.stream), bytes(64 + 2 * 16 * 16 * 3)
            self._put(key, value, list(stream.consumers))
            message = FeatureReady(
                clip=ready.clip, stream=stream.stream, key=key, bytes=len(value), consumers=stream.consumers
            )
            partition = ready.clip.index % topics.DATA_PARTITIONS
            self.adapters.bus.publish(topics.features(stream.feature), b"", message.SerializeToString(), partition)
            self._report_made(ready.clip, stream.stream, value, ready.fence)
            self.adapters.cache.ack(ready.key, ids.extractor_consumer(stream.stream))

    def _report_made(self, clip: ClipRef, stream: str, value: bytes, fence: int) -> None:
        made = Made(
            purpose=clip.purpose,
            epoch=clip.epoch,
            stream=stream,
            indices=[clip.index],
            attempts=[clip.attempt],
            bytes=[len(value)],
            seconds=0.01,
        )
        self.report(Progress(made=made, fence=fence))

    def _put(self, key: str, value: bytes, consumers: list[str]) -> None:
        self.adapters.cache.put(key, value, consumers, 60)
        self.most_bytes = max(self.most_bytes, self.adapters.cache.usage().used_bytes)


def master_over(adapters: Adapters, clock: Clock | None = None, **settings: Any) -> Master:
    """A master of these adapters."""
    made = MasterSettings.model_validate({"stall_s": 60.0, **settings})
    if clock is None:
        return build(adapters, made, "m1")
    return Master(adapters, made, "m1", clock=clock)


def run_to_rest(master: Master, fleet: Fleet, limit: int = 2000) -> None:
    """Let everybody work until nothing moves."""
    for _ in range(limit):
        if not fleet.work() + master.step(0):
            return
    raise AssertionError("it does not come to rest")


FleetOf = Callable[..., Fleet]
"""What the fixture `fleet_of` gives."""
