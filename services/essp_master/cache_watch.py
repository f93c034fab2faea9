"""How full the frame cache is, as far as it is known now.

A cache that does not answer keeps whoever asks it waiting. So one thread asks, again and again, and all others are told
what it heard last: neither the master's work nor an answer to people waits for the cache. Asking also shows what keeps
the cache from working (`FrameCache.troubles`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from essp_common.cache.port import CacheUsage, FrameCache
from essp_common.errors import EsspError
from essp_common.runtime import metrics

log = logging.getLogger(__name__)

_ASK_S = 0.5
_FRESH_S = 5.0
"""What was heard longer ago is not known any more."""


class CacheWatch:
    """What a cache holds. `latest` may be read by any thread."""

    def __init__(self, cache: FrameCache, clock: Callable[[], float] = time.monotonic) -> None:
        self._cache = cache
        self._clock = clock
        self._heard: tuple[CacheUsage, float] | None = None
        """The last answer, and when it came."""

    @property
    def limit_bytes(self) -> int | None:
        """The most it may hold, as it said last (0: without limit); None: it has never answered."""
        return None if self._heard is None else self._heard[0].limit_bytes

    @property
    def latest(self) -> CacheUsage | None:
        """What it holds; None while it does not answer."""
        heard = self._heard
        return heard[0] if heard is not None and self._clock() - heard[1] < _FRESH_S else None

    def run(self, ended: threading.Event) -> None:
        """Ask until then."""
        self.ask()
        while not ended.wait(_ASK_S):
            self.ask()

    def ask(self) -> None:
        """Ask once, which may take long."""
        try:
            usage = self._cache.usage()
        except EsspError as error:
            log.warning("master: %s", error)
            return
        self._heard = usage, self._clock()
        metrics.CACHE_BYTES.labels("used").set(usage.used_bytes)
        metrics.CACHE_BYTES.labels("limit").set(usage.limit_bytes)
