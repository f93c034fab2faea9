"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable

_LONGEST_S = 60.0


def until(condition: Callable[[], bool], what: str = "") -> None:
    """Return once this holds; fail when it does not come to that."""
    deadline = time.monotonic() + _LONGEST_S
    while not condition():
        assert time.monotonic() < deadline, what or "it did not come true"
        time.sleep(0.005)
