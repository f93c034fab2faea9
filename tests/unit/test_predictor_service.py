"""The predictor: the same scores as computed by hand, in any order of arrival; nothing lost when it dies."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from essp_common import codec, layout, scored, topics
from essp_common.bus.memory import MemoryBus
from essp_common.cache.memory import MemoryCache
from essp_common.cache.port import clip_key, stream_key
from essp_common.checkpoint import ModelDescription
from essp_common.failpoints import Failpoints
from essp_common.features.sampling import evenly_spaced
from essp_common.learning.augment import evaluation_view
from essp_common.learning.inputs import layout_of
from essp_common.learning.models import Classifier, Scores, state_bytes
from essp_common.learning.models import build as build_classifier
from essp_common.model import FusedModel, Member, open_model, write_model
from essp_common.objects.directory import DirectoryStore
from essp_common.pb.v1.messages_pb2 import (
    PREDICT,
    ClipReady,
    ClipRef,
    Control,
    FeatureReady,
    FrameCodec,
    JobSnapshot,
    PassPlan,
    Progress,
)
from essp_common.predictions import Prediction, read_predictions
from essp_common.scored import Scored, ScoredPart
from essp_common.scores import ScoreTable
from essp_common.segments import read_segments
from essp_common.spec import JobSpec
from essp_common.wiring import Adapters, Stores
from services.predictor.config import PredictorSettings
from services.predictor.scoring import DeviceLost
from services.predictor.service import build
from tests.unit.running import running

JOB = "predict-1"
CLASSES = ("left", "right", "up")
WEIGHTS = {"rgb": 0.25, "flow": 0.75}
FEATURES = {"rgb": ("rgb", 3, {"frames": 2}), "motion": ("flow", 4, {"length": 2})}
STREAM_OF = {"rgb": "rgb", "flow": "motion"}
CLIPS_PER_VIDEO = 2
VIDEOS = ("a.mp4", "b.mp4", "c.mp4")
CROP = 24
Frames = NDArray[np.uint8]


def frames_of(stream: str, index: int) -> Frames:
    """What upstream makes of the clip at an index: (5, 32, 40, 3) for rgb, (1, 32, 40, 4) for motion."""
    random = np.random.Generator(np.random.Philox(key=index + 100 * len(stream)))
    shape = (5, 32, 40, 3) if stream == "rgb" else (1, 32, 40, 4)
    return random.integers(0, 256, shape, dtype=np.uint8)


def described(trainer: str) -> ModelDescription:
    feature, channels, _ = FEATURES[STREAM_OF[trainer]]
    return ModelDescription(name="small", feature=feature, channels=channels, classes=CLASSES, dropout=0.5, crop=CROP)


def model_at(root: Path) -> str:
    """A fused model of two networks that were never trained."""
    store = DirectoryStore.from_url(f"file://{root}")
    members = []
    for seed, trainer in enumerate(WEIGHTS):
        data = state_bytes(build_classifier(described(trainer), seed))
        store.put(layout.model_weights(trainer), data)
        members.append(
            Member(
                trainer=trainer,
                stream=STREAM_OF[trainer],
                weight=WEIGHTS[trainer],
                model=described(trainer),
                file=f"{trainer}.safetensors",
                sha256=hashlib.sha256(data).hexdigest(),
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


def job_spec(root: Path, model: str = "") -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": JOB,
            "output": f"file://{root}/out",
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
            logits = classifier(torch.from_numpy(evaluation_view(frames, CROP, 1, layout_of("rgb"))[None])).logits
        total += weight * logits.softmax(dim=1)[0].double().numpy()
    return total


class World:
    """A bus with a predict job on it, and the upstream half of the pipeline."""

    def __init__(self, root: Path, spec: JobSpec | None = None) -> None:
        self.spec = spec or job_spec(root)
        self.store = DirectoryStore.from_url(f"file://{root}/out")
        self.cache = MemoryCache()
        self.bus = MemoryBus()
        self.adapters = Adapters(self.bus, self.cache, Stores(("file:///",)))
        self.bus.ensure_topics({t: topics.partitions(t) for t in (*topics.FIXED, topics.features("flow"))})
        self._reader = self.bus.subscribe([topics.PROGRESS], group=None)
        self.control(Control.START)

    def control(self, command: Control.Command) -> None:
        passes = [PassPlan(purpose=PREDICT, epoch=0, clips=len(VIDEOS) * CLIPS_PER_VIDEO)]
        snapshot = JobSnapshot(spec_json=self.spec.model_dump_json(), classes=CLASSES, passes=passes)
        control = Control(job=JOB, fence=2, command=command, snapshot=snapshot)
        self.bus.publish(topics.CONTROL, JOB.encode(), control.SerializeToString())

    def deliver(self, stream: str, index: int, skipped: str = "", damaged: bool = False) -> None:
        video, place = divmod(index, CLIPS_PER_VIDEO)
        clip = ClipRef(job=JOB, purpose=PREDICT, index=index, video_id=VIDEOS[video], first_frame=100 * place)
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
        self.bus.publish(topic, b"", message.SerializeToString(), partition=index % topics.DATA_PARTITIONS)

    def deliver_all(self, order: list[int]) -> None:
        for stream in FEATURES:
            for index in order:
                self.deliver(stream, index)

    @contextmanager
    def predictor(self, batch_clips: int = 4) -> Iterator[None]:
        settings = PredictorSettings(device="cpu", batch_clips=batch_clips)
        service = build(self.adapters, settings, "predictor-1")
        with running(service):
            yield

    def reports(self) -> Iterator[Progress]:
        """Its messages as they come; the test's time limit ends a wait in vain."""
        while True:
            for record in self._reader.poll(1, 1.0):
                yield Progress.FromString(record.value)

    def ending(self) -> Progress:
        return next(p for p in self.reports() if p.HasField("finished") or p.failed.kind not in ("", "lost"))

    def answers(self) -> list[Prediction]:
        rows, classes = read_predictions(self.store, layout.PREDICTIONS)
        assert classes == CLASSES
        return rows


