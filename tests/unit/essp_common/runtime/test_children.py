"""Where a child process looks for modules."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from essp_common.runtime.children import module_command


@pytest.mark.parametrize("searched", [False, True])
def test_a_child_searches_the_folder_it_starts_in_where_its_parent_does(
    searched: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["/elsewhere", *([str(tmp_path)] if searched else [])])
    expected = ["-m", "a.b", "1", "c"] if searched else ["-P", "-m", "a.b", "1", "c"]
    assert module_command("a.b", 1, "c")[1:] == expected


def test_a_child_of_an_interpreter_searches_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", "/elsewhere"])
    assert "-P" not in module_command("a.b")
