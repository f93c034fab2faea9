"""A child process: what both ends say, how it ends, and what a parent hears of that."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from essp_common.errors import Unavailable
from essp_common.runtime import child_process
from essp_common.runtime.child_process import Channel, ChildProcess, answer_of, ready

_CHILD = """
import os, signal, sys
from essp_common.runtime.child_process import requests, to_parent

parent = to_parent(sys.argv[1])
asked = requests(parent)
parent.send(" ".join(sys.argv[2:]).encode())
while True:
    match asked.get():
        case b"signals":
            for number in (signal.SIGINT, signal.SIGTERM):
                os.kill(os.getpid(), number)
            parent.send(b"still here")
        case b"group":
            parent.send(b"%d %d" % (os.getpgid(0) == os.getpid(), os.getsid(0)))
        case b"file":
            os.write(int(sys.argv[-1]), b"written by the child")
            parent.send(b"")
        case b"crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case b"leave":
            os._exit(3)
        case b"stuck":
            signal.pause()
        case other:
            parent.send(other)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that a child process can run."""
    (tmp_path / "a_child.py").write_text(_CHILD)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.getcwd()]))
    return "a_child"


@pytest.fixture
def ends() -> Iterator[tuple[Channel, socket.socket]]:
    """A channel, and the bare socket at the other end."""
    mine, its = socket.socketpair()
    with closing(Channel(mine.detach())) as channel, its:
        yield channel, its


def test_the_time_for_an_answer_is_none_for_what_is_sent(ends: tuple[Channel, socket.socket]) -> None:
    channel, other = ends
    with pytest.raises(TimeoutError):
        channel.receive(0.0)
    sender = threading.Thread(target=channel.send, args=(bytes(5 << 20),))  # more than the system keeps
    sender.start()
    with pytest.raises(TimeoutError):
        channel.receive(0.0)
    with closing(Channel(os.dup(other.fileno()))) as there:
        assert there.receive() == bytes(5 << 20)
    sender.join()


@pytest.mark.parametrize("message", [b"", b"{", b"[1]", b"3", b"null", b"\xff", b"[" * 1_000_000])
def test_what_is_no_answer_is_that_of_a_child_that_is_gone(message: bytes) -> None:
    with pytest.raises(OSError, match="not"):
        answer_of(message)


def test_a_message_that_claims_more_than_memory_holds_is_not_awaited(ends: tuple[Channel, socket.socket]) -> None:
    channel, other = ends
    other.sendall(struct.pack("<Q", (1 << 32) + 1))
    with pytest.raises(OSError, match="too large"):
        channel.receive(60.0)


@pytest.mark.parametrize("size", [0, 1, 1 << 16, (1 << 16) + 1, 5 << 20])
def test_messages_arrive_whole_and_one_by_one(size: int) -> None:
    mine, its = socket.socketpair()
    message = os.urandom(size)
    with closing(Channel(mine.detach())) as here, closing(Channel(its.detach())) as there:

        def send() -> None:
            here.send(message)
            here.send(b"next")

        sender = threading.Thread(target=send)
        sender.start()
        assert ready([here, there]) == [there]
        assert there.receive() == message
        sender.join()
        assert ready([here, there]) == [there]
        assert there.receive(60.0) == b"next"
        assert not there.poll()
        here.close()
        assert there.poll()
        with pytest.raises(EOFError):
            there.receive()


@pytest.mark.parametrize("part", [b"", b"\x05\0\0", b"\x05\0\0\0\0\0\0\0", b"\x05\0\0\0\0\0\0\0four"])
def test_a_message_that_is_not_whole_in_time_is_late_and_never_one(
    ends: tuple[Channel, socket.socket], part: bytes
) -> None:
    channel, other = ends
    other.send(part)
    with pytest.raises(TimeoutError):
        channel.receive(1e-3)
    other.close()
    with pytest.raises(EOFError):
        channel.receive()


def test_who_sends_bit_by_bit_gains_no_time(
    ends: tuple[Channel, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    channel, other = ends
    other.send(b"\xff\0\0\0\0\0\0\0")
    now_s = 0.0

    class Clock:
        @staticmethod
        def monotonic() -> float:
            """Each bit takes a second."""
            nonlocal now_s
            other.send(b"?")
            now_s += 1.0
            return now_s

    monkeypatch.setattr(child_process, "time", Clock)
    with pytest.raises(TimeoutError):
        channel.receive(30.0)
    assert now_s < 255


@pytest.mark.processes
def test_a_child_gets_words_and_files_and_answers(module: str, tmp_path: Path) -> None:
    with (tmp_path / "file").open("w+b") as file:
        child = ChildProcess(module, "answers", "a word", 7, files=[file.fileno()])
        assert child.channel.receive() == b"a word 7 %d" % file.fileno()
        child.tell(b"file")
        assert child.channel.receive() == b""
        child.tell(b"group")
        assert child.channel.receive() == b"1 %d" % os.getsid(0), "a group of its own, in the session of its parent"
        child.tell(b"signals")
        assert child.channel.receive() == b"still here"
        assert child.end(60.0) == child.end() == "has ended with status 0"
        file.seek(0)
        assert file.read() == b"written by the child"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("request_", "fate"),
    [(b"crash", "was killed by signal 11 (SIGSEGV)"), (b"leave", "has ended with status 3")],
    ids=["crash", "leave"],
)
def test_it_says_how_it_ended(module: str, request_: bytes, fate: str) -> None:
    child = ChildProcess(module, "fails")
    child.channel.receive()
    child.tell(request_)
    with pytest.raises((EOFError, ConnectionError)):
        child.channel.receive()
    child.tell(b"nobody hears this")
    assert child.end(60.0) == fate


@pytest.mark.processes
def test_it_ends_with_its_parent_also_in_the_middle_of_its_work_and_not_with_a_fork(module: str) -> None:
    child = ChildProcess(module, "waits")
    child.channel.receive()
    child.tell(b"stuck")
    if not (fork := os.fork()):
        os._exit(child.end() != "is the child of another process")
    assert os.waitpid(fork, 0)[1] == 0
    assert child.process.poll() is None
    with pytest.raises(TimeoutError):
        child.channel.receive(1e-3)  # the fork has not hung up
    if not (fork := os.fork()):  # this one has the connection for as long as it lives
        signal.pause()
    assert child.end(60.0) == "has ended with status 0"
    os.kill(fork, signal.SIGKILL)
    os.waitpid(fork, 0)


@pytest.mark.processes
def test_one_that_does_not_end_is_killed(module: str) -> None:
    child = ChildProcess(module, "stands still")
    child.channel.receive()
    child.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.process.pid, os.WSTOPPED)
    assert child.end(1e-3) == "was killed by signal 9 (SIGKILL)"


def test_one_for_which_the_machine_has_no_room_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def popen(*_: object, **__: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", popen)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(Unavailable, match=r"^the process that counts cannot be started: Resource temporarily unavail"):
        ChildProcess("a_child", "counts")
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.processes
def test_a_child_whose_interpreter_is_none_ends_before_it_says_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    child = ChildProcess("a_child", "begins")
    with pytest.raises(EOFError):
        child.channel.receive()
    assert child.end(60.0) == "has ended with status 1"


def test_a_signal_without_a_name_is_a_number() -> None:
    assert child_process._fate(-(signal.SIGRTMIN + 1)) == f"was killed by signal {signal.SIGRTMIN + 1}"
