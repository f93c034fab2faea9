"""`essp audit` of a job with real trainers, interrupted once, with a video missing; and of one tampered with."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from essp.catalog.build import BuildOptions, build
from essp.cli.main import app
from essp.embedded.composition import Embedded
from essp_common.artifacts import layout
from essp_common.artifacts.history import History, pack
from essp_common.job.status import JobState
from essp_common.objects.numbered_log import numbered
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores
from tests.flow.conftest import MakeJob
from tests.harness.embedded_jobs import complete

pytestmark = pytest.mark.lane("promises")


@pytest.mark.lane("test")
def test_an_audit_finds_nothing_until_somebody_tampers(videos: Path, make_job: MakeJob, tmp_path: Path) -> None:
    damaged, catalog = tmp_path / "videos", tmp_path / "catalog.parquet"
    shutil.copytree(videos, damaged)
    build(f"file://{damaged}", f"file://{catalog}", ("file:///",), BuildOptions("folders"))
    (damaged / "train" / "left" / "0.mp4").unlink()
    spec = make_job("audited", clips=24)
    spec = spec.model_copy(update={"data": spec.data.model_copy(update={"catalog": f"file://{catalog}"})})
    with Embedded(spec, Settings()) as job:
        while not job.ended(0.01) and job.status().progress.done < 10:
            pass
    with Embedded(spec, Settings()) as job:
        complete(job)
        assert job.status().counts.replaced > 0
    output = str(tmp_path / "audited")
    sound = CliRunner().invoke(app, ["audit", output, "--json"])
    assert sound.exit_code == 0, sound.output
    findings = json.loads(sound.stdout)["findings"]
    assert [finding["holds"] for finding in findings] == [True] * 7
    assert "in 2 runs" in findings[1]["checked"]

    store = Stores(("file:///",)).under(f"file://{output}")
    segments = list(History(store).read())
    for segment in segments:
        for entry in segment.entries:
            if entry.checkpoint.final:
                entry.checkpoint.digest = "0" * 32
        store.put(numbered(layout.HISTORY, segment.last), pack(segment))
    tampered = CliRunner().invoke(app, ["audit", output])
    assert tampered.exit_code == 1
    assert "has seen unplanned clips" in " ".join(tampered.stdout.split())
    assert CliRunner().invoke(app, ["audit", str(tmp_path)]).exit_code != 0, "no job is there"


@pytest.mark.lane("long")
def test_a_finished_job_that_is_given_more_epochs_goes_on_and_its_audit_is_clean(
    make_job: MakeJob, tmp_path: Path
) -> None:
    """As one that had them from the beginning, to the bit."""
    for name in ("parts", "whole"):
        make_job(name, epochs=1 if name == "parts" else 3)
    runner = CliRunner()
    assert runner.invoke(app, ["run", str(tmp_path / "parts.yaml"), "--json"]).exit_code == 0
    asked = runner.invoke(app, ["validate", str(tmp_path / "parts.yaml"), "--json"])
    assert json.loads(asked.stdout)["resumes_at"]["rgb"] == "finished (--epochs 2 to continue)"
    asked = runner.invoke(app, ["validate", str(tmp_path / "parts.yaml"), "--epochs", "3", "--json"])
    assert json.loads(asked.stdout)["resumes_at"]["rgb"] == "resumes with validation, epoch 1, after 12 clips"
    again = runner.invoke(app, ["run", str(tmp_path / "parts.yaml"), "--json"])
    assert "training has finished; to continue, give --epochs 2" in again.stderr
    longer = runner.invoke(app, ["run", str(tmp_path / "parts.yaml"), "--epochs", "3", "--json"])
    assert longer.exit_code == 0, longer.output
    assert runner.invoke(app, ["run", str(tmp_path / "whole.yaml"), "--json"]).exit_code == 0
    for weights in (tmp_path / "whole" / "model").iterdir():
        if weights.suffix == ".safetensors":
            assert (tmp_path / "parts" / "model" / weights.name).read_bytes() == weights.read_bytes()
    done = runner.invoke(app, ["audit", str(tmp_path / "parts"), "--json"])
    assert {f["invariant"]: f["violations"] for f in json.loads(done.stdout)["findings"] if not f["holds"]} == {}
    again = runner.invoke(app, ["run", str(tmp_path / "parts.yaml"), "--json"])
    assert again.exit_code == 0
    assert "training has finished; to continue, give --epochs 6" in again.stderr, "it has 3"


@pytest.mark.lane("long")
def test_a_completed_job_that_is_run_again_stays_what_it_was(make_job: MakeJob, tmp_path: Path) -> None:
    spec = make_job("again", clips=12)
    audits, pages = [], []
    for _ in range(2):
        with Embedded(spec, Settings()) as job:
            while not job.ended(0.01):
                pass
            assert job.status().state is JobState.COMPLETED, job.status().reason
        done = CliRunner().invoke(app, ["report", str(tmp_path / "again")])
        assert done.exit_code == 0, done.output
        pages.append((tmp_path / "again" / "report" / "report.html").read_text())
        done = CliRunner().invoke(app, ["audit", str(tmp_path / "again"), "--json"])
        audits.append({f["invariant"]: f for f in json.loads(done.stdout)["findings"]})
    assert [[finding["holds"] for finding in audit.values()] for audit in audits] == [[True] * 7] * 2
    counted = [audit["no double count"]["checked"] for audit in audits]
    trained = counted[0].removesuffix(" in 1 run")
    assert counted == [f"{trained} in {runs}" for runs in ("1 run", "2 runs")]
    assert [audit["liveness"]["checked"].partition(",")[0] for audit in audits] == ["completed"] * 2
    decoded = [re.findall(r"clips decoded</td><td[^>]*>([0-9,]+)<", page) for page in pages]
    assert decoded[0] == decoded[1] != []
