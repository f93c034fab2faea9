"""What a server has refused, by call: one call may be refused while others work.

A refusal is over when the same call succeeds. It expires if the call is not repeated, since it is then unknown whether
it still holds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from essp_common.runtime import forks

_FORGOTTEN_S = 30.0


class _Refused(NamedTuple):
    words: str
    told_s: float
    """When users start to see it."""
    since_s: float
    last_s: float
    """When the call was last refused."""


class Refusals:
    """The calls that a server refuses now. Thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._refused: dict[str, _Refused] = {}
        forks.follow(self)

    def forked(self) -> None:
        """Replace the lock, which another thread may have held."""
        self._lock = threading.Lock()

    def refused(self, call: str, words: str, lasts_s: float = 0.0) -> float:
        """Note that the server has refused this call. Returns for how many seconds it has done so. `lasts_s`: refusals
        that last shorter than this are not reported."""
        with self._lock:
            now_s = self._clock()
            before = self._refused.get(call)
            since_s = before.since_s if before and now_s - before.last_s < _FORGOTTEN_S else now_s
            self._refused[call] = _Refused(words, since_s + lasts_s, since_s, now_s)
            return now_s - since_s

    def works(self, call: str) -> None:
        """Note that the server has carried out this call."""
        if call in self._refused:  # hardly ever, and every clip passes here
            with self._lock:
                self._refused.pop(call, None)

    @property
    def words(self) -> str:
        """Why the most recently refused call was refused; empty if none is."""
        with self._lock:
            now_s = self._clock()
            told = [it for it in self._refused.values() if it.told_s <= now_s < it.last_s + _FORGOTTEN_S]
            return max(told, key=lambda it: it.last_s).words if told else ""
