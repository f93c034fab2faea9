"""`essp deadletter` on the outputs of jobs: one without dead letters is told from a folder that is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from essp_common.artifacts import layout
from essp_common.errors import NotFound
from tests.harness.command_line import essp


def test_where_no_job_is_nobody_says_that_nothing_went_wrong(tmp_path: Path) -> None:
    for call in (["ls"], ["ls", "--json"], ["purge", "--all", "--yes"], ["show", "1"]):
        with pytest.raises(NotFound, match="is the output of no job"):
            essp("deadletter", *call, "--from", str(tmp_path))
    (tmp_path / layout.SPEC).touch()
    assert "there are no dead letters" in essp("deadletter", "ls", "--from", str(tmp_path)).stderr
