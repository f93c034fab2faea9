"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable

LONGEST_S = 300.0
"""After so long, what a test waits for counts as stuck. Waited for in full by a test that fails, and by no other: long,
since a machine that is busy with other things is slow and not wrong."""


def until(condition: Callable[[], bool], what: str = "") -> None:
    """Return once this holds; fail when it does not come to that."""
    deadline = time.monotonic() + LONGEST_S
    while not condition():
        assert time.monotonic() < deadline, what or "it did not come true"
        time.sleep(0.005)


def runs(pid: int) -> bool:
    """Whether this process has not ended. One that has may still be listed, until somebody asks for its status."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