@pytest.fixture
def world(tmp_path: Path) -> World:
    model_at(tmp_path)
    return World(tmp_path)


CLIPS = list(range(len(VIDEOS) * CLIPS_PER_VIDEO))


@pytest.mark.parametrize("order", [CLIPS, CLIPS[::-1], [3, 0, 5, 1, 4, 2]])
def test_scores_are_those_computed_by_hand_in_any_order(world: World, order: list[int]) -> None:
    with world.predictor():
        world.deliver_all(order)
        finished = world.ending().finished
    assert (finished.job, finished.stage) == (JOB, "predictor")
    assert finished.uri == f"{world.spec.output}/predictions.parquet"
    assert dict(finished.metrics) == {"videos": 3.0, "failed": 0.0}
    for video, answer in enumerate(world.answers()):
        mean = np.mean([expected(i) for i in (2 * video, 2 * video + 1)], axis=0)
        assert answer.video_id == VIDEOS[video]
        assert answer.scores == pytest.approx(mean, abs=1e-5)
        assert answer.class_name == CLASSES[int(mean.argmax())]
        assert (answer.clips, answer.error) == (2, None)


def test_answers_do_not_depend_on_when_clips_arrive(world: World, tmp_path_factory: pytest.TempPathFactory) -> None:
    with world.predictor():
        world.deliver_all(CLIPS)
        world.ending()
    root = tmp_path_factory.mktemp("again")
    model_at(root)
    other = World(root)
    with other.predictor():
        for index in CLIPS[::-1]:
            other.deliver("motion", index)
        for index in CLIPS:
            other.deliver("rgb", index)
        other.ending()
    assert other.store.get(layout.PREDICTIONS) == world.store.get(layout.PREDICTIONS)


