"""For how long a server has not answered.

A client waits for an answer, and gives up after its timeout; then its caller tries again. To users all of that is one
silence, which began with the first call. No extra calls are made for this: only actual calls are observed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from essp_common.errors import Unavailable
from essp_common.runtime import forks

_FORGOTTEN_S = 60.0
"""How long an unanswered call counts if no other follows: then it is unknown whether the server would answer."""


class Silence:
    """The calls to one server. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._under_way: dict[object, float] = {}
        """When each call under way began."""
        self._vain: tuple[float, float] | None = None
        """When the first of the unanswered calls began, and when the last one ended; None if the last one was
        answered."""

        forks.follow(self)

    def forked(self) -> None:
        """Replace the lock, which another thread may have held, and forget the parent's calls."""
        self._lock = threading.Lock()
        self._under_way = {}

    @contextmanager
    def call(self) -> Iterator[None]:
        """Observe a call. `Unavailable` means that there was no answer; any other error is an answer."""
        token, began_s = object(), self._clock()
        with self._lock:
            self._under_way[token] = began_s
        answered = True
        try:
            yield
        except Unavailable:
            answered = False
            raise
        finally:
            with self._lock:
                self._under_way.pop(token, None)
                if answered:
                    self._vain = None
                else:
                    self._vain = (self._vain[0] if self._vain else began_s, self._clock())

    def lasts_s(self) -> float:
        """Return how long the silence has lasted; 0 if there is none."""
        with self._lock:
            now_s = self._clock()
            began_s = min(self._under_way.values(), default=now_s)
            if self._vain is not None and (self._under_way or now_s - self._vain[1] < _FORGOTTEN_S):
                began_s = min(began_s, self._vain[0])
        return now_s - began_s
