"""Figures of trainings reach TensorBoard and MLflow once each, and a tracker that is down holds nobody up."""

from __future__ import annotations

import errno
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from essp_common.job.spec import JobSpec
from essp_common.job.status import JobState
from essp_common.pb.v1.messages_pb2 import TEST, TRAIN, VALIDATION, PhaseReport, Progress, Purpose, StepReport
from essp_master.tracking.mlflow import MLflow
from essp_master.tracking.tensorboard import TensorBoard
from essp_master.tracking.tracking import Begin, End, Item, Point, RunName, Tracker, Tracking, points_of
from tests.harness.refused import refused
from tests.harness.waiting import LONGEST_S

EPOCH = 100
SPEC = JobSpec.model_validate(
    {
        "name": "seven",
        "output": "file:///out/o'brien/seven",
        "data": {"catalog": "file:///catalog.parquet"},
        "clip": {"frames": 1},
        "streams": {"rgb": {}},
        "trainers": {"rgb": {"stream": "rgb", "optimizer": {"lr": 0.25}}},
        "epochs": 3,
    }
)


def step(epoch: int, clips: int, loss: float, purpose: Purpose = TRAIN) -> Progress:
    report = StepReport(trainer="rgb", purpose=purpose, epoch=epoch, clips_done=clips, loss=loss, top1=0.5)
    return Progress(job="seven", step=report)


def phase(purpose: Purpose, epoch: int, **metrics: float) -> Progress:
    return Progress(job="seven", phase_report=PhaseReport(trainer="rgb", purpose=purpose, epoch=epoch, metrics=metrics))


def run(tracker: Tracker, reports: Sequence[Progress], resumed: bool = False, state: JobState | None = None) -> None:
    """A master's life: a job begins, reports, ends perhaps."""
    tracking = Tracking([tracker], lambda: 1000.0)
    take = tracking.follow(SPEC, EPOCH, {"rgb"} if resumed else set())
    assert take is not None
    for report in reports:
        take(report)
    if state is not None:
        tracking.ended(SPEC, state)
    tracking.close(LONGEST_S)


