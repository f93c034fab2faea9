"""A predict job over three videos, with a model of two networks that were never trained."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from essp_common import topics
from essp_common.artifacts import layout
from essp_common.artifacts.fused_model import FusedModel, Member, read_model, write_model, write_state
from essp_common.artifacts.manifest import ModelDescription
from essp_common.artifacts.predictions import Prediction, read_predictions
from essp_common.bus.memory import MemoryBus
from essp_common.cache.memory import MemoryCache
from essp_common.cache.port import clip_key, stream_key
from essp_common.job.fields import ParamValue
from essp_common.job.spec import JobSpec
from essp_common.objects.directory import DirectoryStore
from essp_common.pb.v1.messages_pb2 import (
    FAILURE_KIND_UNSPECIFIED,
    LOST,
    PREDICT,
    ClipReady,
    ClipRef,
    Control,
    FeatureReady,
    FrameCodec,
    JobSnapshot,
    PhasePlan,
    Progress,
)
from essp_common.wiring import Adapters, Stores
from essp_engine.features.registry import layout_of
from essp_engine.features.sampling import evenly_spaced
from essp_engine.learning.augment import Evaluated, evaluation_view
from essp_engine.learning.models import build as build_classifier
from essp_engine.learning.models import state_bytes
from essp_engine.video import codec
from essp_predictor.config import PredictorSettings
from essp_predictor.service import Predictor, build
from tests.harness.running import running

JOB = "predict-1"
CLASSES = ("left", "right", "up")
WEIGHTS = {"rgb": 0.25, "flow": 0.75}
FEATURES = {"rgb": ("rgb", 3, {"frames": 2}), "motion": ("flow", 4, {"length": 2})}
STREAM_OF = {"rgb": "rgb", "flow": "motion"}
CLIPS_PER_VIDEO = 2
VIDEOS = ("a.mp4", "b.mp4", "c.mp4")
CROP = 24
SCALE = 0.875
CLIPS = list(range(len(VIDEOS) * CLIPS_PER_VIDEO))
Frames = NDArray[np.uint8]


def frames_of(stream: str, index: int) -> Frames:
    """What upstream makes of the clip at an index: (5, 32, 40, 3) for rgb, (1, 32, 40, 4) for motion."""
    random = np.random.Generator(np.random.Philox(key=index + 100 * len(stream)))
    shape = (5, 32, 40, 3) if stream == "rgb" else (1, 32, 40, 4)
    return random.integers(0, 256, shape, dtype=np.uint8)


def described(trainer: str, views: int = 1) -> ModelDescription:
    feature, channels, _ = FEATURES[STREAM_OF[trainer]]
    return ModelDescription(
        name="small",
        feature=feature,
        layout=layout_of(feature),
        channels=channels,
        classes=CLASSES,
        dropout=0.5,
        crop=CROP,
        evaluation_scale=SCALE,
        views=views,
    )


def model_at(root: Path, views: int = 1) -> str:
    """A fused model of two networks that were never trained."""
    store = DirectoryStore.from_url(f"file://{root}")
    members = []
    for seed, trainer in enumerate(WEIGHTS):
        data = state_bytes(build_classifier(described(trainer), seed))
        sha256 = hashlib.sha256(data).hexdigest()
        key = layout.model_weights(trainer, sha256)
        store.put(key, data)
        members.append(
            Member(
                trainer=trainer,
                stream=STREAM_OF[trainer],
                weight=WEIGHTS[trainer],
                model=described(trainer, views),
                file=key.rpartition("/")[2],
                sha256=sha256,
                checkpoint="",
                epoch=0,
            )
        )
    spec = job_spec(root)
    model = FusedModel(
        job="trained",
        classes=CLASSES,
        clip=spec.clip,
        clips_per_video=CLIPS_PER_VIDEO,
        streams=spec.streams,
        members=tuple(members),
        strategy="weighted",
        rule="mean",
        strategies=(),
        validation=None,
        test=None,
        versions={},
    )
    write_model(store, model)
    return f"file://{root}/model"


def of_first_clips(root: Path) -> str:
    """The same networks, fused by a strategy that looks at the first half of each video alone."""
    store = DirectoryStore.from_url(f"file://{root}")
    model = read_model(DirectoryStore.from_url(model_at(root)))
    state = write_state(store, {f"{name}/parts": np.array([weight, 0.0]) for name, weight in WEIGHTS.items()})
    params: dict[str, ParamValue] = {"parts": 2}
    changes = {"format": 2, "strategy": "linear", "params": params, "rule": None, "state": state}
    write_model(store, model.model_copy(update=changes))
    return f"file://{root}/model"


def job_spec(root: Path, model: str = "") -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": JOB,
            "output": f"file://{root}/out",
            "clip": {"codec": {"name": "zstd"}},
            "sampling": {"clips_per_video": CLIPS_PER_VIDEO},
            "streams": {name: {"feature": f, "params": params} for name, (f, _, params) in FEATURES.items()},
            "predictor": {"model": model or f"file://{root}/model"},
        }
    )


def expected(index: int) -> NDArray[np.float64]:
    """The fused probabilities of one clip, computed by hand."""
    total = np.zeros(len(CLASSES))
    for seed, (trainer, weight) in enumerate(WEIGHTS.items()):
        frames = frames_of(STREAM_OF[trainer], index)
        if trainer == "rgb":
            frames = frames[evenly_spaced(5, 2)]
        classifier = build_classifier(described(trainer), seed).eval()
        with torch.inference_mode():
            seen = evaluation_view(frames, Evaluated(CROP, SCALE, 1), layout_of("rgb"))
            logits = classifier(torch.from_numpy(seen[None])).logits
        total += weight * logits.softmax(dim=1)[0].double().numpy()
    return total


class PredictorBench:
    """A bus with a predict job on it, the upstream half of the pipeline, and what its master says."""

    def __init__(self, root: Path, spec: JobSpec | None = None, begins: Control.Command = Control.START) -> None:
        self.spec = spec or job_spec(root)
        self.store = DirectoryStore.from_url(f"file://{root}/out")
        self.cache = MemoryCache()
        self.bus = MemoryBus()
        self.adapters = Adapters(self.bus, self.cache, Stores(("file:///",)))
        self.bus.ensure_topics({t: topics.partitions(t) for t in (*topics.FIXED, topics.features("flow"))})
        self._reader = self.bus.subscribe([topics.PROGRESS], group=None)
        self.completes = True
        """Whether the master says that the job is complete once it is finished."""
        self._fence = 2
        self.control(begins)

    def control(self, command: Control.Command, fence: int = 0, since: int = 0) -> None:
        """A command of the job. `fence`: of a later start, or with `since` of another master; 0: as before."""
        self._fence = fence or self._fence
        phases = [PhasePlan(purpose=PREDICT, epoch=0, clips=len(VIDEOS) * CLIPS_PER_VIDEO)]
        snapshot = JobSnapshot(spec_json=self.spec.model_dump_json(), classes=CLASSES, phases=phases)
        control = Control(job=JOB, fence=self._fence, since=since, command=command, snapshot=snapshot)
        self.bus.publish(topics.CONTROL, JOB.encode(), control.SerializeToString())

    def deliver(self, stream: str, index: int, skipped: str = "", damaged: bool = False) -> None:
        video, place = divmod(index, CLIPS_PER_VIDEO)
        first = 100 * place
        clip = ClipRef(
            job=JOB, purpose=PREDICT, index=index, video_id=VIDEOS[video], first_frame=first, last_frame=first + 10
        )
        key = clip_key(JOB, PREDICT, 0, index, 0)
        if stream != "rgb":
            key = stream_key(key, stream)
        if not skipped:
            value = bytes(codec.encode(frames_of(stream, index), FrameCodec(name="zstd")))
            self.cache.put(key, value[:-1] if damaged else value, [f"predictor.{stream}"], 60)
        if stream == "rgb":
            message: ClipReady | FeatureReady = ClipReady(clip=clip, key="" if skipped else key, skipped=skipped)
        else:
            message = FeatureReady(clip=clip, stream=stream, key="" if skipped else key, skipped=skipped)
        topic = topics.stream_topic(FEATURES[stream][0])
        self.bus.publish(
            topic,
            b"",
            message.SerializeToString(),
            partition=topics.clip_partition(PREDICT, index, topics.DATA_PARTITIONS),
        )

    def deliver_all(self, order: list[int]) -> None:
        for stream in FEATURES:
            for index in order:
                self.deliver(stream, index)

    @contextmanager
    def predictor(self, batch_clips: int = 4, worker: str = "predictor-1") -> Iterator[Predictor]:
        settings = PredictorSettings(device="cpu", batch_clips=batch_clips)
        service = build(self.adapters, settings, worker)
        with running(service):
            yield service

    def reports(self) -> Iterator[Progress]:
        """Its messages as they come; the test's time limit ends a wait in vain."""
        while True:
            for record in self._reader.poll(1, 1.0):
                progress = Progress.FromString(record.value)
                if progress.HasField("finished") and self.completes:
                    self.control(Control.COMPLETE)
                yield progress

    def ending(self) -> Progress:
        return next(
            p for p in self.reports() if p.HasField("finished") or p.failed.kind not in (FAILURE_KIND_UNSPECIFIED, LOST)
        )

    def finished(self) -> Progress:
        """Its message that the job is finished; clips that it misses until then are delivered again."""
        for progress in self.until_finished():
            if progress.failed.kind == LOST:
                self.deliver(progress.failed.stream, progress.failed.clip.index)
        return progress

    def answers(self) -> list[Prediction]:
        rows, classes = read_predictions(self.store, layout.PREDICTIONS)
        assert classes == CLASSES
        return rows

    def until_finished(self) -> Iterator[Progress]:
        """Its messages up to the one that the job is finished."""
        for progress in self.reports():
            yield progress
            if progress.HasField("finished"):
                return
