"""The check after each test finds what the test left, waits for what is about to end, and excuses what it should."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.harness import leaks
from tests.harness.leaks import Holdings, end, held_beyond, left_behind


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "GRACE_S", 0.0)


@pytest.fixture
def before() -> Holdings:
    return Holdings.now()


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    """What a test opens on purpose."""
    with ExitStack() as stack:
        yield stack


pytestmark = pytest.mark.usefixtures("impatient")


def test_nothing_opened_is_nothing_left(before: Holdings) -> None:
    assert not held_beyond(before)
    assert left_behind(before).described() == []


def test_a_file_that_is_still_open_is_told_by_its_name(before: Holdings, tmp_path: Path) -> None:
    with tempfile.NamedTemporaryFile(dir=tmp_path) as file:
        assert left_behind(before).described() == [f"file descriptor {file.fileno()}: {file.name}"]
    assert not left_behind(before)


@pytest.mark.processes
def test_a_temporary_folder_of_a_child_is_told_by_its_name(before: Holdings) -> None:
    make = "import tempfile; print(tempfile.mkdtemp())"
    made = subprocess.run([sys.executable, "-c", make], capture_output=True, text=True, check=True).stdout.strip()
    assert left_behind(before).described() == [f"temporary {os.path.basename(made)}"]
    os.rmdir(made)
    assert not left_behind(before)


def test_a_socket_is_told_by_its_address(before: Holdings, opened: ExitStack) -> None:
    listening = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
    [line] = left_behind(before).described()
    assert str(listening.getsockname()[1]) in line


def test_another_file_under_the_same_number_is_found() -> None:
    with tempfile.NamedTemporaryFile() as first, tempfile.NamedTemporaryFile() as second:
        before = Holdings.now()
        os.dup2(second.fileno(), first.fileno())
        assert left_behind(before).files == {(first.fileno(), second.name)}


def test_a_thread_that_goes_on_is_told_by_what_it_runs(before: Holdings, opened: ExitStack) -> None:
    leave = threading.Event()
    thread = threading.Thread(target=leave.wait, name="stays")
    thread.start()
    opened.callback(thread.join)
    opened.callback(leave.set)
    [line] = left_behind(before).described()
    assert "thread stays" in line
    assert "Event.wait" in line


@pytest.mark.processes
def test_what_is_about_to_end_is_waited_for(before: Holdings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "GRACE_S", 60.0)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    thread = threading.Thread(target=child.communicate)
    assert held_beyond(before)
    thread.start()
    assert not left_behind(before)
    assert child.returncode == 1


def test_what_is_started_by_what_ends_is_waited_for(before: Holdings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "GRACE_S", 60.0)

    def start_another(left: int) -> None:
        if left:
            threading.Thread(target=start_another, args=(left - 1,)).start()

    start_another(1000)
    assert not left_behind(before)


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted by init elsewhere")
@pytest.mark.processes
def test_a_process_whose_parent_is_gone_is_found_and_ended(before: Holdings) -> None:
    script = "import subprocess, sys; print(subprocess.Popen(['sleep', '1000'], stdout=-3, stderr=-3).pid)"
    orphan = int(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)
    left = left_behind(before)
    assert left.described() == [f"process {orphan}: sleep 1000"]
    end(left.children)
    assert not left_behind(before)


@pytest.mark.processes
def test_a_process_that_nobody_waited_for_has_ended(before: Holdings) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not left_behind(before)
    child.wait()


@pytest.mark.processes
def test_a_process_that_runs_is_left(before: Holdings) -> None:
    with subprocess.Popen(["sleep", "1000"]) as child:
        assert left_behind(before).children == {child.pid}
        child.send_signal(signal.SIGKILL)


@pytest.fixture(scope="module")
def of_the_module() -> Iterator[str]:
    with tempfile.NamedTemporaryFile() as file:
        yield file.name


def test_what_a_wider_fixture_opens_while_a_test_runs_is_excused(request: pytest.FixtureRequest) -> None:
    """The check after this very test finds its file open, and says nothing."""
    assert os.path.exists(request.getfixturevalue("of_the_module"))
