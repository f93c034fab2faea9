"""Processes that are forked from one that has loaded what they import."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import launcher
from tests.harness.waiting import runs, until

pytestmark = pytest.mark.processes

WORKER = """
import os
from pathlib import Path
from tests.harness import launcher
with open(os.devnull, "wb") as nothing:
    started = launcher.start_child("essp_engine.decoding.probing", [], {})  # has no connection, and so an error
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


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    folder = tmp_path_factory.mktemp("preloaded")
    with launcher.for_all_workers(folder):
        yield launcher.forked_python(folder, "child")


_SCRIPT = """
import os, sys
loaded = "essp_engine.decoding.child" in sys.modules
print(sys.argv, __name__, sys.path[0], loaded, sys.stdin.read(), os.environ.get("WHO"))
sys.exit(3)
"""


def test_a_forked_python_runs_code_and_files_as_python_does(python: list[str], tmp_path: Path) -> None:
    (script := tmp_path / "script.py").write_text(_SCRIPT, encoding="utf-8")
    for code, first, folder in ((["-c", _SCRIPT], "-c", ""), ([str(script)], str(script), str(tmp_path))):
        ran = subprocess.run(
            [*python, *code, "1"],
            cwd=tmp_path,
            env={"WHO": "somebody"},
            input="text",
            capture_output=True,
            text=True,
            check=False,
        )
        assert (ran.returncode, ran.stderr) == (3, "")
        assert ran.stdout == f"{[first, '1']} __main__ {folder} True text somebody\n"
    ran = subprocess.run([*python, "-m", "script", "1"], cwd=tmp_path, stdin=-3, capture_output=True, text=True)
    assert ran.stdout.startswith(f"{[str(script), '1']} __main__ {tmp_path} True  None")
    raised = subprocess.run([*python, "-c", "1 / 0"], capture_output=True, text=True, check=False)
    assert (raised.returncode, raised.stderr.splitlines()[-1]) == (1, "ZeroDivisionError: division by zero")


_SIGNALLED = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # none is missed that comes before it is waited for
print(os.getpid(), flush=True)
signal.sigwait({signal.SIGTERM})
sys.exit(5)
"""


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 5), (signal.SIGUSR1, -signal.SIGUSR1), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_forked_python_gets_signals_and_ends_with_who_started_it(
    python: list[str], number: signal.Signals, status: int
) -> None:
    with subprocess.Popen([*python, "-c", _SIGNALLED], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.send_signal(number)
        assert process.wait() == status
    until(lambda: not runs(pid))


def test_a_forked_python_that_kills_itself_is_killed(python: list[str]) -> None:
    command = [*python, "-c", "import os; os.kill(os.getpid(), 9)"]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
