"""What is asked before something is removed goes to stderr alone: stdout is for results, with --json one document."""

from __future__ import annotations

import io

import pytest

from essp.cli.confirmation import confirm
from essp_common.errors import ConfigError


def test_nothing_of_a_question_is_on_stdout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    confirm("Delete 1 record of 12?")
    asked = capsys.readouterr()
    assert (asked.out, asked.err.strip()) == ("", "Delete 1 record of 12? [y/N]:")
    with pytest.raises(ConfigError, match="cannot ask for confirmation without a terminal; add --yes"):
        confirm("Delete 1 record of 12?")
    asked = capsys.readouterr()
    assert (asked.out, asked.err.endswith("\n")) == ("", True)
