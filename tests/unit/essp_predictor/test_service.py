"""The predictor: the same scores as computed by hand, in any order of arrival; nothing lost when it dies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from essp_common import topics
from essp_common.artifacts import layout
from essp_common.artifacts.fused_model import read_model, write_model
from essp_common.artifacts.predictions import Prediction
from essp_common.bus.memory import MemoryBus, MemorySubscription
from essp_common.bus.port import Record
from essp_common.errors import DeviceLost
from essp_common.job.spec import JobSpec
from essp_common.messages.control import ControlFeed
from essp_common.objects.directory import DirectoryStore
from essp_common.pb.v1.messages_pb2 import (
    LOST,
    MEMORY,
    PREDICTOR,
    Control,
    JobSnapshot,
)
from essp_engine.learning.models import Classifier
from essp_engine.learning.scores import Scores
from essp_predictor import service
from essp_predictor.config import PredictorSettings
from essp_predictor.service import build
from tests.harness.predictor_bench import (
    CLASSES,
    CLIPS,
    FEATURES,
    JOB,
    VIDEOS,
    PredictorBench,
    expected,
    model_at,
)
from tests.harness.refused import refused
from tests.harness.rounding import STORED, TOLERANCE
from tests.harness.waiting import until

ROUNDING = STORED + TOLERANCE
"""Of a score that was computed in another batch and stored."""


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("order", [CLIPS, CLIPS[::-1], [3, 0, 5, 1, 4, 2]])
def test_scores_are_those_computed_by_hand_in_any_order(bench: PredictorBench, order: list[int]) -> None:
    with bench.predictor():
        bench.deliver_all(order)
        finished = bench.ending().finished
    assert (finished.job, finished.stage) == (JOB, PREDICTOR)
    assert finished.uri == f"{bench.spec.output}/predictions.parquet"
    assert dict(finished.metrics) == {"videos": 3.0, "failed": 0.0}
    for video, answer in enumerate(bench.answers()):
        mean = np.mean([expected(i) for i in (2 * video, 2 * video + 1)], axis=0)
        assert answer.video_id == VIDEOS[video]
        assert answer.scores == pytest.approx(mean, abs=ROUNDING)
        assert answer.class_name == CLASSES[int(mean.argmax())]
        assert (answer.clips, answer.error) == (2, None)


def test_a_predictor_without_a_share_says_that_it_stands_by(
    bench: PredictorBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(service, "_POLL_S", 0.01)
    monkeypatch.setattr(service, "_STANDS_BY", 2)
    monkeypatch.setattr(MemorySubscription, "partitions", 0)
    with bench.predictor():
        until(lambda: "stands by" in caplog.text)


def test_answers_do_not_depend_on_when_clips_arrive(
    bench: PredictorBench, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with bench.predictor():
        bench.deliver_all(CLIPS)
        bench.ending()
    root = tmp_path_factory.mktemp("again")
    model_at(root)
    other = PredictorBench(root)
    with other.predictor():
        for index in CLIPS[::-1]:
            other.deliver("motion", index)
        for index in CLIPS:
            other.deliver("rgb", index)
        other.ending()
    assert other.store.get(layout.PREDICTIONS) == bench.store.get(layout.PREDICTIONS)


def test_everything_is_freed_reported_and_committed(bench: PredictorBench) -> None:
    with bench.predictor():
        bench.deliver_all(CLIPS)
        trained: dict[str, list[int]] = {"predictor.rgb": [], "predictor.motion": []}
        for progress in bench.reports():
            if progress.HasField("finished"):
                break
            assert (progress.job, progress.worker, progress.fence) == (JOB, "predictor-1", 2)
            trained[progress.trained.consumer] += progress.trained.indices
    assert {consumer: sorted(found) for consumer, found in trained.items()} == dict.fromkeys(trained, CLIPS)
    assert bench.cache.usage().keys == 0
    assert bench.bus.backlog(topics.CLIPS, f"predictor.rgb.{JOB}") == 0
    assert bench.bus.backlog(topics.features("flow"), f"predictor.motion.{JOB}") == 0
    assert bench.bus.backlog(topics.CONTROL, "predictor") == 0


def test_bytes_are_freed_before_a_batch_is_full(bench: PredictorBench) -> None:
    """A budget smaller than a batch must not stop the job."""
    with bench.predictor(batch_clips=100):
        bench.deliver("rgb", 0)
        progress = next(bench.reports())
        assert (progress.trained.consumer, list(progress.trained.indices)) == ("predictor.rgb", [0])
        assert bench.cache.usage().keys == 0


def test_a_network_that_is_not_installed_here_fails_the_job_by_name(tmp_path: Path) -> None:
    """As where its trainer ran in an image of its own."""
    uri = model_at(tmp_path)
    store = DirectoryStore.from_url(f"file://{tmp_path}")
    found = read_model(DirectoryStore.from_url(uri))
    members = [m.model_copy(update={"model": m.model.model_copy(update={"name": "ownnet"})}) for m in found.members]
    write_model(store, found.model_copy(update={"members": tuple(members)}))
    bench = PredictorBench(tmp_path)
    with bench.predictor():
        failed = bench.ending().failed
    assert failed.reason.startswith("the predictor cannot make the network of trainer rgb: no model 'ownnet'; ")
    assert "wherever master, trainers and predictors run" in failed.reason


@pytest.mark.usefixtures("double_precision")
def test_videos_that_cannot_be_decoded_are_rows_with_the_reason(bench: PredictorBench) -> None:
    with bench.predictor():
        for stream in FEATURES:
            for index in CLIPS:
                bench.deliver(stream, index, skipped="truncated at frame 7" if index in (1, 2, 3) else "")
        assert dict(bench.ending().finished.metrics) == {"videos": 3.0, "failed": 1.0}
    partly, lost, whole = bench.answers()
    assert (partly.clips, partly.error) == (1, "truncated at frame 7")
    assert partly.scores == pytest.approx(expected(0), abs=ROUNDING)
    assert lost == Prediction("b.mp4", None, 0, (), "truncated at frame 7")
    assert (whole.clips, whole.error) == (2, None)


def test_damaged_bytes_are_made_again(bench: PredictorBench) -> None:
    with bench.predictor():
        for index in CLIPS:
            bench.deliver("motion", index)
            bench.deliver("rgb", index, damaged=index == 3)
        lost = next(p for p in bench.reports() if p.HasField("failed")).failed
        assert (lost.kind, lost.stream, lost.clip.index) == (LOST, "rgb", 3)
        bench.deliver("rgb", 3)
        assert bench.ending().HasField("finished")
    assert all(answer.clips == 2 for answer in bench.answers())


def test_a_predictor_that_dies_begins_again(bench: PredictorBench) -> None:
    with bench.predictor(batch_clips=1):
        for index in CLIPS[:4]:
            bench.deliver("rgb", index)
        done = (i for p in bench.reports() for i in p.trained.indices)
        assert sorted(next(done) for _ in range(4)) == CLIPS[:4]
    assert bench.cache.usage().keys == 0
    with bench.predictor():
        for index in CLIPS:
            bench.deliver("motion", index)
        for index in CLIPS[4:]:
            bench.deliver("rgb", index)
        for index in CLIPS[:4]:  # each is missed in its turn, and made again
            lost = next(p for p in bench.reports() if p.HasField("failed")).failed
            assert (lost.kind, lost.stream, lost.clip.index) == (LOST, "rgb", index)
            bench.deliver("rgb", index)
        assert bench.ending().HasField("finished")
    assert [answer.clips for answer in bench.answers()] == [2, 2, 2]


def test_a_stopped_job_is_left_and_can_be_started_again(bench: PredictorBench) -> None:
    with bench.predictor():
        bench.deliver("rgb", 0)
        next(bench.reports())
        with bench.bus.lock:  # so that nobody sees the job stopped
            bench.control(Control.STOP)
            bench.control(Control.START, fence=3)
        bench.deliver_all(CLIPS[:-1])  # without the last clip, the first run cannot finish before it hears of the stop
        assert next(report for report in bench.reports() if report.fence == 3 or report.HasField("finished")).fence == 3
        bench.deliver_all(CLIPS)
        assert bench.finished().fence == 3


def test_a_job_is_started_again_before_everybody_has_heard_so(
    bench: PredictorBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late(ControlFeed):
        """Knows that the job was stopped, and not that it was started again."""

        def _news(self, record: Record) -> Control | None:
            control = Control.FromString(record.value)
            return None if (control.command, control.fence) == (Control.START, 3) else super()._news(record)

    monkeypatch.setattr("essp_predictor.service.ControlFeed", Late)
    bench.control(Control.STOP)
    bench.control(Control.START, fence=3)
    with bench.predictor():
        bench.deliver_all(CLIPS)
        assert bench.ending().fence == 3


def test_a_job_that_waited_in_the_queue_is_predicted(tmp_path: Path) -> None:
    model_at(tmp_path)
    bench = PredictorBench(tmp_path, begins=Control.PAUSE)
    with bench.predictor():
        bench.deliver_all(CLIPS)
        bench.control(Control.RESUME)
        assert bench.ending().HasField("finished")
    assert bench.bus.backlog(topics.CONTROL, "predictor") == 0


def test_a_run_that_goes_on_is_not_begun_again(bench: PredictorBench) -> None:
    """After a pause, or under another master: all belongs to what is in hand, which a successor gets in its place."""
    with bench.predictor():
        bench.deliver("rgb", 0)
        next(bench.reports())
        bench.control(Control.PAUSE)
        bench.control(Control.RESUME)
        bench.control(Control.START, fence=3, since=2)
    assert bench.bus.backlog(topics.CONTROL, "predictor") == 4
    with bench.predictor():
        bench.deliver_all(CLIPS[1:])
        bench.deliver("motion", 0)
        assert bench.finished().fence == 2
    assert bench.bus.backlog(topics.CONTROL, "predictor") == 0


def test_a_command_that_comes_again_while_its_job_runs_is_done_with_it(
    bench: PredictorBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka goes back to the last commit where messages were lost for good."""
    opened: list[MemorySubscription] = []
    subscribe = MemoryBus.subscribe

    def kept(bus: MemoryBus, names: Sequence[str], group: str | None, *more: Any, **named: Any) -> MemorySubscription:
        subscription = subscribe(bus, names, group, *more, **named)
        if group == "predictor":
            opened.append(subscription)
        return subscription

    monkeypatch.setattr(MemoryBus, "subscribe", kept)
    with bench.predictor():
        bench.deliver("rgb", 0)
        next(bench.reports())
        [subscription] = opened
        with bench.bus.lock:
            slots = list(subscription.slots)
            subscription.take([])
            subscription.take(slots)
        bench.control(Control.RESUME)  # is done as soon as it is received, which is after the one that has come again
        until(lambda: any(watermark._done for watermark in subscription.slots.values()))
        bench.deliver_all(CLIPS[1:])
        bench.deliver("motion", 0)
        assert bench.finished()
    assert bench.bus.backlog(topics.CONTROL, "predictor") == 0


