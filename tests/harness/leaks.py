"""After each test: no thread, child process, socket, open file or temporary folder of it is left.

What one test leaves behind fails another: a client's thread that goes on drawing random numbers, a port that is still
bound, a worker that takes messages meant for others. The check compares what this process holds before a test is set
up with what it holds after the test is torn down. What a fixture of a wider scope opened (the session's servers) is
excused: it lives longer than one test by design. What libraries keep for the life of the process is excused by name.

What is open after one test is what is open before the next, and is looked at once for both: it takes a millisecond.
A thread or a process that is about to end gets `GRACE_S`; the check waits for its end, not for a time. Objects that
only the garbage collector would close are collected first: files and sockets among them warn, and fail the test so.
Temporary files lie in a folder of this process alone, as other tests run beside it; children inherit it.
This process adopts orphans (Linux), so a grandchild whose parent has been killed counts as well. A child process that
is left is killed once it has been reported. Without /proc, threads and multiprocessing's children are checked.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import select
import shutil
import signal
import socket
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest

from tests.harness.temporaries import root

GRACE_S = 30.0
"""Only what is left is waited for so long."""
_AT_ONCE_S = 1.0
"""What takes longer may wait for the garbage collector."""

KEPT_FILES = {
    "/mpl-data/fonts/": "matplotlib keeps the fonts open that it has drawn with",
}
"""Part of what a file descriptor points at, and why it stays open."""
KEPT_TEMPORARIES = {
    "pytest-of-": "pytest's own, which it keeps for some runs",
    "pymp-": "multiprocessing removes it when its process ends, unless that was killed",
    "torchinductor_": "what torch has compiled",
    "torchelastic_": "torchrun keeps its workers' logs",
}
"""How the name of a temporary file or folder begins, and why it stays."""
KEPT_ENDINGS = ("wandb-media", "wandb-artifacts")
"""How the names of folders end that wandb makes when it is imported, which timm does, and keeps until the process
ends."""

_PR_SET_CHILD_SUBREAPER = 36
_FILES = "/proc/self/fd"
_TASKS = "/proc/self/task"
_LISTS_CHILDREN = os.path.exists("/proc/thread-self/children")


@dataclass(frozen=True, slots=True)
class Holdings:
    """What this process has open. Of a file: its descriptor and what it points at."""

    threads: frozenset[threading.Thread] = frozenset()
    files: frozenset[tuple[int, str]] = frozenset()
    children: frozenset[int] = frozenset()
    temporaries: frozenset[str] = frozenset()

    @classmethod
    def now(cls) -> Holdings:
        """A snapshot."""
        return cls(
            frozenset(threading.enumerate()),
            frozenset(_open_files()),
            frozenset(_children()),
            frozenset(os.listdir(tempfile.gettempdir())),
        )

    def without(self, other: Holdings) -> Holdings:
        """What is held beyond `other`."""
        return Holdings(
            self.threads - other.threads,
            self.files - other.files,
            self.children - other.children,
            self.temporaries - other.temporaries,
        )

    def __or__(self, other: Holdings) -> Holdings:
        return Holdings(
            self.threads | other.threads,
            self.files | other.files,
            self.children | other.children,
            self.temporaries | other.temporaries,
        )

    def __bool__(self) -> bool:
        return bool(self.threads or self.files or self.children or self.temporaries)

    @property
    def running(self) -> bool:
        """There are threads or processes, which may be waited for."""
        return bool(self.threads or self.children)

    def described(self) -> list[str]:
        """One line for each thread, process, file and temporary folder."""
        return [
            *(f"thread {thread.name} ({_target(thread)})" for thread in self.threads),
            *(f"process {pid}: {_command(pid)}" for pid in self.children),
            *(f"file descriptor {number}: {_described(number, target)}" for number, target in self.files),
            *(f"temporary {name}" for name in sorted(self.temporaries)),
        ]


@dataclass(slots=True, eq=False)
class LeakCheck:
    """The pytest plugin."""

    excused: Holdings = field(default_factory=Holdings)
    """What fixtures of a wider scope than a test have opened."""
    shared: dict[pytest.FixtureDef[Any], str] = field(default_factory=dict)
    """Those of them that have threads or sockets in this process now, with their names."""
    before: Holdings = field(default_factory=Holdings)
    """What was open before this test, or before the first of those that shared such fixtures."""
    after: Holdings | None = None
    """What was open after the last test, if it was looked at and nothing has run since."""
    failed: bool = False
    """This test has, or one of those."""
    folder: str = ""
    """Where temporary files of this process lie, and of its children."""

    def pytest_sessionstart(self) -> None:
        _adopt_orphans()

    def pytest_configure(self) -> None:
        # The folders of pytest itself stay where people look for them.
        common = os.environ["PYTEST_DEBUG_TEMPROOT"] = root()
        self.folder = tempfile.mkdtemp(prefix="essp-tests-", dir=common)
        _keep_temporaries_in(self.folder)

    def pytest_unconfigure(self) -> None:
        _keep_temporaries_in(os.environ["PYTEST_DEBUG_TEMPROOT"])
        shutil.rmtree(self.folder, ignore_errors=True)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        if fixturedef.scope == "function":
            return (yield)
        before = Holdings.now()
        try:
            return (yield)
        finally:
            opened = Holdings.now().without(before)
            self.excused |= opened
            if opened.threads or any(target.startswith("socket:") for _, target in opened.files):
                self.shared[fixturedef] = fixturedef.argname

    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        self.shared.pop(fixturedef, None)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None]:
        if not self.shared:
            self.failed, self.before = False, self.after or Holdings.now()
        self.after = None
        yield

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        self.failed |= report.failed
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Function) -> Generator[None]:
        sharing = ", ".join(self.shared.values())
        yield
        if self.shared:
            return
        excused, now = self.before | self.excused, Holdings.now()
        if not _beyond(excused, now):
            self.after = now
            return
        item.funcargs.clear()  # which pytest itself does a moment later: they are no longer in use
        left = left_behind(excused)
        lines = "\n  ".join(left.described())
        end(left.children)
        if left and not self.failed:  # the traceback of a failure keeps alive what the test had
            who = f"the tests that shared {sharing}" if sharing else "this test"
            pytest.fail(f"left behind by {who}:\n  {lines}", pytrace=False)


_lasting: list[Holdings] = []


@contextmanager
def lasting() -> Iterator[None]:
    """What is opened in this block stays for all tests of this process, by design."""
    before = Holdings.now()
    try:
        yield
    finally:
        _lasting.append(Holdings.now().without(before))


def left_behind(excused: Holdings) -> Holdings:
    """What is held beyond `excused` and does not end within `GRACE_S`."""
    deadline = time.monotonic() + GRACE_S
    _wait(held_beyond(excused), min(deadline, time.monotonic() + _AT_ONCE_S))
    for generation in range(3):  # all of them cost some tenths of a second; what a test has made is in the young ones
        if not held_beyond(excused):
            break
        gc.collect(generation)  # also ends pools of threads that live as long as their owner
    waited_for, held = Holdings(), held_beyond(excused)
    while held.without(waited_for).running:
        _wait(held, deadline)
        waited_for, held = waited_for | held, held_beyond(excused)  # what has ended may have begun something else
    if held and waited_for:
        gc.collect()  # of what those threads had
        held = held_beyond(excused)
    return held


def end(children: Iterable[int]) -> None:
    """Kill those processes, and wait until they are gone."""
    for pid in children:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def held_beyond(excused: Holdings) -> Holdings:
    """What this process holds beyond `excused` and what libraries keep."""
    return _beyond(excused, Holdings.now())


def _beyond(excused: Holdings, now: Holdings) -> Holdings:
    found = now.without(excused)
    for kept in _lasting:
        found = found.without(kept)
    tracker = resource_tracker._resource_tracker  # multiprocessing's: one child for the life of the process
    return Holdings(
        found.threads,
        frozenset(
            (number, target)
            for number, target in found.files
            if number != getattr(tracker, "_fd", None) and not any(part in target for part in KEPT_FILES)
        ),
        found.children - {getattr(tracker, "_pid", None)},
        frozenset(
            name
            for name in found.temporaries
            if not name.startswith(tuple(KEPT_TEMPORARIES)) and not name.endswith(KEPT_ENDINGS)
        ),
    )


def _wait(held: Holdings, deadline: float) -> None:
    """Until its threads and children have ended."""
    for thread in held.threads:
        while (left_s := deadline - time.monotonic()) > 0:
            with suppress(RuntimeError):  # it is being started, and cannot be joined yet
                thread.join(left_s)
                break
            time.sleep(0)  # lets it start
    multiprocessing.active_children()  # reaps those that have ended
    for pid in held.children:
        _wait_for_child(pid, deadline)


def _wait_for_child(pid: int, deadline: float) -> None:
    """Until the child has ended. An orphan that has is reaped: nobody else knows of it."""
    with suppress(ProcessLookupError):
        watch = os.pidfd_open(pid)
        try:
            poll = select.poll()
            poll.register(watch, select.POLLIN)
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                return
        finally:
            os.close(watch)
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _open_files() -> Iterable[tuple[int, str]]:
    try:
        folder = os.open(_FILES, os.O_RDONLY)
    except OSError:
        return []
    found = []
    try:
        for name in os.listdir(folder):
            try:
                found.append((int(name), os.readlink(name, dir_fd=folder).removesuffix(" (deleted)")))
            except OSError:  # closed meanwhile
                continue
    finally:
        os.close(folder)
    return [(number, target) for number, target in found if number != folder]


def _children() -> Iterable[int]:
    if not _LISTS_CHILDREN:
        return [child.pid for child in multiprocessing.active_children() if child.pid]
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []  # there are none: the usual case, for one system call
    found: list[int] = []
    for task in os.listdir(_TASKS):  # a process is listed with the thread that started it
        try:
            file = os.open(f"{_TASKS}/{task}/children", os.O_RDONLY)
        except OSError:  # this thread has just ended; its children are another's now
            continue
        try:
            found.extend(map(int, os.read(file, 1 << 16).split()))
        finally:
            os.close(file)
    return found


def _keep_temporaries_in(folder: str) -> None:
    tempfile.tempdir = os.environ["TMPDIR"] = folder


def _adopt_orphans() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _target(thread: threading.Thread) -> str:
    """What it runs."""
    run: Callable[..., object] = getattr(thread, "_target", None) or type(thread)
    return f"{run.__module__}.{run.__qualname__}" if hasattr(run, "__qualname__") else repr(run)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip() or "ended, and nobody waited for it"
    except OSError:
        return "gone"


def _described(number: int, target: str) -> str:
    """A socket with its addresses."""
    try:
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            return target
        with socket.socket(fileno=os.dup(number)) as opened:
            return str(opened).replace("closed", target)
    except OSError:
        return target
