"""How much memory a process may use."""

from __future__ import annotations

from pathlib import Path

import pytest

from essp_common.runtime.memory import memory_limit


@pytest.mark.parametrize(
    ("file", "text", "limit"),
    [
        ("memory.max", "1048576\n", 2**20),
        ("memory/memory.limit_in_bytes", "2097152\n", 2**21),
        ("memory.max", "max\n", None),
        ("memory.max", f"{2**62}\n", None),
        ("other", "", None),
    ],
)
def test_the_limit_is_that_of_the_container_or_of_the_machine(
    tmp_path: Path, file: str, text: str, limit: int | None
) -> None:
    machine = memory_limit(tmp_path / "absent")
    assert machine > 2**28
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    assert memory_limit(tmp_path) == (limit or machine)


def test_where_the_system_does_not_say_there_is_no_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, where a catalog can be read all the same."""
    monkeypatch.delattr("os.sysconf")
    assert memory_limit(tmp_path) == 2**63 - 1
