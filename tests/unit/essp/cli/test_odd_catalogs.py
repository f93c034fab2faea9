"""Files that are no catalog: every command that reads one says so in the same words, and exits with 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.command_line import main_of

JOB = """
name: odd
output: {folder}/run
data: {{catalog: {folder}/odd.parquet}}
clip: {{frames: 2}}
streams: {{rgb: {{feature: rgb}}}}
trainers: {{rgb: {{stream: rgb, model: small}}}}
"""
COMMANDS = (
    "plan {folder}/job.yaml",
    "validate {folder}/job.yaml",
    "run {folder}/job.yaml",
    "run {folder}/job.yaml --json",
    "init {folder}/odd.parquet --out {folder}/made.yaml",
    "catalog show {folder}/odd.parquet",
    "catalog show {folder}/odd.parquet --json",
    "catalog check {folder}/odd.parquet",
    "bench io --source {folder}/odd.parquet",
    "records build {folder}/odd.parquet --out {folder}/made",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_is_no_catalog_is_named_in_plain_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    (tmp_path / "odd.parquet").write_bytes(b"PAR1 and nothing more")
    (tmp_path / "job.yaml").write_text(JOB.format(folder=tmp_path))
    assert main_of(*command.format(folder=tmp_path).split()) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"{tmp_path}/odd.parquet cannot be read as a catalog: its end is missing; name another one" in shown.err
    assert "Parquet magic" not in shown.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.yaml", "odd.parquet"]


@pytest.mark.parametrize("command", ["catalog build videos --out c.parquet", "catalog check c.parquet"])
def test_a_time_that_no_timer_takes_is_refused(capsys: pytest.CaptureFixture[str], command: str) -> None:
    """Otherwise each file would be reported as unusable."""
    assert main_of(*command.split(), "--timeout-s", "inf") == 2
    assert "--timeout-s" in capsys.readouterr().err
