"""The guard of a server: it ends with its command, ends it when told or when the parent is gone, and says how."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from essp.servers import guard
from tests.harness.waiting import LONGEST_S

pytestmark = pytest.mark.processes

STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
PLAIN = "import signal; print('up', flush=True); signal.pause()"


def guarded(script: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", "-S", guard.__file__, sys.executable, "-I", "-S", "-c", script]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def is_up(running: subprocess.Popen[bytes]) -> None:
    assert running.stdout is not None
    assert running.stdout.readline() == b"up\n"


@pytest.mark.parametrize("status", [0, 7])
def test_it_exits_with_the_status_of_its_command(status: int) -> None:
    with guarded(f"raise SystemExit({status})") as running:
        assert running.wait(LONGEST_S) == status
        assert running.stderr is not None
        assert running.stderr.read() == b""


def test_a_signal_ends_the_command() -> None:
    with guarded(PLAIN) as running:
        is_up(running)
        running.terminate()
        assert running.wait(LONGEST_S) == -signal.SIGTERM % 256


@pytest.mark.parametrize(("script", "ended_by"), [(PLAIN, signal.SIGTERM), (STUBBORN, signal.SIGKILL)])
def test_without_a_parent_the_command_ends(script: str, ended_by: signal.Signals) -> None:
    with guarded(script) as running:
        is_up(running)
        assert running.stdin is not None
        running.stdin.close()
        assert running.wait(LONGEST_S) == -ended_by % 256
