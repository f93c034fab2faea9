"""A sweep of a job, from videos to the one model that is kept: decoded once for all, each with a seed of its own."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from essp.cli.main import app
from essp.embedded.composition import Embedded
from essp.report.facts import read_run
from essp.report.sweeps import standings
from essp_common.artifacts import checkpoint
from essp_common.artifacts.fused_model import open_model
from essp_common.artifacts.manifest import MODEL_FILE
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobState, JobStatus
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores
from essp_engine.learning.models import build
from essp_engine.learning.randomness import seed_of
from tests.flow.conftest import MakeJob
from tests.harness.embedded_jobs import finish

pytestmark = [pytest.mark.lane("promises"), pytest.mark.usefixtures("sketched")]

STORES = Stores(("file:///",))


def with_rgb(spec: JobSpec, **fields: Any) -> JobSpec:
    """The job with its trainer of rgb alone, and these fields of it otherwise."""
    document = spec.model_dump(mode="json", exclude_defaults=True)
    document["streams"] = {"rgb": document["streams"]["rgb"]}
    document["trainers"] = {"rgb": document["trainers"]["rgb"] | fields}
    return JobSpec.model_validate(document)


def run(spec: JobSpec) -> JobStatus:
    with Embedded(spec, Settings()) as job:
        finish(job)
        assert job.adapters.cache.usage().keys == 0
        status = job.status()
    assert status.state is JobState.COMPLETED, status.reason
    return status


def test_a_sweep_is_decoded_once_for_all_and_its_best_is_the_model(make_job: MakeJob) -> None:
    one = run(with_rgb(make_job("one", epochs=1)))
    # The second one hardly moves from where it begins.
    spec = with_rgb(make_job("sweep", epochs=1), sweep={"optimizer.lr": [0.05, 1e-9, 0.02]}, keep=1)
    status = run(spec)
    assert status.counts.decoded == one.counts.decoded == one.counts.issued == status.counts.issued
    assert [trainer.name for trainer in status.trainers] == ["rgb-1", "rgb-2", "rgb-3"]
    readers = {f"trainer.{trainer.name}" for trainer in status.trainers}
    for phase in status.phases:
        assert phase.done == dict.fromkeys(readers, phase.clips), "each member has had each clip"

    output = STORES.under(spec.output)
    found = read_run(output, STORES)
    assert {trainer.seed for trainer in found.spec.trainers.values()} == {3, 4, 5}
    still = checkpoint.read_latest(output, "rgb-2")
    assert still is not None
    weights = checkpoint.load_arrays(output, still, [MODEL_FILE])[MODEL_FILE]["backbone.0.weight"]
    drawn = build(still.model, seed_of("weights", 4)).backbone.get_parameter("0.weight").detach()
    assert weights == pytest.approx(drawn.numpy(), abs=1e-6), "no member begins with the weights of another"

    best, *others = standings(found)["rgb"]
    _, model = open_model(STORES, spec.output)
    assert [member.trainer for member in model.members] == [best.trainer]
    assert model.validation is not None
    assert set(model.validation.members) == {best.trainer, *(other.trainer for other in others)}

    made = CliRunner().invoke(app, ["report", spec.output])
    assert made.exit_code == 0, made.output
    page = output.get("report/report.html").decode()
    assert "Sweep rgb" in page
    assert f"Best on validation: {best.label}." in page
    for value in ("0.05", "1e-09", "0.02"):
        assert f">{value}<" in page
