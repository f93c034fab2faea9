"""`essp plan` on a real job: every part is measured, and nothing is left behind."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from essp.cli.main import app
from tests.harness.journeys import job_text


def test_each_part_of_a_job_is_measured(catalog: Path, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        job_text("tiny", output=f"file://{tmp_path}/run", catalog=f"file://{catalog}", epochs=50)
    )
    line = ["plan", str(tmp_path / "job.yaml"), "--seconds", "1", "--plot", str(tmp_path / "plan.png"), "--json"]
    done = CliRunner().invoke(app, line)
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    measured = facts["measured"]
    trainers = facts["trainers"]
    assert {f"{part}.{name}" for part in ("feed", "trainer") for name in trainers} < set(measured["milliseconds"])
    assert {pool["name"] for pool in facts["pools"]} < set(measured["milliseconds"])
    assert measured["clips"] > 0
    assert all(count > 0 for count in measured["bytes"].values())
    assert facts["simulated_clips_per_s"] > 0
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "run").exists()


def test_where_it_cannot_be_drawn_is_said_before_it_is_measured(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["plan", str(tmp_path / "job.yaml"), "--plot", str(tmp_path / "nowhere/plan.png")])
    assert "there is no folder" in str(done.exception)


def test_a_prediction_has_nothing_to_plan(catalog: Path, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(
        f"name: p\noutput: {tmp_path}/out\ndata: {{catalog: {catalog}}}\npredictor: {{model: {tmp_path}/model}}\n"
    )
    done = CliRunner().invoke(app, ["plan", str(tmp_path / "job.yaml")])
    assert "takes a job with trainers" in str(done.exception)
