"""The fast lane stays fast: a test in it that starts a process fails."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.util
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import settings

from tests.harness.fast_lane import SERVER_FIXTURES, SLOW_FOLDERS, FastLane, ProcessStarted

pytestmark = pytest.mark.processes
TESTS = Path(__file__).resolve().parents[1]


def by_subprocess() -> None:
    subprocess.run([sys.executable, "--version"], check=True, capture_output=True)


def by_multiprocessing() -> None:
    child = multiprocessing.get_context("spawn").Process(target=print)
    child.start()
    child.join()


def by_fork() -> None:
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)


@pytest.fixture
def lane(monkeypatch: pytest.MonkeyPatch) -> FastLane:
    monkeypatch.setattr(multiprocessing.util, "spawnv_passfds", multiprocessing.util.spawnv_passfds)
    lane = FastLane()
    settings.load_profile("essp")
    return lane


def run(lane: FastLane, item: pytest.Item, test: Callable[[], None]) -> None:
    """What pytest does with a test, through the hooks of the lane."""
    protocol = cast("Generator[None, Any, Any]", lane.pytest_runtest_protocol(item))
    call = cast("Generator[None, Any, Any]", lane.pytest_runtest_call(item))
    next(protocol)
    try:
        next(call)
        test()
        with contextlib.suppress(StopIteration):
            call.send(None)
    finally:
        protocol.close()


@pytest.mark.parametrize("start", [by_subprocess, by_multiprocessing, by_fork])
def test_a_test_that_starts_a_process_fails(
    lane: FastLane, request: pytest.FixtureRequest, start: Callable[[], None]
) -> None:
    with pytest.raises(ProcessStarted, match="runs no process"):
        run(lane, request.node, start)


def test_it_fails_even_where_it_swallows_the_error(lane: FastLane, request: pytest.FixtureRequest) -> None:
    def swallowing() -> None:
        with contextlib.suppress(ProcessStarted):
            by_subprocess()

    with pytest.raises(ProcessStarted, match=r"pytest\.mark\.processes"):
        run(lane, request.node, swallowing)


def test_processes_may_start_between_tests(lane: FastLane, request: pytest.FixtureRequest) -> None:
    run(lane, request.node, lambda: None)
    by_subprocess()


def test_folders_and_fixtures_that_are_left_out_exist() -> None:
    folders = {path.name for path in (*TESTS.iterdir(), *TESTS.glob("unit/*"), *TESTS.glob("unit/*/*"))}
    assert folders >= SLOW_FOLDERS
    conftest = (TESTS / "conftest.py").read_text(encoding="utf-8")
    assert [name for name in SERVER_FIXTURES if f"def {name}(" not in conftest] == []
