"""A day of experiments on the command line: a job, two variations of it, and what one wants to know of them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from essp.cli.job_file import load_job
from essp_common.errors import ConfigError
from tests.flow.conftest import MakeJob
from tests.harness.command_line import essp

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("sketched")]


def test_variations_are_run_compared_and_repeated(make_job: MakeJob, tmp_path: Path) -> None:
    make_job("day", epochs=1)
    file, less = str(tmp_path / "day.yaml"), ["--set", "trainers.flow=null", "--set", "streams.flow=null"]
    assert essp("run", file, *less, "--json").exit_code == 0
    base = load_job(file).output.removeprefix("file://")
    with pytest.raises(ConfigError, match="--name"):
        essp("run", file, *less, "--set", "trainers.rgb.optimizer.lr=0.5", "--json")
    done = essp("run", file, *less, "--set", "trainers.rgb.optimizer.lr=0.5", "--name", "lr5", "--json")
    assert done.exit_code == 0, done.stderr
    other = str(Path(base).with_name("lr5"))
    again = essp("run", other, "--json")
    assert (again.exit_code, "training has finished" in again.stderr) == (0, True)

    found = json.loads(essp("compare", base, other, "--json").stdout)
    assert [one["field"] for one in found["settings"]] == ["trainers.rgb.optimizer.lr"]
    assert {one["job"] for one in found["results"]} == {"day", "lr5"}
    curves = csv.DictReader(essp("export", "curves", base, other).stdout.splitlines())
    assert {(row["job"], row["phase"]) for row in curves} >= {("day", "train"), ("lr5", "validation")}
    story = json.loads(essp("job", "why", other, "0", "--json").stdout)
    assert story

    done = essp("job", "rm", other, "--yes", "--json")
    assert (done.exit_code, json.loads(done.stdout)["kept"]) == (0, [])
    left = {path.relative_to(other).parts[0] for path in Path(other).rglob("*") if path.is_file()}
    assert left == {"fences"}
    assert essp("export", "curves", base).exit_code == 0
