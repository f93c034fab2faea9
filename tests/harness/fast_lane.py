"""The fast lane: `pytest --lane=fast` runs the tests of the lane `test` that start no server and no process.

Three rules decide, in this order:

- A test below a folder of `SLOW_FOLDERS` is left out: these folders are about whole deployments or foreign programs.
- A test that uses a fixture of `SERVER_FIXTURES`, directly or through another fixture, is left out.
- A test marked `processes` (starts a child process) or `slow` (computes for seconds) is left out.

A test that starts a process although it stayed in the lane fails and names the program: the mark is missing. This holds
for `subprocess`, `multiprocessing`, `os.fork`, `os.posix_spawn` and `os.system`, and for whatever is built on them.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

SLOW_FOLDERS = frozenset({"benchmarks", "chart", "compose", "flow", "kills", "kubernetes", "page"})
"""Folders directly below `tests/`, or below `tests/unit/`."""

SERVER_FIXTURES = frozenset({"kafka_url", "own_kafka_url", "redis_server", "redis_cluster_url", "s3_server"})
SLOW_MARKS = ("processes", "slow")

_STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"})


class ProcessStarted(AssertionError):
    """Raised where a test of the fast lane starts a process."""


class FastLane:
    """The plugin that `--lane=fast` registers."""

    def __init__(self) -> None:
        self._test: str | None = None
        """The test that runs, if one does."""
        self._started: list[str] = []
        platform.platform()  # the first call starts `uname`, whose answer is kept
        sys.addaudithook(self._audit)  # stays for the life of the interpreter
        self._replace_fork_exec()

    def pytest_ignore_collect(self, collection_path: Path, config: pytest.Config) -> bool | None:
        """Importing them takes longer than some tests."""
        return True if SLOW_FOLDERS & set(collection_path.relative_to(config.rootpath).parts) else None

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        slow = [item for item in items if _is_slow(item)]
        config.hook.pytest_deselected(items=slow)
        left_out = set(slow)
        items[:] = [item for item in items if item not in left_out]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._test = item.nodeid
        try:
            return (yield)
        finally:
            self._test = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Fail the test also where it swallowed the error that the start of a process raised."""
        self._started.clear()
        yield
        if self._started:
            started = ", ".join(self._started)
            raise ProcessStarted(f"started {started}: mark the test with pytest.mark.processes, or start no process")

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _STARTS:
            self._refuse(f"{arguments[0]!r}" if arguments else event)

    def _refuse(self, what: str) -> None:
        if self._test is not None:
            self._started.append(what)
            raise ProcessStarted(f"{self._test} starts {what}; the fast lane runs no process")

    def _replace_fork_exec(self) -> None:
        """`multiprocessing` starts its children below `subprocess`, where nothing is audited."""
        import multiprocessing.util

        def refuse_or_spawn(path: bytes, args: Sequence[Any], passfds: Sequence[int]) -> int:
            self._refuse(f"{path!r}")
            return spawn(path, args, passfds)

        spawn = multiprocessing.util.spawnv_passfds
        multiprocessing.util.spawnv_passfds = refuse_or_spawn


def _is_slow(item: pytest.Item) -> bool:
    return bool(
        SERVER_FIXTURES & set(getattr(item, "fixturenames", ()))
        or any(item.get_closest_marker(mark) for mark in SLOW_MARKS)
    )
