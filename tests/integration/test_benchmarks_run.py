"""Each benchmark comes to its end, with small numbers that mean nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import BENCHMARKS, ROOT
from tests.harness.waiting import LONGEST_S

pytestmark = [pytest.mark.processes, pytest.mark.lane("long")]

LEFT_OUT = {"gpu_busy", "gpu_stall", "dataloader_one_stream"}
"""Two that need a GPU, and one of `--full`."""


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("videos")


@pytest.mark.parametrize("name", [name for name in BENCHMARKS if name not in LEFT_OUT])
def test_a_benchmark_runs(name: str, videos: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "--quick", "--only", name]
    command += ["--videos", str(videos), "--results", str(tmp_path)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    assert ran.returncode == 0, ran.stderr
    assert json.loads((tmp_path / "latest.json").read_text(encoding="utf-8"))["through"].count(name) == 1
