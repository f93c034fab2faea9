"""A job whose strategies learn from features: from videos to a fused model, and predictions by the same features."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from essp.cli.main import app
from essp.embedded.composition import Embedded
from essp_aggregator.assembly import assemble, final_checkpoints
from essp_common.artifacts import layout, scores
from essp_common.artifacts.clip_features import release_features, store_features, with_features
from essp_common.artifacts.fused_model import open_model
from essp_common.artifacts.scores import ScoreTable, VideoScores, by_video, clips_by_video
from essp_common.cache.memory import MemoryCache
from essp_common.cache.port import FrameCache
from essp_common.job.spec import AggregationSpec, JobSpec
from essp_common.job.status import JobState, JobStatus
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores
from essp_engine.aggregation.fused import fusion_of
from tests.flow.conftest import MakeJob
from tests.harness.embedded_jobs import finish

pytestmark = [pytest.mark.lane("promises"), pytest.mark.usefixtures("sketched")]

STORES = Stores(("file:///",))
FISHER_VECTOR = {"name": "fisher_vector", "pca": 4, "centres": 2}


def asking(spec: JobSpec, strategy: object = FISHER_VECTOR, **changes: Any) -> JobSpec:
    aggregation = AggregationSpec.model_validate({"strategies": [strategy], "features": True})
    return spec.model_copy(update={"aggregation": aggregation, **changes})


def run(spec: JobSpec) -> JobStatus:
    with Embedded(spec, Settings()) as job:
        finish(job)
        assert job.adapters.cache.usage().keys == 0, "features are freed once they are read"
        return job.status()


def test_a_job_fuses_by_features_and_predicts_with_them(make_job: MakeJob, videos: Path) -> None:
    spec = asking(make_job(epochs=1))
    assert run(spec).state is JobState.COMPLETED
    _, model = open_model(STORES, spec.output)
    assert (model.format, model.strategy, model.features) == (2, "fisher_vector", True)
    assert run(spec).state is JobState.COMPLETED, "done already: nothing is made again, and nothing is missed"

    assert CliRunner().invoke(app, ["report", spec.output]).exit_code == 0

    store = STORES.under(spec.output)
    predicts(spec, videos, by_video(scores.read(store, layout.fused_scores("test"))))


def test_whatever_strategy_is_chosen_predicts_as_it_was_evaluated(
    make_job: MakeJob, videos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One training; its features are kept, and fused by one strategy after the other."""
    kept, tables = MemoryCache(), {}

    def keep(cache: FrameCache, job: str, trainer: str, purpose: str, table: ScoreTable) -> None:
        whole = with_features(cache, job, trainer, purpose, table)
        store_features(kept, job, trainer, purpose, whole, lambda put: put())
        release_features(cache, job, trainer, purpose, table)
        tables[trainer, purpose] = whole

    spec = asking(make_job(epochs=1), "average")
    monkeypatch.setattr("essp_aggregator.assembly.release_features", keep)
    assert run(spec).state is JobState.COMPLETED
    monkeypatch.setattr("essp_aggregator.assembly.release_features", lambda *_: None)
    store = STORES.under(spec.output)
    finals = final_checkpoints(store, spec)
    assert finals is not None
    asked = {name: clips_by_video(tables[name, "test"]) for name in spec.trainers}
    for strategy in (
        {"name": "lstm", "pca": 4, "hidden": 3, "steps": 10},
        {"name": "vlad", "pca": 4, "centres": 2},
        {"name": "compact_bilinear", "size": 64},
        {"name": "attention", "weights": "fitted"},
    ):
        model = assemble(store, kept, spec.name, asking(spec, strategy), finals, STORES)
        assert (model.format, model.strategy, model.features) == (2, strategy["name"], strategy["name"] != "attention")
        predicts(spec, videos, fusion_of(store.below("model"), model)(asked))


def predicts(spec: JobSpec, videos: Path, expected: VideoScores) -> None:
    """`essp predict` gives the test videos the scores that the aggregator gave them."""
    done = CliRunner().invoke(app, ["predict", str(videos / "test"), "--model", spec.output, "--json"])
    assert done.exit_code == 0, done.output
    answers = json.loads(done.stdout)["videos"]
    found = {Path(one["video"]).parts[-2:]: {top["class"]: top["score"] for top in one["top"]} for one in answers}
    assert found == {
        Path(video).parts[-2:]: pytest.approx(dict(zip(expected.classes, row, strict=True)), abs=1e-3)
        for video, row in zip(expected.video_id, expected.probabilities.tolist(), strict=True)
    }


def test_features_that_are_lost_are_made_again_after_an_epoch_more(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the cache had been restarted between the ends of two trainers."""
    spec = asking(make_job(epochs=1))

    def lost(*_: object) -> None:
        with_features(MemoryCache(), *_[1:])  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr("essp_aggregator.assembly.with_features", lost)
        failed = run(spec)
    assert failed.state is JobState.FAILED
    assert "are no longer in the cache" in failed.reason
    assert run(spec.model_copy(update={"epochs": 2})).state is JobState.COMPLETED
