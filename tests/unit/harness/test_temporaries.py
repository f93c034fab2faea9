"""Temporary files of tests lie in memory only where it has room for them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.harness import temporaries


@pytest.fixture(autouse=True)
def nobody_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_DEBUG_TEMPROOT")


def room(monkeypatch: pytest.MonkeyPatch, size_bytes: int, flags: int = 0) -> None:
    found = SimpleNamespace(f_bavail=size_bytes // 4096, f_frsize=4096, f_flag=flags)
    monkeypatch.setattr(os, "statvfs", lambda _: found)


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="only Linux tells how much memory is free")
def test_they_lie_in_memory_where_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temporaries, "_ROOM_BYTES", 2**20)
    room(monkeypatch, 2**20)
    assert temporaries.root() == "/dev/shm"
    room(monkeypatch, 2**20, os.ST_NOEXEC)
    assert temporaries.root() == tempfile.gettempdir()
    room(monkeypatch, 2**20 - 4096)
    assert temporaries.root() == tempfile.gettempdir()


def test_and_on_the_disk_where_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(temporaries, "_IN_MEMORY", tmp_path / "none")
    assert temporaries.root() == tempfile.gettempdir()


def test_people_choose(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTEST_DEBUG_TEMPROOT", str(tmp_path))
    assert temporaries.root() == str(tmp_path)
