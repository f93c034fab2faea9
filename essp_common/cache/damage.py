"""Counts and reports values of a frame cache that are not what was stored under their keys, and are therefore not used.

The first one is only logged, since a flipped bit in months needs no action; several within ten minutes are a condition,
since something is broken (`Kind.CACHE_DAMAGED`). Values of another release are not damage: for as long as such values
come, users see that two releases are in use (`Kind.MIXED_RELEASES`).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from essp_common.cache.seal import Foreign, OfOtherRelease, Unsound
from essp_common.errors import CacheMiss, OtherRelease
from essp_common.runtime import forks, metrics
from essp_common.runtime.troubles import Kind, Troubles

log = logging.getLogger(__name__)

_MANY = 3
_WITHIN_S = 600.0
_MIXED_WITHIN_S = 150.0
"""A consumer whose next clip is always from another release reads one such value every 30 s."""


class Damage:
    """The damaged values that one cache has recently returned. Thread-safe."""

    def __init__(self, where: str, clock: Callable[[], float]) -> None:
        """`where` names the cache in messages."""
        self._where = where
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: deque[float] = deque(maxlen=_MANY)
        self._last = ""
        self._of_others: deque[float] = deque(maxlen=_MANY)
        forks.follow(self)

    def forked(self) -> None:
        """Replace the lock, which another thread may have held."""
        self._lock = threading.Lock()

    def found(self, key: str, error: Unsound) -> CacheMiss:
        """Record such a value, and return the error to raise for it."""
        words = f"{key}: {error}"
        foreign = isinstance(error, Foreign)
        metrics.CACHE_UNSOUND.labels("foreign" if foreign else "damaged").inc()
        if isinstance(error, OfOtherRelease):
            with self._lock:
                self._of_others.append(self._clock())
            return OtherRelease(words)
        if not foreign:
            with self._lock:
                now_s = self._clock()
                first = not self._seen or now_s - self._seen[-1] >= _WITHIN_S
                self._seen.append(now_s)
                self._last = words
            if first:
                log.warning("%s: %s; it is made again", self._where, words)
        return CacheMiss(words)

    def troubles(self) -> Troubles:
        """Report that there were many values of either kind."""
        return {**self._damaged(), **self._mixed()}

    def _mixed(self) -> Troubles:
        with self._lock:
            if len(self._of_others) < _MANY or self._clock() - self._of_others[0] >= _MIXED_WITHIN_S:
                return {}
        return {
            Kind.MIXED_RELEASES: f"{self._where} holds values of another release of ESSP: workers of two releases are "
            "at work. They are made again until the older workers have left; end those, or finish the upgrade"
        }

    def _damaged(self) -> Troubles:
        with self._lock:
            if len(self._seen) < _MANY or self._clock() - self._seen[0] >= _WITHIN_S:
                return {}
            return {
                Kind.CACHE_DAMAGED: f"{self._where} returns values that differ from what was stored; they are made "
                f"again; check its memory, the network and any proxy before it (last: {self._last})"
            }
