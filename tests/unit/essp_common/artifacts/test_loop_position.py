"""Where a loop of the user's own begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from essp_common.artifacts import layout
from essp_common.artifacts.loop_position import read_position, write_position
from essp_common.errors import PermanentError
from essp_common.planning.position import Position
from essp_common.wiring import open_store


def test_it_begins_where_it_was_told_and_else_at_the_beginning(tmp_path: Path) -> None:
    output = open_store(f"file://{tmp_path}")
    assert read_position(output, "mine") == Position(0, 0)
    write_position(output, "mine", Position(3, 14))
    assert read_position(output, "mine") == Position(3, 14)
    assert read_position(output, "other") == Position(0, 0)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b'{"phase_index": 1}',
        b'{"phase_index": "x", "index": 0}',
        b"\xff",
        b'{"phase_index": 0, "index": -1}',
        b'{"phase_index": 1e400, "index": 0}',
        b"[" * 9999,
    ],
)
def test_what_is_no_position_is_refused(tmp_path: Path, text: bytes) -> None:
    output = open_store(f"file://{tmp_path}")
    output.put(layout.consumer("mine"), text)
    with pytest.raises(PermanentError, match=r"consumers/mine\.json holds no position"):
        read_position(output, "mine")
