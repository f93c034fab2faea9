"""A job whose strategies learn from features: from videos to a fused model, and predictions by the same features."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from essp.cli.main import app
from essp.embedded.composition import Embedded
from essp_common.artifacts.clip_features import with_features
from essp_common.artifacts.fused_model import open_model
from essp_common.cache.memory import MemoryCache
from essp_common.job.spec import AggregationSpec, JobSpec
from essp_common.job.status import JobState, JobStatus
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores
from tests.flow.conftest import MakeJob

STRATEGIES = [{"name": "fisher_vector", "pca": 4, "centres": 2}]


def asking(spec: JobSpec, **changes: Any) -> JobSpec:
    aggregation = AggregationSpec.model_validate({"strategies": STRATEGIES, "features": True})
    return spec.model_copy(update={"aggregation": aggregation, **changes})


def run(spec: JobSpec) -> JobStatus:
    with Embedded(spec, Settings()) as job:
        while not job.ended(0.05):
            pass
        assert job.adapters.cache.usage().keys == 0, "features are freed once they are read"
        return job.status()


def test_a_job_fuses_by_features_and_predicts_with_them(make_job: MakeJob, videos: Path) -> None:
    spec = asking(make_job(epochs=1))
    assert run(spec).state is JobState.COMPLETED
    _, model = open_model(Stores(("file:///",)), spec.output)
    assert (model.format, model.strategy, model.features) == (2, "fisher_vector", True)
    assert run(spec).state is JobState.COMPLETED, "done already: nothing is made again, and nothing is missed"

    assert CliRunner().invoke(app, ["report", spec.output]).exit_code == 0

    done = CliRunner().invoke(app, ["predict", str(videos / "test"), "--model", spec.output, "--json"])
    assert done.exit_code == 0, done.output
    answers = json.loads(done.stdout)["videos"]
    assert model.test is not None
    right = [answer["class"] == Path(answer["video"]).parent.name for answer in answers]
    assert sum(right) / len(right) == pytest.approx(model.test.fused["top1"]), "which evaluation had"


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
