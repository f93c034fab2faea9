"""A strategy of another package, by name: from a job to predictions, and what is said once it is gone."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from essp.cli.main import app
from essp.embedded.composition import Embedded
from essp_common.artifacts.fused_model import open_model
from essp_common.job.spec import AggregationSpec, JobSpec
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores
from tests.flow.conftest import MakeJob
from tests.harness.embedded_jobs import complete

pytestmark = pytest.mark.lane("promises")

QUANTILE = '''
import numpy as np
from pydantic import Field

from essp_engine.aggregation.port import StrategyParams
from essp_common.artifacts.scores import fuse


class QuantileParams(StrategyParams):
    """Which one."""

    share: float = Field(0.5, gt=0, le=1)
    """0.5: the median."""


class Quantile:
    """For each class a quantile of its clip scores, instead of their mean."""

    name = "quantile"
    summary = "A quantile of the clip scores of each class."
    needs = "scores"
    io = "random"
    Params = QuantileParams
    rule = None

    def __init__(self, params):
        self._share = params.share

    def fit(self, parts):
        return {trainer: np.array([1 / len(parts)]) for trainer in parts}

    def predict(self, parts, state):
        return fuse({trainer: self._pooled(part) for trainer, part in parts.items()}, self.shares(state), "mean")

    def shares(self, state):
        return {trainer: float(share[0]) for trainer, share in state.items()}

    def _pooled(self, part):
        clips = np.split(part.clips.astype(np.float64), part.first[1:-1])
        scores = np.stack([np.quantile(own, self._share, axis=0) for own in clips])
        return part.pooled(scores / scores.sum(axis=1, keepdims=True))
'''


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """It is installed, and nothing of it stays imported."""
    site = tmp_path / "site"
    information = site / "acme_fusion-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: acme_fusion\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[essp.aggregators]\nquantile = acme_fusion:Quantile\n")
    (site / "acme_fusion.py").write_text(QUANTILE)
    monkeypatch.syspath_prepend(str(site))
    yield site
    sys.modules.pop("acme_fusion", None)


def trying(spec: JobSpec, *strategies: object) -> JobSpec:
    return spec.model_copy(update={"aggregation": AggregationSpec.model_validate({"strategies": list(strategies)})})


def test_it_fuses_a_job_and_its_model_predicts(make_job: MakeJob, videos: Path, package: Path) -> None:
    spec = trying(make_job(epochs=1), {"name": "quantile", "share": [0.25, 0.75]})
    with Embedded(spec, Settings()) as job:
        complete(job)
    _, model = open_model(Stores(("file:///",)), spec.output)
    assert (model.format, model.strategy, model.weights) == (2, "quantile", {"rgb": 0.5, "flow": 0.5})
    assert [tried.label for tried in model.strategies] == ["quantile share=0.25", "quantile share=0.75"]

    command = ["predict", str(videos / "test"), "--model", spec.output, "--json"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    answers = json.loads(done.stdout)["videos"]
    assert model.test is not None
    right = [answer["class"] == Path(answer["video"]).parent.name for answer in answers]
    assert sum(right) / len(right) == pytest.approx(model.test.fused["top1"])

    (package / "acme_fusion-1.0.dist-info" / "entry_points.txt").write_text("")
    (package / "touched").mkdir()  # as an installation changes the folder, so that metadata are read again
    gone = CliRunner().invoke(app, command)
    assert gone.exit_code != 0
    assert "the strategy that fused the model cannot be used here: no aggregator 'quantile' is installed" in str(
        gone.exception
    )


def test_essp_lists_and_explains_it() -> None:
    shown = CliRunner().invoke(app, ["aggregator", "ls"], env={"COLUMNS": "200"})  # in one line
    assert "A quantile of the clip scores of each class." in shown.output
    explained = CliRunner().invoke(app, ["aggregator", "describe", "quantile"])
    assert "0.5: the median." in explained.output
