"""Where a child process looks for modules."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from essp_common.runtime.children import module_command
from tests.harness.waiting import LONGEST_S


@pytest.mark.parametrize("searched", [False, True])
def test_a_child_searches_the_folder_it_starts_in_where_its_parent_does(
    searched: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["/elsewhere", *([str(tmp_path)] if searched else [])])
    expected = ["-m", "a.b", "1", "c"] if searched else ["-P", "-m", "a.b", "1", "c"]
    assert module_command("a.b", 1, "c")[1:] == expected


def test_a_child_of_an_interpreter_searches_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", "/elsewhere"])
    assert "-P" not in module_command("a.b")


_FIRST_CHILD = """
import signal, multiprocessing, time
from essp_common.runtime.children import deaf_to_interrupts
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(0,))
    with deaf_to_interrupts():
        child.start()
        blocked = open(f"/proc/{child.pid}/status").read().partition("SigBlk:")[2].split()[0]
    child.join()
    print(bool(int(blocked, 16) >> signal.SIGINT - 1 & 1), signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""


def test_the_first_child_of_a_process_is_deaf_to_ctrl_c_too(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(_FIRST_CHILD)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=LONGEST_S)
    assert done.stdout == "True set()\n", done.stderr