def test_a_model_that_is_missing_fails_the_job_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`essp predict` shows what is logged as an error, and why the job failed."""
    bench = PredictorBench(tmp_path)
    with bench.predictor():
        failed = bench.ending().failed
    assert (failed.stage, failed.clip.job) == (PREDICTOR, JOB)
    assert "there is no model at" in failed.reason
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_gpu_without_room_says_what_helps(bench: PredictorBench, monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: Classifier, x: torch.Tensor) -> Scores:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Classifier, "forward", forward)
    with bench.predictor():
        bench.deliver_all(CLIPS)
        failed = bench.ending().failed
    assert (failed.kind, "lower ESSP_BATCH_CLIPS" in failed.reason) == (MEMORY, True)


def test_a_gpu_that_fails_ends_the_process_and_not_the_job(
    bench: PredictorBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(self: Classifier, x: torch.Tensor) -> Scores:
        raise torch.AcceleratorError("CUDA error: uncorrectable ECC error")

    bench.deliver_all(CLIPS)
    with monkeypatch.context() as patched:
        patched.setattr(Classifier, "forward", forward)
        service = build(bench.adapters, PredictorSettings(device="cpu"), "predictor-1")
        with pytest.raises(DeviceLost, match="ECC"):
            service.run()
    assert bench.bus.backlog(topics.CONTROL, "predictor") == 1, "the job is handed out again"
    with bench.predictor():
        bench.finished()


def test_a_gpu_that_is_not_there_fails_the_process_and_no_job(
    bench: PredictorBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with refused("ESSP_DEVICE", "unsupported"):
        build(bench.adapters, PredictorSettings(device="cuda"), "predictor-1")


def test_training_jobs_are_none_of_its_business(bench: PredictorBench) -> None:
    training = JobSpec.model_validate({"name": "t", "output": "file:///t", "trainers": {"rgb": {"stream": "rgb"}}})
    snapshot = JobSnapshot(spec_json=training.model_dump_json(), classes=CLASSES)
    control = Control(job="t", fence=1, command=Control.START, snapshot=snapshot)
    bench.bus.publish(topics.CONTROL, b"t", control.SerializeToString())
    with bench.predictor():
        bench.deliver_all(CLIPS)
        assert bench.ending().job == JOB
    assert bench.bus.backlog(topics.CONTROL, "predictor") == 0


def test_top_classes_are_the_likeliest_first() -> None:
    answer = Prediction("a", "up", 1, (0.2, 0.1, 0.7), None)
    assert answer.top(CLASSES, 2) == [("up", 0.7), ("left", 0.2)]
    assert Prediction("a", None, 0, (), "gone").top(CLASSES, 5) == []