def test_everything_is_freed_reported_and_committed(world: World) -> None:
    with world.predictor():
        world.deliver_all(CLIPS)
        trained: dict[str, list[int]] = {"predictor.rgb": [], "predictor.motion": []}
        for progress in world.reports():
            if progress.HasField("finished"):
                break
            assert (progress.job, progress.worker, progress.fence) == (JOB, "predictor-1", 2)
            trained[progress.trained.consumer] += progress.trained.indices
    assert {consumer: sorted(found) for consumer, found in trained.items()} == dict.fromkeys(trained, CLIPS)
    assert world.cache.usage().keys == 0
    assert world.bus.backlog(topics.CLIPS, f"predictor.rgb.{JOB}") == 0
    assert world.bus.backlog(topics.features("flow"), f"predictor.motion.{JOB}") == 0
    assert world.bus.backlog(topics.CONTROL, "predictor") == 0


def test_bytes_are_freed_before_a_batch_is_full(world: World) -> None:
    """A budget smaller than a batch must not stop the job."""
    with world.predictor(batch_clips=100):
        world.deliver("rgb", 0)
        progress = next(world.reports())
        assert (progress.trained.consumer, list(progress.trained.indices)) == ("predictor.rgb", [0])
        assert world.cache.usage().keys == 0


def test_videos_that_cannot_be_decoded_are_rows_with_the_reason(world: World) -> None:
    with world.predictor():
        for stream in FEATURES:
            for index in CLIPS:
                world.deliver(stream, index, skipped="truncated at frame 7" if index in (1, 2, 3) else "")
        assert dict(world.ending().finished.metrics) == {"videos": 3.0, "failed": 1.0}
    partly, lost, whole = world.answers()
    assert (partly.clips, partly.error) == (1, "truncated at frame 7")
    assert partly.scores == pytest.approx(expected(0), abs=1e-5)
    assert lost == Prediction("b.mp4", None, 0, (), "truncated at frame 7")
    assert (whole.clips, whole.error) == (2, None)


def test_damaged_bytes_are_made_again(world: World) -> None:
    with world.predictor():
        for index in CLIPS:
            world.deliver("motion", index)
            world.deliver("rgb", index, damaged=index == 3)
        lost = next(p for p in world.reports() if p.HasField("failed")).failed
        assert (lost.kind, lost.stream, lost.clip.index) == ("lost", "rgb", 3)
        world.deliver("rgb", 3)
        assert world.ending().HasField("finished")
    assert all(answer.clips == 2 for answer in world.answers())


