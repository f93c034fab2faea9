"""How often one caller may ask: so many requests a second, and some in reserve for who was quiet. Pure.

A caller is a token, or an address where no token is shown; so who tries tokens out is slowed down, and a script that
has run wild does not take the master from everybody else. The counts are this process's own: a standby, which passes on
what it is asked, counts as well, and the leader counts all.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

RESERVE_S = 2.0
"""Requests of so many seconds may come at once."""
_CALLERS = 10_000
"""Callers that are remembered; the one that was silent longest is forgotten first, which does not affect it."""


class Rates:
    """A bucket for each caller, out of which each request takes one. Not thread-safe: the API is one thread."""

    def __init__(self, per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`per_s`: requests a second; 0: as many as come."""
        self._per_s = per_s
        self._most = max(1.0, per_s * RESERVE_S)
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Caller -> requests left at a moment."""

    def wait_s(self, caller: str) -> float:
        """How long this caller has to wait before it may ask; 0: it may now, and has."""
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
