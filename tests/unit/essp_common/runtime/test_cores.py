"""How many cores a process may use: those of its affinity, and of its container's quota."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from essp_common.runtime.cores import cpu_count, usable_cores


@pytest.mark.parametrize(
    ("files", "cores", "whole"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5, 2),
        ({"cpu.max": "50000 100000\n"}, 0.5, 1),
        ({"cpu.max": "max 100000\n"}, 8, 8),
        ({"cpu.max": "odd"}, 8, 8),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8, 8),
        ({}, 8, 8),
    ],
)
def test_cores_are_those_of_the_container_or_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], cores: float, whole: int
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert usable_cores(tmp_path) == cores
    assert cpu_count(tmp_path) == whole
