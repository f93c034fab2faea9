"""Failpoints: nothing where they are off, the right thing at the right time where they are on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from essp_common.errors import ConfigError, TransientError
from essp_common.runtime.failpoints import VARIABLE, Failpoints, failpoint
from tests.harness.waiting import LONGEST_S

SCRIPT = """
from essp_common.runtime.failpoints import failpoint
for number in range(3):
    failpoint("place")
    print(number, flush=True)
"""


def run(armed: str) -> subprocess.Popen[str]:
    environment = os.environ | {VARIABLE: armed}
    command = [sys.executable, "-c", SCRIPT]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def test_off_they_do_nothing() -> None:
    assert VARIABLE not in os.environ
    failpoint("anything")


@pytest.mark.processes
@pytest.mark.parametrize(("action", "number"), [("kill", signal.SIGKILL), ("segv", signal.SIGSEGV)])
def test_the_process_dies_the_nth_time(action: str, number: int) -> None:
    process = run(f"place:2:{action}")
    output, errors = process.communicate(timeout=LONGEST_S)
    assert (process.returncode, output) == (-number, "0\n")
    assert f"failpoint place: {action}" in errors


@pytest.mark.processes
def test_the_process_stops_until_it_is_told_to_go_on() -> None:
    process = run("place:1:stop")
    assert process.stderr is not None
    assert process.stderr.readline() == "failpoint place: stop\n"
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    process.send_signal(signal.SIGCONT)
    assert process.communicate(timeout=LONGEST_S)[0] == "0\n1\n2\n"


@pytest.mark.processes
def test_the_thread_hangs() -> None:
    process = run("place:2:hang")
    assert process.stderr is not None
    assert process.stderr.readline() == "failpoint place: hang\n"
    assert process.poll() is None
    process.kill()
    assert process.communicate()[0] == "0\n"


def test_errors_are_raised_where_they_are_armed() -> None:
    points = Failpoints("a:1:raise,b:2:raise,a:3:raise")
    raised = []
    for name in ("a", "b", "a", "b", "a", "c"):
        try:
            points.hit(name)
        except TransientError:
            raised.append(name)
    assert raised == ["a", "b", "a"]


@pytest.mark.parametrize("armed", ["a", "a:1", "a:0:kill", "a:x:kill", "a:1:explode", "a::kill"])
def test_what_makes_no_sense_is_refused(armed: str) -> None:
    with pytest.raises(ConfigError, match=VARIABLE):
        Failpoints(armed)