def test_a_predictor_that_dies_begins_again(world: World) -> None:
    with world.predictor(batch_clips=1):
        for index in CLIPS[:4]:
            world.deliver("rgb", index)
        done = (i for p in world.reports() for i in p.trained.indices)
        assert sorted(next(done) for _ in range(4)) == CLIPS[:4]
    assert world.cache.usage().keys == 0
    with world.predictor():
        for index in CLIPS:
            world.deliver("motion", index)
        for index in CLIPS[4:]:
            world.deliver("rgb", index)
        for index in CLIPS[:4]:  # each is missed in its turn, and made again
            lost = next(p for p in world.reports() if p.HasField("failed")).failed
            assert (lost.kind, lost.stream, lost.clip.index) == ("lost", "rgb", index)
            world.deliver("rgb", index)
        assert world.ending().HasField("finished")
    assert [answer.clips for answer in world.answers()] == [2, 2, 2]


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part is one video."""
    monkeypatch.setattr(scored, "_PART_CLIPS", CLIPS_PER_VIDEO)


@pytest.mark.usefixtures("small_parts")
def test_a_predictor_that_dies_goes_on_with_the_part_it_was_in(world: World) -> None:
    with world.predictor():
        for index in CLIPS[:5]:
            world.deliver("rgb", index)
        for index in CLIPS[:3]:
            world.deliver("motion", index)
        deadline = time.monotonic() + 60
        while sum(info.key.endswith("done.json") for info in world.store.list(layout.PARTS)) < 3:
            assert time.monotonic() < deadline, "two parts of rgb and one of motion are not kept"
            time.sleep(0.01)
    assert world.bus.backlog(topics.CLIPS, f"predictor.rgb.{JOB}") == 1
    assert world.bus.backlog(topics.features("flow"), f"predictor.motion.{JOB}") == 1
    with world.predictor():
        world.deliver("rgb", 4)
        world.deliver("rgb", 5)
        for index in CLIPS[2:]:
            world.deliver("motion", index)
        lost = [p.failed.clip.index for p in _until_finished(world) if p.HasField("failed")]
    assert set(lost) <= {2, 4}, "nothing that was kept is made again"
    for video, answer in enumerate(world.answers()):
        assert answer.scores == pytest.approx(np.mean([expected(2 * video), expected(2 * video + 1)], axis=0), abs=1e-5)
    assert not list(world.store.list(layout.PARTS)), "answers are written: parts are of no more use"


def _until_finished(world: World) -> Iterator[Progress]:
    for progress in world.reports():
        yield progress
        if progress.HasField("finished"):
            return


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("order", [CLIPS, CLIPS[::-1]])
def test_parts_change_no_answer(world: World, order: list[int]) -> None:
    with world.predictor():
        for stream in FEATURES:
            for index in order:
                world.deliver(stream, index, skipped="truncated at frame 7" if index in (1, 2, 3) else "")
        assert dict(world.ending().finished.metrics) == {"videos": 3.0, "failed": 1.0}
    assert [(answer.video_id, answer.clips, answer.error) for answer in world.answers()] == [
        ("a.mp4", 1, "truncated at frame 7"),
        ("b.mp4", 0, "truncated at frame 7"),
        ("c.mp4", 2, None),
    ]


@pytest.mark.usefixtures("small_parts")
def test_servers_that_fail_while_answers_are_written_fail_no_job(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is anything scored twice: all of it was kept."""
    monkeypatch.setattr(
        "services.predictor.stream.failpoint", Failpoints("predictor.kept:1:raise,predictor.kept:3:raise").hit
    )
    monkeypatch.setattr("services.predictor.job.failpoint", Failpoints("predictor.written:1:raise").hit)
    with world.predictor():
        world.deliver_all(CLIPS)
        reports = list(_until_finished(world))
    assert [p.failed.kind for p in reports if p.HasField("failed")] == []
    trained = sorted((p.trained.consumer, i) for p in reports for i in p.trained.indices)
    assert trained == [(f"predictor.{name}", index) for name in sorted(FEATURES) for index in CLIPS]
    assert [answer.clips for answer in world.answers()] == [2, 2, 2]
    assert world.bus.backlog(topics.CLIPS, f"predictor.rgb.{JOB}") == 0


@pytest.mark.usefixtures("small_parts")
def test_segments_are_told_when_asked_for(world: World, tmp_path: Path) -> None:
    assert world.spec.predictor is not None
    asking = world.spec.predictor.model_copy(update={"segments": True})
    asked = World(tmp_path, world.spec.model_copy(update={"predictor": asking}))
    with asked.predictor():
        for stream in FEATURES:
            for index in CLIPS:
                asked.deliver(stream, index, skipped="truncated at frame 7" if index == 3 else "")
        assert asked.ending().HasField("finished")
    rows = read_segments(asked.store, layout.SEGMENTS)
    assert [row.video_id for row in rows] == sorted(row.video_id for row in rows)
    for row in rows:
        video = VIDEOS.index(row.video_id)
        own = [index for index in (2 * video, 2 * video + 1) if index != 3]
        assert row.score <= max(expected(index)[CLASSES.index(row.class_name)] for index in own) + 1e-5
        both = {(0, 54), (55, 110), (0, 110)}  # clips of 11 frames, at 0 and 100
        assert (row.first_frame, row.last_frame) in (both if len(own) == 2 else {(0, 10)})
    assert {row.video_id for row in rows} == set(VIDEOS)


