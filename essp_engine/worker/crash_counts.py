"""Counts the workers that crashed on a record, so that a record that kills its worker becomes a dead letter before it
has killed the whole pool.

The bus redelivers the unfinished records of a dead worker, but does not say how often. So a record that may have been
delivered before (`Record.redelivered`) gets a count in the cache before work begins. The worker removes the count when
it survives the record, whatever the outcome, so a count that remains in the cache means a crash. After `limit` crashes
the record is rejected without another try. The first crash may happen before anything is counted, so at most `limit +
1` workers die.

A worker may also lose a record and stay alive: the group rebalances while the worker is busy for long or waits for room
in the cache, or its machine was suspended for longer than its session. Its count would be taken for a crash that never
happened. So while a worker processes such a record, it checks whether another worker has begun it, and if so subtracts
itself (`take_back`). The count is then at most one more than the number of deaths: the last worker may not have checked
yet.

A worker dies with all the records it is processing, and counting would blame all of them. Therefore records that
already have a count are processed one at a time: a crash then increases the count of only one record. Records that wait
for their turn go back to the group when the worker drains, because the one before them may hang.

If the cache is full, unreachable or broken, the count stays unchanged, because the work itself may free room. Counts
that no worker removes expire after `TTL_S`.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

from essp_common.bus.port import Record
from essp_common.cache.port import FrameCache
from essp_common.errors import CacheMiss

log = logging.getLogger(__name__)

TTL_S = 600.0
_LOOK_S = 0.1
"""How often a waiting record checks whether the worker drains."""
_READER = "crash_counts"
_COUNT = re.compile(rb"([0-9]{1,9}) ([0-9]{1,9}) ([0-9a-f]{8})")


@dataclass(frozen=True, slots=True)
class _Count:
    begun: int = 0
    """Workers that began the record and did not finish it."""
    alive: int = 0
    """Those of them that were still alive when another worker began it."""

    @property
    def deaths(self) -> int:
        return max(0, self.begun - self.alive)


class CrashCounts:
    """The counts of one consumer group, as kept by one worker. Thread-safe."""

    def __init__(self, cache: FrameCache, group: str, limit: int, draining: threading.Event) -> None:
        self._cache = cache
        self._digest = hashlib.blake2b(group.encode(), digest_size=8).hexdigest()
        """A digest of the group, because the names of extractor groups list all their features, and cache keys are
        limited in length."""
        self._limit = limit
        self._draining = draining
        self._suspect = threading.Lock()
        self._in_hand: dict[str, tuple[Record, int]] = {}
        """By key: the counted record, and this worker's number among those that began it."""

    @contextmanager
    def begun(self, record: Record) -> Iterator[int]:
        """Count work on a record during this block. Yields the number of crashes that it has caused; if it is `limit`
        or more, the caller must not try again. Raises `Returned`."""
        if not record.redelivered:
            yield 0
            return
        key = self._key(record)
        count = self._known(key, record)
        with self._turn() if count.deaths else nullcontext():
            if count.deaths < self._limit:
                self._write(key, record, replace(count, begun=count.begun + 1))
                self._in_hand[key] = record, count.begun + 1
            try:
                yield count.deaths
            finally:
                self._in_hand.pop(key, None)
                self._forget(key)

    def take_back(self) -> None:
        """Subtract this worker from counts of records that another worker has begun although this one is alive. Call it
        periodically."""
        for key, (record, place) in list(self._in_hand.items()):
            try:
                count = self._read(key, record)
            except Exception:  # noqa: BLE001  it would not answer for the others either; the next call comes soon
                return
            if count.begun > place and self._in_hand.pop(key, None) is not None:
                self._write(key, record, replace(count, alive=count.alive + 1))

    @contextmanager
    def _turn(self) -> Iterator[None]:
        while not self._suspect.acquire(timeout=_LOOK_S):
            if self._draining.is_set():
                raise Returned
        try:
            yield
        finally:
            self._suspect.release()

    def _key(self, record: Record) -> str:
        """The prefix cannot collide with a job's keys: no job name begins with a dot."""
        return f"essp:.crashes:{{{self._digest}/{record.topic}/{record.partition}/{record.offset}}}"

    def _known(self, key: str, record: Record) -> _Count:
        """`_read`, but work continues without an answer."""
        try:
            return self._read(key, record)
        except Exception as error:  # noqa: BLE001  counting must not stop the work
            log.warning("crashes on %s are not known: %s", key, error)
            return _Count()

    def _read(self, key: str, record: Record) -> _Count:
        """The count; zero if it is damaged, or belongs to another record from before the topic was recreated."""
        try:
            found = _COUNT.fullmatch(bytes(self._cache.get(key)))
        except CacheMiss:
            return _Count()
        if found is None or found[3] != _digest(record):
            return _Count()
        return _Count(int(found[1]), int(found[2]))

    def _write(self, key: str, record: Record, count: _Count) -> None:
        try:
            self._cache.put(key, b"%d %d %b" % (count.begun, count.alive, _digest(record)), [_READER], TTL_S)
        except Exception as error:  # noqa: BLE001  counting must not stop the work
            log.warning("crashes on %s are not counted: %s", key, error)

    def _forget(self, key: str) -> None:
        try:
            self._cache.ack(key, _READER)
        except Exception as error:  # noqa: BLE001  counting must not stop the work
            log.warning("crashes on %s stay counted for %g s: %s", key, TTL_S, error)


class Returned(Exception):
    """The worker drains before the record was tried: the record goes back to the group."""


def _digest(record: Record) -> bytes:
    return b"%08x" % zlib.crc32(record.value)