def test_points_stand_at_the_clips_trained_until_then() -> None:
    reports = [
        step(1, 32, 0.7),
        step(1, 0, 0.9),  # has not begun
        step(1, 32, 0.7, VALIDATION),
        phase(TRAIN, 1, loss=0.6),
        phase(VALIDATION, 1, loss=0.5, top1=float("nan")),
        phase(TEST, 0, top1=0.75),
        Progress(job="seven"),
    ]
    found = [(p.tag, p.clips, p.value) for r in reports for p in points_of(r, SPEC, EPOCH, 1.0)]
    assert found == [
        ("train/loss", 132, 0.7),
        ("train/top1", 132, 0.5),
        ("train/data_wait_ratio", 132, 0.0),
        ("train/clips_per_s", 132, 0.0),
        ("epoch/loss", 200, 0.6),
        ("validation/loss", 200, 0.5),
        ("test/top1", 300, 0.75),
    ]


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    """As TensorBoard itself reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder))
    read.Reload()
    return [(point.step, round(point.value, 3)) for point in read.Scalars(tag)]


def test_tensorboard_reads_each_point_once_also_after_a_resume(tmp_path: Path) -> None:
    first = [step(0, 32, 0.9), step(0, 64, 0.8), step(0, 96, 0.7), step(0, 64, 0.8), step(0, 96, 0.7)]  # resumed once
    run(TensorBoard(tmp_path), [*first, phase(VALIDATION, 0, loss=0.6)])
    run(TensorBoard(tmp_path), [step(0, 96, 0.75), step(1, 32, 0.5), step(1, 32, 0.5)], resumed=True)
    folder = tmp_path / "seven" / "rgb"
    assert scalars(folder, "train/loss") == [(32, 0.9), (64, 0.8), (96, 0.75), (132, 0.5)]
    assert len(list(folder.iterdir())) == 2


def test_a_job_that_begins_anew_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    run(TensorBoard(tmp_path), [step(0, 32, 0.9), step(0, 64, 0.8)])
    run(TensorBoard(tmp_path), [step(0, 32, 0.4)], state=JobState.COMPLETED)
    assert scalars(tmp_path / "seven" / "rgb", "train/loss") == [(32, 0.4)]


def test_a_folder_that_may_not_be_written_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with refused("ESSP_TENSORBOARD", "refused"):
        TensorBoard(tmp_path / "file" / "logs")


def test_a_folder_that_cannot_be_written_to_is_named_once_and_stops_no_other_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "six").touch()  # where a folder would have to be
    barred, other = (RunName(job, "rgb", f"file:///out/{job}") for job in ("six", "seven"))
    tensorboard = TensorBoard(tmp_path)
    for clips in (32, 64):
        tensorboard.write([Point(run, "train/loss", clips, 0.5, 1.0) for run in (barred, other)])
    assert [step for step, _ in scalars(tmp_path / "seven" / "rgb", "train/loss")] == [32, 64]
    assert caplog.text.count("trainer rgb of job six is not tracked any more") == 1
    (tmp_path / "six").unlink()
    tensorboard.write([Begin(barred, {}, False), Point(barred, "train/loss", 96, 0.5, 1.0)])
    assert [step for step, _ in scalars(tmp_path / "six" / "rgb", "train/loss")] == [96]
    tensorboard.close()


def test_a_full_disk_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensorboard, training = TensorBoard(tmp_path), RunName("seven", "rgb", "file:///out/seven")
    points = [Point(training, "train/loss", 32, 0.5, 1.0)]
    with monkeypatch.context() as full:
        full.setattr(Path, "mkdir", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(OSError, match="No space"):
            tensorboard.write(points)
    tensorboard.write(points)
    assert scalars(tmp_path / "seven" / "rgb", "train/loss") == [(32, 0.5)]
    tensorboard.close()


def test_mlflow_has_one_run_for_a_training_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = f"file://{tmp_path}/mlruns"
    run(MLflow(uri), [step(0, 32, 0.9), step(0, 64, 0.8)])
    run(MLflow(uri), [step(0, 64, 0.8), step(0, 96, 0.7)], resumed=True, state=JobState.COMPLETED)
    client = MlflowClient(uri)
    [experiment] = [each.experiment_id for each in client.search_experiments() if each.name == "seven"]
    [training] = client.search_runs([experiment])
    history = client.get_metric_history(training.info.run_id, "train/loss")
    assert [(metric.step, metric.value) for metric in history] == [(32, 0.9), (64, 0.8), (96, 0.7)]
    assert training.info.status == "FINISHED"
    assert training.info.run_name == "rgb"
    assert training.data.params["optimizer.lr"] == "0.25"
    run(MLflow(uri), [step(0, 32, 0.4)])
    assert len(client.search_runs([experiment])) == 2


def runs_in(client: Any, job: str) -> list[Any]:
    experiment = client.get_experiment_by_name(job)
    return list(client.search_runs([experiment.experiment_id]))


def losses_of(client: Any, job: str) -> list[int]:
    (training,) = runs_in(client, job)
    return [metric.step for metric in client.get_metric_history(training.info.run_id, "train/loss")]


def test_nobody_is_told_that_mlflow_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.telemetry.utils import is_telemetry_disabled

    for name in ("MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK", "CI"):
        monkeypatch.delenv(name, raising=False)
    MLflow(f"file://{tmp_path}")
    assert is_telemetry_disabled()


@pytest.mark.parametrize("deleted", ["run", "experiment"])
def test_what_was_deleted_in_mlflow_is_named_once_and_stops_no_other_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, deleted: str
) -> None:
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = f"file://{tmp_path}/mlruns"
    tracker, client = MLflow(uri), MlflowClient(uri)
    gone, stays = RunName("gone", "rgb", "file:///gone"), RunName("stays", "rgb", "file:///stays")
    tracker.write([Begin(run, {}, True) for run in (gone, stays)])
    (training,) = runs_in(client, "gone")
    if deleted == "run":
        client.delete_run(training.info.run_id)
    else:
        client.delete_experiment(training.info.experiment_id)
    for clips in (32, 64):
        tracker.write([Point(run, "train/loss", clips, 0.5, 1.0) for run in (gone, stays)])
    tracker.write([End(run, JobState.COMPLETED) for run in (gone, stays)])
    assert losses_of(client, "stays") == [32, 64]
    assert runs_in(client, "stays")[0].info.status == "FINISHED"
    assert caplog.text.count("trainer rgb of job gone is not tracked any more") == 1
    if deleted == "run":
        tracker.write([Begin(gone, {}, False), Point(gone, "train/loss", 96, 0.5, 1.0)])
        assert losses_of(client, "gone") == [96], "it has begun again"


@pytest.mark.parametrize("answers", [True, False])
def test_what_a_server_that_fails_is_offered_again_begins_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    failure = MlflowException("it has failed") if answers else ConnectionError("refused")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = f"file://{tmp_path}/mlruns"
    tracker, client = MLflow(uri), MlflowClient(uri)
    seven = RunName("seven", "rgb", "file:///seven")
    items: list[Item] = [Begin(seven, {}, True), Point(seven, "train/loss", 32, 0.5, 1.0)]

    def fails(*_: object) -> None:
        raise failure

    with monkeypatch.context() as failing:
        failing.setattr(MlflowClient, "get_metric_history", fails)
        with pytest.raises(type(failure)):
            tracker.write(items)
    tracker.write(items)
    assert losses_of(client, "seven") == [32]


class Down(Tracker):
    """Takes nothing until it is told to."""

    name = "down"

    def __init__(self) -> None:
        self.up = threading.Event()
        self.asked = threading.Event()
        self.written: list[Item] = []

    def write(self, items: Sequence[Item]) -> None:
        self.asked.set()
        if not self.up.is_set():
            raise ConnectionError("refused")
        self.written += items

    def close(self) -> None:
        """Nothing is open."""


def test_a_tracker_that_is_down_gets_everything_later_and_holds_nobody_up(caplog: pytest.LogCaptureFixture) -> None:
    tracker = Down()
    tracking = Tracking([tracker])
    take = tracking.follow(SPEC, EPOCH, ())
    assert take is not None
    take(step(0, 32, 0.9))
    assert tracker.asked.wait(LONGEST_S)
    tracker.up.set()
    take(step(0, 64, 0.8))
    tracking.close(LONGEST_S)
    assert [i.clips for i in tracker.written if isinstance(i, Point) and i.tag == "train/loss"] == [32, 64]
    assert "down: points of training runs cannot be written: refused" in caplog.text


def test_what_is_too_much_is_left_out(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("essp_master.tracking.tracking.QUEUED", 3)
    tracking = Tracking([Down()])
    take = tracking.follow(SPEC, EPOCH, ())
    assert take is not None
    for clips in range(1, 50):
        take(step(0, clips, 0.5))
    tracking.close(LONGEST_S)
    assert "down is behind" in caplog.text


def test_beginnings_and_ends_are_never_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("essp_master.tracking.tracking.QUEUED", 3)
    tracker = Down()
    tracking = Tracking([tracker])
    take = tracking.follow(SPEC, EPOCH, ())
    assert take is not None
    for clips in range(1, 50):
        take(step(0, clips, 0.5))
    later = SPEC.model_copy(update={"name": "eight"})
    tracking.follow(later, EPOCH, ())
    for spec in (SPEC, later):
        tracking.ended(spec, JobState.COMPLETED)
    tracker.up.set()
    tracking.close(LONGEST_S)
    told = [(type(item), item.run.job) for item in tracker.written if not isinstance(item, Point)]
    assert told == [(Begin, "seven"), (Begin, "eight"), (End, "seven"), (End, "eight")]


def test_without_trackers_nobody_listens() -> None:
    assert Tracking([]).follow(SPEC, EPOCH, ()) is None
