"""The tutorial, word by word: its commands run one after another in an empty folder, and its loop gives batches."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.harness import launcher

pytestmark = pytest.mark.processes

TUTORIAL = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
SHORTER = {
    "--videos-per-class 12": "--videos-per-class 6",
    "--epochs 2": "--epochs 1",
    "parquet --for scratch": "parquet --for scratch; sed -i 's/epoch: 480/epoch: 48/' job.yaml",
}
"""What takes long, for the tests: it is a matter of numbers only."""
LONG = "essp run job.yaml\n"
"""All twenty epochs. That a job goes on is tested elsewhere."""


def blocks(language: str) -> list[str]:
    text = TUTORIAL.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def test_the_tutorial_word_by_word(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    launcher.essp_program(tmp_path / "bin")
    steps = [block for block in blocks("shell") if block != LONG]
    assert len(steps) == len(blocks("shell")) - 1
    script = "".join(steps)
    for said, shorter in SHORTER.items():
        assert said in script
        script = script.replace(said, shorter)
    folder = tmp_path / "tutorial"
    folder.mkdir()
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        ["sh", "-e"],
        input=script,
        cwd=folder,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    told = ran.stdout + ran.stderr
    assert ran.returncode == 0, told
    assert "recognised as folders: 72 videos in class folders" in told
    job = (folder / "job.yaml").read_text(encoding="utf-8")
    assert "flip: false" in job
    assert "\n  clips_per_epoch: 48" in job
    assert (folder / "runs/videos/report/report.html").is_file()
    assert "exact resume" in told
    [loop] = blocks("python")
    looped = subprocess.run([*launcher.python(), "-c", loop], cwd=folder, capture_output=True, text=True, check=False)
    assert looped.returncode == 0, looped.stderr
    assert "torch.Size([16, 8, 112, 112, 3])" in looped.stdout
