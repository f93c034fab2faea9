"""How often a message was begun, counted across the deaths of workers: a message that kills its worker ends as a
dead letter, and not with the pool.

A bus delivers again what a dead worker had in hand, and does not say how often it did. So, where a record may have been
delivered before (`Record.redelivered`), its count is written to the cache before work begins, and removed when the
worker survives it, whatever came of it. What is left in the cache was fatal. From `limit` such deaths on, the record is
given up without another try. The first death may come before anything is counted, so at most `limit + 1` workers die.

A worker dies with all it has in hand, and the innocent would be counted as well. Hence records that have a count
already are worked on one at a time, and counted in their turn: a death adds to the count of one of them only.

A cache that does not take the count (it is full, or away) leaves it as it is: work that could free room must go on.
Counts that nobody comes back for expire after `TTL_S`.
"""

from __future__ import annotations

import logging
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from essp_common.bus.port import Record
from essp_common.cache.port import FrameCache
from essp_common.errors import CacheMiss, TransientError

log = logging.getLogger(__name__)

TTL_S = 600.0
_READER = "deliveries"


class CrashCounts:
    """The counts of one consumer group, as one worker keeps them. Thread-safe."""

    def __init__(self, cache: FrameCache, group: str, limit: int) -> None:
        self._cache = cache
        self._group = group
        self._limit = limit
        self._suspect = threading.Lock()

    @contextmanager
    def begun(self, record: Record) -> Iterator[int]:
        """Work on a record within this block. Gives how many deaths it is known to have caused: `limit` or more
        say that it is not to be tried again."""
        if not record.redelivered:
            yield 0
            return
        key = self._key(record)
        deaths = self._read(key, record)
        with self._suspect if deaths else nullcontext():
            if deaths < self._limit:
                self._write(key, record, deaths + 1)
            try:
                yield deaths
            finally:
                self._forget(key)

    def _key(self, record: Record) -> str:
        """No job is called `.deliveries`: a name has no point."""
        return f"essp:.deliveries:{{{self._group}/{record.topic}/{record.partition}/{record.offset}}}"

    def _read(self, key: str, record: Record) -> int:
        """The count; none if it is of another record, from before the topic was made anew."""
        try:
            count, _, digest = bytes(self._cache.get(key)).partition(b" ")
        except CacheMiss:
            return 0
        except TransientError as error:
            log.warning("deliveries of %s are not known: %s", key, error)
            return 0
        return int(count) if digest == _digest(record) else 0

    def _write(self, key: str, record: Record, count: int) -> None:
        try:
            self._cache.put(key, b"%d " % count + _digest(record), [_READER], TTL_S)
        except TransientError as error:
            log.warning("deliveries of %s are not counted: %s", key, error)

    def _forget(self, key: str) -> None:
        try:
            self._cache.ack(key, _READER)
        except TransientError as error:
            log.warning("deliveries of %s stay counted for %g s: %s", key, TTL_S, error)


def _digest(record: Record) -> bytes:
    return b"%08x" % zlib.crc32(record.value)
