"""What a server has refused to do, call by call: one may be refused while others work.

A refusal is over when the same call works. It is forgotten where none follows, since nobody knows whether it still
holds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

_FORGOTTEN_S = 30.0


class Refusals:
    """The calls that a server refuses now. Thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._refused: dict[str, tuple[str, float]] = {}
        """Call -> why, and when it was refused last."""

    def refused(self, call: str, words: str) -> None:
        """The server has refused this call."""
        with self._lock:
            self._refused[call] = words, self._clock()

    def works(self, call: str) -> None:
        """The server has done this call."""
        if call in self._refused:  # hardly ever, and each clip comes by here
            with self._lock:
                self._refused.pop(call, None)

    @property
    def words(self) -> str:
        """Why the call was refused that was refused last; empty: none is."""
        with self._lock:
            words, last_s = max(self._refused.values(), key=lambda refusal: refusal[1], default=("", 0.0))
            return words if self._clock() - last_s < _FORGOTTEN_S else ""
