"""Files that commands are told to write: named where that fails, and none that is empty is left."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from essp.folders import written
from essp_common.errors import ConfigError


def fill(path: Path) -> None:
    """Begin to write a file on a disk that is full."""
    with written(path), path.open("w"):
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("there", [False, True])
def test_a_file_that_cannot_be_written_is_named_and_not_left_empty(tmp_path: Path, there: bool) -> None:
    path = tmp_path / "job.yaml"
    if there:
        path.touch()
    with pytest.raises(ConfigError, match=r"job\.yaml cannot be written \(No space left on device\); name another"):
        fill(path)
    assert path.exists() == there


def test_what_is_no_file_is_left_alone() -> None:
    with pytest.raises(ConfigError, match="/dev/full cannot be written"), written(Path("/dev/full")):
        Path("/dev/full").write_text("a")
    assert Path("/dev/full").exists()
