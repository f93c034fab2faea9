"""What is left to do when a process ends is done once, in that process alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

_SCRIPT = """
import multiprocessing, os, sys
from essp_common.runtime.at_exit import at_exit

def once(name):
    def end():
        take_back()
        print(name, flush=True)

    take_back = at_exit(end)
    return take_back

def child():
    once("first of the child")
    once("second of the child")
    once("taken back")()

once("script")
{start}
"""

_STARTS = {
    "multiprocessing": """
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join()
""",
    "os.fork": """
if os.fork() == 0:
    child()
    sys.exit()
os.wait()
""",
}


@pytest.mark.processes
@pytest.mark.parametrize("start", _STARTS)
def test_a_fork_ends_what_is_its_own(start: str) -> None:
    """`end` of the script guards itself against forks by `os.fork`, as those that hold resources do."""
    script = _SCRIPT.format(start=_STARTS[start])
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    children = ["second of the child", "first of the child"]
    assert [line for line in done.stdout.splitlines() if line != "script"] == children
    assert done.stdout.splitlines()[-1] == "script"
