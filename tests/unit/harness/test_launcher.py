"""Processes that are forked from one that has loaded what they import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import launcher

pytestmark = pytest.mark.processes

WORKER = """
import os
from pathlib import Path
from tests.harness import launcher
with open(os.devnull, "wb") as nothing:
    started = launcher.start_child("probe", [], {})  # has no connection, and so an error
print(os.getpid(), started.pid, started.wait())
"""


def worker(**environment: str) -> list[int]:
    """The numbers that a test worker prints which starts a child."""
    root = Path(__file__).parents[3]
    ran = subprocess.run(
        [sys.executable, "-c", WORKER],
        cwd=root,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    return [int(word) for word in ran.stdout.split()]


def test_all_workers_of_a_run_share_what_has_loaded(tmp_path: Path) -> None:
    before = dict(os.environ)
    with launcher.for_all_workers(tmp_path):
        ends = [worker(), worker()]
    assert os.environ == before
    assert len({pid for worker_pid, child, _ in ends for pid in (worker_pid, child)}) == 4
    assert [status for *_, status in ends] == [1, 1]


def test_a_process_that_tests_alone_starts_its_own() -> None:
    assert worker(ESSP_TEST_PRELOADED="")[2] == 1
