"""Small training jobs for tests: everything around a trainer, played by hand over memory adapters."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from essp_common import topics
from essp_common.artifacts import checkpoint
from essp_common.artifacts.manifest import MODEL_FILE, Manifest
from essp_common.bus.memory import MemoryBus
from essp_common.bus.port import Bus
from essp_common.cache.memory import MemoryCache
from essp_common.cache.port import FrameCache, clip_key, stream_key
from essp_common.job.feature_layout import FeatureLayout
from essp_common.job.position import Position
from essp_common.job.spec import JobSpec
from essp_common.messages.control import ControlFeed
from essp_common.objects.port import ObjectStore
from essp_common.pb.v1.messages_pb2 import (
    TEST,
    TRAIN,
    VALIDATION,
    Change,
    ClipReady,
    ClipRef,
    Control,
    FeatureReady,
    FrameCodec,
    JobSnapshot,
    PhasePlan,
    Progress,
    Purpose,
)
from essp_common.tensors.safetensors_file import as_safetensors
from essp_common.wiring import Adapters, Stores
from essp_engine.features.registry import layout_of, names
from essp_engine.video import codec
from essp_trainer.config import TrainerConfig, TrainerSettings
from essp_trainer.distributed.ranks import DistributedRanks, Ranks, SingleRank
from essp_trainer.service import Trainer
from tests.harness.waiting import LONGEST_S

CLASSES = ("left", "right", "still")
SIDE = 20
_NOT_PACKED = {"codec": "none", "planes": False, "delta": False}
"""Checkpoints of tests that are not about them: packing takes longer than a step of the small network."""
ClipPosition = tuple[int, int]
"""Number of a phase, and index in it."""


def job_spec(output: Path, epochs: int = 2, feature: str = "rgb", **training: Any) -> JobSpec:
    """One trainer, `one`, of the small network on 16 x 16 crops."""
    own = {"stream": "s", "batch_size": 4, "threads": 1, "augment": {"crop": 16}, "optimizer": {"lr": 0.05}}
    checkpoint = {"parallel": "thread"} | training.pop("checkpoint", _NOT_PACKED)
    return JobSpec.model_validate(
        {
            "name": "tiny",
            "output": output.as_uri(),
            "epochs": epochs,
            "clip": {"frames": 3},
            "streams": {"s": {"feature": feature, "params": {"frames": 2} if feature == "rgb" else {"length": 2}}},
            "trainers": {"one": own | training | {"checkpoint": checkpoint}},
        }
    )


def phase_plans(epochs: int, train: int = 10, validation: int = 6, test: int = 6) -> tuple[PhasePlan, ...]:
    """The phases of a job; no clips, no such passes."""
    plans = []
    for epoch in range(epochs):
        plans.append(PhasePlan(purpose=TRAIN, epoch=epoch, clips=train))
        if validation:
            plans.append(PhasePlan(purpose=VALIDATION, epoch=epoch, clips=validation))
    if test:
        plans.append(PhasePlan(purpose=TEST, epoch=0, clips=test))
    return tuple(plans)


@dataclass
class Stage:
    """Plays master, decoder and extractor for one trainer."""

    spec: JobSpec
    plans: tuple[PhasePlan, ...]
    bus: Bus = field(default_factory=MemoryBus)
    cache: FrameCache = field(default_factory=lambda: MemoryCache.from_url("memory://?bytes=64MiB"))
    stores: Stores = field(default_factory=lambda: Stores(("file:///",)))
    fence: int = 7
    """Of this run of the job."""
    changes: list[Change] = field(default_factory=list)
    """What people have changed of it while it ran."""
    training_digest: int = 0
    """Of what the catalog gives."""

    def __post_init__(self) -> None:
        self.adapters = Adapters(self.bus, self.cache, self.stores)
        self.feature = self.spec.streams["s"].feature
        topic = topics.stream_topic(self.feature)
        self.bus.ensure_topics({t: topics.partitions(t) for t in (*topics.FIXED, topic)})
        self._progress = self.bus.subscribe([topics.PROGRESS], None)
        self.seen: list[Progress] = []

    @property
    def store(self) -> ObjectStore:
        """The job's output."""
        return self.adapters.stores.under(self.spec.output)

    def close(self) -> None:
        """Read no more of its progress."""
        self._progress.close()

    def command(self, command: Control.Command, epochs: int = 0) -> None:
        """Say something of the job on `essp.control`. `epochs`: it gets so many, in its next run; 0: none follows."""
        self.bus.publish(topics.CONTROL, b"tiny", self.control(command, epochs).SerializeToString())

    def control(self, command: Control.Command, epochs: int = 0) -> Control:
        """What `command` publishes."""
        layout = layout_of(self.feature) if self.feature in names() else FeatureLayout(mirrored="plain")
        snapshot = JobSnapshot(
            spec_json=self.spec.model_dump_json(),
            classes=CLASSES,
            phases=self.plans,
            layouts={"s": layout.model_dump_json()},
            training_digest=self.training_digest,
        )
        then = self.spec.model_copy(update={"epochs": epochs}).model_dump_json() if epochs else ""
        control = Control(job="tiny", fence=self.fence, command=command, snapshot=snapshot, next_spec_json=then)
        control.changes.extend(self.changes)
        return control

    def every_position(self) -> list[ClipPosition]:
        """All clips of all phases, in order."""
        return [(number, index) for number, plan in enumerate(self.plans) for index in range(plan.clips)]

    def feed(
        self,
        positions: Iterable[ClipPosition],
        skipped: Iterable[ClipPosition] = (),
        frames: NDArray[Any] | None = None,
        fence: int = 0,
    ) -> None:
        """Put clips into the cache and announce them, in this order. `fence`: of the master that has issued them."""
        left_out = set(skipped)
        for number, index in positions:
            plan = self.plans[number]
            clip = clip_ref(plan, index)
            if (number, index) in left_out:
                self._announce(clip, "", "no frame could be decoded", fence)
                continue
            key = clip_key("tiny", plan.purpose, plan.epoch, index, 0)
            key = key if self.feature == "rgb" else stream_key(key, "s")
            value = codec.encode(clip_frames(clip, self.feature) if frames is None else frames, FrameCodec(name="raw"))
            self.cache.put(key, value, ["trainer.one"], 600)
            self._announce(clip, key, "", fence)

    def announce_again(self, positions: Iterable[ClipPosition]) -> None:
        """Messages delivered twice, without bytes."""
        for number, index in positions:
            plan = self.plans[number]
            key = clip_key("tiny", plan.purpose, plan.epoch, index, 0)
            self._announce(clip_ref(plan, index), key if self.feature == "rgb" else stream_key(key, "s"), "")

    def forge(self, clip: ClipRef) -> None:
        """A message of anybody's, of a clip that is in no cache."""
        self._announce(clip, "forged", "")

    def _announce(self, clip: ClipRef, key: str, skipped: str, fence: int = 0) -> None:
        message: ClipReady | FeatureReady
        if self.feature == "rgb":
            message = ClipReady(clip=clip, key=key, skipped=skipped, fence=fence)
        else:
            message = FeatureReady(clip=clip, stream="s", key=key, skipped=skipped, fence=fence)
        partition = clip.index % topics.DATA_PARTITIONS
        topic = topics.stream_topic(self.feature)
        self.bus.publish(topic, str(clip.index).encode(), message.SerializeToString(), partition)

    def progress(self, timeout_s: float = 0.0) -> list[Progress]:
        """What the trainer has reported since the last call."""
        new = [Progress.FromString(record.value) for record in self._progress.poll(10_000, timeout_s)]
        self.seen += new
        return new

    def wait_for(self, kind: str, count: int = 1) -> list[Progress]:
        """Read progress until there were `count` reports of one kind, counted from the beginning."""
        while len(found := [p for p in self.seen if p.WhichOneof("event") == kind]) < count:
            if not self.progress(timeout_s=LONGEST_S):
                raise TimeoutError(f"{len(found)} of {count} reports of {kind} came")
        return found

    def wait_for_trained(self, clips: int) -> None:
        """The same, until so many clips are reported as done: one report may be of several batches."""
        while sum(len(p.trained.indices) for p in self.seen) < clips:
            if not self.progress(timeout_s=LONGEST_S):
                raise TimeoutError(f"{clips} clips are not done")

    def wait_for_final(self, checkpoints: int) -> None:
        """The same, until so many checkpoints are reported as the last one of a training."""
        while sum(p.checkpoint.final for p in self.wait_for("checkpoint")) < checkpoints:
            if not self.progress(timeout_s=LONGEST_S):
                raise TimeoutError(f"{checkpoints} trainings are not done")

    def reports(self, kind: str) -> list[Any]:
        """All reports of one kind, so far."""
        self.progress()
        return [getattr(p, kind) for p in self.seen if p.WhichOneof("event") == kind]


