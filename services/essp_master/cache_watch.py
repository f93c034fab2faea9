"""The current fill level of the frame cache, as far as it is known.

A query to a cache that does not answer blocks. So one thread queries it repeatedly, and all others read the last
answer: neither the master's work nor an answer to users waits for the cache. Querying also reveals what keeps the
cache from working (`FrameCache.troubles`).
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
"""An older answer counts as unknown."""


class CacheWatch:
    """Watches the usage of a cache. `latest` may be read by any thread."""

    def __init__(self, cache: FrameCache, clock: Callable[[], float] = time.monotonic) -> None:
        self._cache = cache
        self._clock = clock
        self._heard: tuple[CacheUsage, float] | None = None
        """The last answer, and when it arrived."""

    @property
    def limit_bytes(self) -> int | None:
        """The capacity that the cache reported last (0: unlimited); None if it has never answered."""
        return None if self._heard is None else self._heard[0].limit_bytes

    @property
    def latest(self) -> CacheUsage | None:
        """The current usage; None while the cache does not answer."""
        heard = self._heard
        return heard[0] if heard is not None and self._clock() - heard[1] < _FRESH_S else None

    def run(self, ended: threading.Event) -> None:
        """Query the cache periodically until `ended` is set."""
        self.ask()
        while not ended.wait(_ASK_S):
            self.ask()

    def ask(self) -> None:
        """Query the cache once; this may take long."""
        try:
            usage = self._cache.usage()
        except EsspError as error:
            log.warning("master: %s", error)
            return
        self._heard = usage, self._clock()
        metrics.CACHE_BYTES.labels("used").set(usage.used_bytes)
        metrics.CACHE_BYTES.labels("limit").set(usage.limit_bytes)
