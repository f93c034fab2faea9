"""Limits the requests per second of each caller, with a reserve for bursts. Pure.

A caller is a token, or an address if no token is sent. So guessing tokens is slow, and a runaway script does not block
all other callers. The counts belong to this process: a standby counts the requests that it forwards, and the leader
counts all.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

RESERVE_S = 2.0
"""A quiet caller may send this many seconds' worth of requests at once."""
_CALLERS = 10_000
"""Number of callers remembered. The one silent for longest is forgotten first; its reserve is full again anyway."""


class Rates:
    """A token bucket for each caller. Not thread-safe: the API runs in one thread."""

    def __init__(self, per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`per_s`: requests per second; 0 for no limit."""
        self._per_s = per_s
        self._most = max(1.0, per_s * RESERVE_S)
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Caller -> requests left, and the time of that count."""

    def wait_s(self, caller: str) -> float:
        """Return how long this caller must wait before it may ask; 0 if it may ask now, which takes one request from
        its bucket."""
        if not self._per_s:
            return 0.0
        now_s = self._clock()
        left, at_s = self._left.pop(caller, (self._most, now_s))
        left = min(self._most, left + (now_s - at_s) * self._per_s)
        taken = left >= 1.0
        self._left[caller] = (left - taken, now_s)
        if len(self._left) > _CALLERS:
            self._left.popitem(last=False)
        return 0.0 if taken else (1.0 - left) / self._per_s