class Running:
    """A trainer in a thread of its own for each rank, until left."""

    def __init__(
        self,
        stage: Stage,
        ranks: int = 1,
        clock: Callable[[], float] = time.monotonic,
        stays: bool = False,
        **settings: Any,
    ) -> None:
        self._control = ControlFeed(stage.bus)
        config = TrainerConfig(
            job="tiny",
            trainer="one",
            worker="w",
            stays=stays,
            settings=TrainerSettings(**{"report_interval_s": 1e-6} | settings),
        )
        self.trainers = [Trainer(config, stage.adapters, self._control, r, clock) for r in ranks_in_process(ranks)]
        self.errors: dict[int, BaseException] = {}
        self._threads = [
            threading.Thread(target=self._run, args=(rank,), name=f"trainer-under-test-{rank}", daemon=True)
            for rank in range(ranks)
        ]

    @property
    def error(self) -> BaseException | None:
        """What stopped the lowest rank that was stopped."""
        return self.errors[min(self.errors)] if self.errors else None

    def __enter__(self) -> Running:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for trainer in self.trainers:
            trainer.drain()
        self.join()
        self._control.close()

    def join(self, rank: int | None = None) -> None:
        """Wait for it to end by itself. `rank`: wait for this one alone."""
        deadline = time.monotonic() + LONGEST_S
        for thread in self._threads if rank is None else [self._threads[rank]]:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                raise TimeoutError(f"{thread.name} did not end")

    def _run(self, rank: int) -> None:
        try:
            self.trainers[rank].run()
        except BaseException as error:  # noqa: BLE001  looked at by the test
            self.errors[rank] = error


