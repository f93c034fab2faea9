"""A job with real trainers that is changed while it runs, interrupted, and resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from essp.cli.main import app
from essp.embedded.composition import Embedded
from essp_common.artifacts import checkpoint
from essp_common.artifacts.fused_model import open_model
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobStatus
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores
from tests.flow.conftest import MakeJob
from tests.harness.embedded_jobs import complete
from tests.harness.journeys import weights_of

pytestmark = [pytest.mark.lane("promises"), pytest.mark.usefixtures("sketched")]

LR, UPDATES = "trainers.rgb.optimizer.lr", 6
"""Of an epoch: 24 clips, 4 at once."""
STORES = Stores(("file:///",))


def completed(spec: JobSpec) -> JobStatus:
    with Embedded(spec, Settings()) as job:
        complete(job)
        return job.status()


def with_rate(spec: JobSpec, **fields: Any) -> JobSpec:
    """The job with these fields in the optimizer of `rgb`."""
    rgb = spec.trainers["rgb"]
    rgb = rgb.model_copy(update={"optimizer": rgb.optimizer.model_copy(update=fields)})
    return spec.model_copy(update={"trainers": {**spec.trainers, "rgb": rgb}})


@pytest.mark.lane("long")
def test_a_changed_job_that_is_interrupted_equals_one_that_had_the_change_in_its_schedule(
    make_job: MakeJob, tmp_path: Path
) -> None:
    spec = make_job("changed", clips=24, epochs=3, checkpoint=8)
    lr = spec.trainers["rgb"].optimizer.lr
    with Embedded(spec, Settings()) as job:
        while not job.ended(0.01) and job.status().progress.done < 12:
            pass
        job.master.change("changed", {LR: lr * 0.1, "aggregation.strategies": ["product"]})
        while not (job.ended(0.01) or job.status().changes[0].places):
            pass
        place = job.status().changes[0].places["rgb"]
    status = completed(spec)
    assert [(change.number, change.places) for change in status.changes] == [(1, {"rgb": place})]
    found = checkpoint.read_latest(STORES.under(spec.output), "rgb")
    assert found is not None
    assert [(c.epoch, c.clip) for c in found.changes] == [(place.epoch, place.clip)]
    assert 0 < place.epoch * 24 + place.clip < 72, "within the training"

    update = place.epoch * UPDATES + place.clip // 4
    whole = with_rate(make_job("whole", clips=24, epochs=3), unit="updates", steps=(update,), gamma=0.1)
    completed(whole)
    assert weights_of(STORES, spec.output) == weights_of(STORES, whole.output)
    plain = make_job("plain", clips=24, epochs=3)
    completed(plain)
    assert weights_of(STORES, spec.output)["rgb"] != weights_of(STORES, plain.output)["rgb"]
    assert weights_of(STORES, spec.output)["flow"] == weights_of(STORES, plain.output)["flow"]
    assert [tried.name for tried in open_model(STORES, f"{spec.output}/model")[1].strategies] == ["product"]

    runner = CliRunner()
    audit = runner.invoke(app, ["audit", str(tmp_path / "changed"), "--json"])
    findings = {finding["invariant"]: finding for finding in json.loads(audit.stdout)["findings"]}
    assert {name: found["violations"] for name, found in findings.items() if not found["holds"]} == {}
    assert "1 change of the running job" in findings["exact resume"]["checked"]
    assert runner.invoke(app, ["report", str(tmp_path / "changed")]).exit_code == 0
    page = (tmp_path / "changed" / "report" / "report.html").read_text()
    assert f"{LR} {lr * 0.1} instead of {lr}" in page
    assert "A dotted line: the job was changed there" in page
