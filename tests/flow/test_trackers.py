"""A job whose figures go to TensorBoard and MLflow, too: they are those of its page."""

from __future__ import annotations

from pathlib import Path

import pytest

from essp.embedded.composition import Embedded
from essp_common.job.status import JobState
from essp_common.runtime.config import Settings
from tests.flow.conftest import MakeJob
from tests.harness.embedded_jobs import finish

pytestmark = pytest.mark.lane("promises")

GROUPS = {"train": "epoch", "validation": "validation", "test": "test"}
"""Phase -> what trackers call its figures."""
Figures = dict[str, list[tuple[int, float]]]
"""Tag -> clips trained until then, and the value."""


def test_tensorboard_and_mlflow_have_the_figures_of_the_page(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_job(epochs=2, clips=12)
    monkeypatch.setenv("ESSP_TENSORBOARD", str(tmp_path / "events"))
    monkeypatch.setenv("ESSP_MLFLOW", f"file://{tmp_path}/mlruns")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("ESSP_REPORT_INTERVAL_S", "1e-6")
    with Embedded(spec, Settings()) as job:
        finish(job)
        status, curves = job.status(), job.master.curves(spec.name)
    assert status.state is JobState.COMPLETED, status.reason

    for curve, trainer in zip(curves, status.trainers, strict=True):
        assert curve.trainer == trainer.name
        shown: Figures = {}
        for point in curve.points:
            for name, value in (("loss", point.loss), ("top1", point.top1)):
                shown.setdefault(f"train/{name}", []).append((12 * point.epoch + point.clips_done, value))
        for report in trainer.reports:
            clips = 24 if report.purpose == "test" else 12 * (report.epoch + 1)
            for name, value in report.metrics.items():
                shown.setdefault(f"{GROUPS[report.purpose]}/{name}", []).append((clips, value))
        assert [clips for clips, _ in shown["train/loss"]] == [4, 8, 12, 16, 20, 24]
        assert {"epoch/loss", "validation/video_top1", "test/video_top1"} < set(shown)
        for found in (
            in_tensorboard(tmp_path / "events" / spec.name / trainer.name),
            in_mlflow(f"file://{tmp_path}/mlruns", spec.name, trainer.name),
        ):
            assert set(found) == set(shown) | {"train/data_wait_ratio", "train/clips_per_s"}
            for tag, points in shown.items():
                assert [clips for clips, _ in found[tag]] == [clips for clips, _ in points]
                # TensorBoard's values have single precision.
                assert [value for _, value in found[tag]] == pytest.approx([value for _, value in points], rel=1e-6)


def in_tensorboard(folder: Path) -> Figures:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder))
    read.Reload()
    return {tag: [(point.step, point.value) for point in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def in_mlflow(uri: str, job: str, trainer: str) -> Figures:
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(job)
    assert experiment is not None
    [run] = [run for run in client.search_runs([experiment.experiment_id]) if run.info.run_name == trainer]
    assert run.info.status == "FINISHED"
    tags = run.data.metrics
    return {tag: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, tag)] for tag in tags}