def ranks_in_process(count: int) -> list[Ranks]:
    """So many ranks within this process, over gloo."""
    if count == 1:
        return [SingleRank()]
    store = dist.HashStore()

    def meet(rank: int) -> Ranks:
        backend = dist.ProcessGroupGloo(store, rank, count, timedelta(seconds=60))
        return DistributedRanks(backend, rank, count, leave=lambda: None)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(meet, range(count)))


def clip_ref(plan: PhasePlan, index: int) -> ClipRef:
    """The clip at an index: classes in turn, two clips a video in evaluations; the bits of its index are its labels."""
    video = index if plan.purpose == TRAIN else index // 2
    return ClipRef(
        job="tiny",
        purpose=plan.purpose,
        epoch=plan.epoch,
        index=index,
        class_id=video % len(CLASSES),
        video_id=f"{Purpose.Name(plan.purpose)}-{video}",
        labels=[number for number in range(len(CLASSES)) if index >> number & 1],
    )


def clip_frames(clip: ClipRef, feature: str) -> NDArray[Any]:
    """Noise whose brightness tells the class, or tracks whose directions do."""
    random = np.random.default_rng([clip.purpose, clip.epoch, clip.index])
    if feature == "trajectories":
        return tracks(random, clip.class_id)
    shape = (3, SIDE, SIDE, 3) if feature == "rgb" else (1, SIDE, SIDE, 4)
    level = 60 + 60 * clip.class_id
    return random.integers(level, level + 60, shape, dtype=np.uint8)