@pytest.mark.usefixtures("small_parts")
def test_what_another_model_scored_is_not_taken(world: World, tmp_path: Path) -> None:
    _, model = open_model(world.adapters.stores, f"file://{tmp_path}/model")
    table = ScoreTable(
        ("a.mp4",), np.array([-1], np.int32), np.zeros(1, np.int64), np.ones((1, 3), np.float32), CLASSES
    )
    other = Scored(world.store, world.spec, 0, model.model_copy(update={"rule": "product"}))
    other.keep("rgb", 2, ScoredPart({"rgb": table}, {"b.mp4": "gone"}, {0: 17}))
    assert other.stop("rgb", 6) == 2
    part = other.read("rgb", 2)
    assert (part.tables["rgb"].video_id, part.errors, part.first_frames) == (("a.mp4",), {"b.mp4": "gone"}, {0: 17})
    same = Scored(world.store, world.spec, 0, model)
    assert [same.stop(stream, 6) for stream in FEATURES] == [0, 0]
    same.keep("rgb", 4, ScoredPart({}, {}, {}))
    assert same.stop("rgb", 6) == 0, "the part before it is missing"
    same.keep("rgb", 2, ScoredPart({}, {}, {}))
    assert same.stop("rgb", 6) == 4
    assert Scored(world.store, world.spec, 1, model).stop("rgb", 6) == 0, "another catalog"


def test_a_stopped_job_is_left_and_can_be_started_again(world: World) -> None:
    with world.predictor():
        world.deliver("rgb", 0)
        next(world.reports())
        world.control(Control.STOP)
        world.control(Control.START)
        for stream in FEATURES:
            for index in CLIPS:
                world.deliver(stream, index)
        assert world.ending().HasField("finished")


def test_a_model_that_is_missing_fails_the_job(tmp_path: Path) -> None:
    world = World(tmp_path)
    with world.predictor():
        failed = world.ending().failed
    assert (failed.stage, failed.clip.job) == ("predictor", JOB)
    assert "there is no model at" in failed.reason


def test_a_gpu_without_room_says_what_helps(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: Classifier, x: torch.Tensor) -> Scores:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Classifier, "forward", forward)
    with world.predictor():
        world.deliver_all(CLIPS)
        failed = world.ending().failed
    assert (failed.kind, "lower ESSP_BATCH_CLIPS" in failed.reason) == ("memory", True)


def test_a_gpu_that_fails_ends_the_process_and_not_the_job(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: Classifier, x: torch.Tensor) -> Scores:
        raise torch.AcceleratorError("CUDA error: uncorrectable ECC error")

    world.deliver_all(CLIPS)
    with monkeypatch.context() as patched:
        patched.setattr(Classifier, "forward", forward)
        service = build(world.adapters, PredictorSettings(device="cpu"), "predictor-1")
        with pytest.raises(DeviceLost, match="ECC"):
            service.run()
    assert world.bus.backlog(topics.CONTROL, "predictor") == 1, "the job is handed out again"
    with world.predictor():
        for progress in _until_finished(world):
            if progress.HasField("failed"):
                assert progress.failed.kind == "lost"
                world.deliver(progress.failed.stream, progress.failed.clip.index)


def test_training_jobs_are_none_of_its_business(world: World) -> None:
    training = JobSpec.model_validate({"name": "t", "output": "file:///t", "trainers": {"rgb": {"stream": "rgb"}}})
    snapshot = JobSnapshot(spec_json=training.model_dump_json(), classes=CLASSES)
    control = Control(job="t", fence=1, command=Control.START, snapshot=snapshot)
    world.bus.publish(topics.CONTROL, b"t", control.SerializeToString())
    with world.predictor():
        world.deliver_all(CLIPS)
        assert world.ending().job == JOB
    assert world.bus.backlog(topics.CONTROL, "predictor") == 0


def test_top_classes_are_the_likeliest_first() -> None:
    answer = Prediction("a", "up", 1, (0.2, 0.1, 0.7), None)
    assert answer.top(CLASSES, 2) == [("up", 0.7), ("left", 0.2)]
    assert Prediction("a", None, 0, (), "gone").top(CLASSES, 5) == []
