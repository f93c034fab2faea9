"""What is asked before something is removed goes to stderr alone: stdout is for results, with --json one document."""

from __future__ import annotations

import io

import pytest

from essp.cli.confirmation import confirm
from tests.harness.refused import refused


def test_nothing_of_a_question_is_on_stdout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    confirm("Delete 1 record of 12?")
    asked = capsys.readouterr()
    assert (asked.out, asked.err.strip()) == ("", "Delete 1 record of 12? [y/N]:")
    with refused("--yes", "missing"):
        confirm("Delete 1 record of 12?")
    asked = capsys.readouterr()
    assert (asked.out, asked.err.endswith("\n")) == ("", True)