def tracks(random: np.random.Generator, class_id: int) -> NDArray[np.float32]:
    """`(1, 16, 1, 16)`: up to 14 rows of 10 facts and 6 numbers of a descriptor, then rows of zeros."""
    rows = np.zeros((1, 16, 1, 16), np.float32)
    count = int(random.integers(9, 15))
    rows[0, :count, 0, :10] = random.uniform(1, 9, (count, 10))
    rows[0, :count, 0, 10:] = random.normal(0, 1, (count, 6))
    rows[0, : count // 2, 0, 10 + class_id] += 4
    return rows


def train(
    stage: Stage,
    positions: Sequence[ClipPosition] | None = None,
    skipped: Iterable[ClipPosition] = (),
    ranks: int = 1,
    **settings: Any,
) -> Running:
    """Start the job, feed everything, and let the trainer finish. Raises what it raised. `settings`: of the trainer."""
    stage.command(Control.START)
    stage.feed(stage.every_position() if positions is None else positions, skipped)
    with Running(stage, ranks, **settings) as running:
        running.join()
    if running.error is not None:
        raise running.error
    return running


def in_parts(make: Callable[[], Stage], parts: Iterable[tuple[int, ClipPosition | None]]) -> Stage:
    """Train with so many ranks until the batch before a place is trained, leave, start anew, and so on.

    `make`: a new stage of the same job, since of a process that ends nothing is left but the store.
    """
    start = Position(0, 0)
    for ranks, stop in parts:
        stage = make()
        positions = [position for position in stage.every_position() if position >= start]
        fed = positions if stop is None else positions[: positions.index(stop)]
        stage.command(Control.START)
        stage.feed(fed)
        with Running(stage, ranks) as running:
            if stop is None:
                running.join()
            while stop is not None and len(_trained_positions(stage)) < len(fed):
                stage.progress(timeout_s=1.0)
        assert running.error is None
        manifest = checkpoint.read_latest(stage.store, "one")
        start = Position(0, 0) if manifest is None else manifest.position
    return stage


def _trained_positions(stage: Stage) -> set[tuple[int, int, int]]:
    return {(report.purpose, report.epoch, index) for report in stage.reports("trained") for index in report.indices}


def finished(path: Path, positions: Sequence[ClipPosition] | None = None, **options: Any) -> Stage:
    """A job of two epochs, trained in one go."""
    stage = Stage(job_spec(path, **options), phase_plans(2))
    train(stage, positions)
    return stage


def figures_of(stage: Stage) -> list[dict[str, float]]:
    """What was reported of each phase, but for times."""
    return [
        {name: value for name, value in report.metrics.items() if name in ("loss", "top1", "clips", "video_top1")}
        for report in stage.reports("phase_report")
    ]


def third_step_overflows(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on: its gradient is not finite."""
    backward: Callable[..., None] = Tensor.backward
    seen: list[Tensor] = []

    def overflowing(self: Tensor, *args: Any, **options: Any) -> None:
        seen.append(self)
        backward(self * torch.inf if len(seen) == 3 else self, *args, **options)

    monkeypatch.setattr(Tensor, "backward", overflowing)


def files_of(store: ObjectStore, manifest: Manifest) -> dict[str, bytes]:
    """The files of a checkpoint as safetensors, differences resolved: they are equal if their arrays are."""
    return {name: as_safetensors(arrays) for name, arrays in checkpoint.load_arrays(store, manifest).items()}


def final_weights(stage: Stage) -> bytes:
    manifest = checkpoint.read_latest(stage.store, "one")
    assert manifest is not None
    assert manifest.final
    return files_of(stage.store, manifest)[MODEL_FILE]


def last_training_state(stage: Stage) -> dict[str, bytes]:
    """Weights and momentum at the end of the last TRAIN pass."""
    steps = checkpoint.steps(stage.store, "one")
    manifest = checkpoint.read(stage.store, "one", steps[-2])
    return files_of(stage.store, manifest) | {"updates": str(manifest.updates).encode()}
