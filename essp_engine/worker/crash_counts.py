"""Counts the workers that crashed on a record, so that a record that kills its worker becomes a dead letter before it
has killed the whole pool.

The bus redelivers what a dead worker had in hand but does not say how often. A record that may have been delivered
before (`Record.redelivered`) therefore gets a count in the cache before work begins. The worker removes the count when
it survives the record, whatever the outcome, so a count that is left in the cache stands for a crash. After `limit`
crashes the record is rejected without another try. The first crash may happen before anything is counted, so at most
`limit + 1` workers die.

A worker may lose a record and live: the group is dealt anew while it works for long, or waits for room in the cache; or
its machine stood still for longer than its session lasts. Its count would stand for a crash that was none. So a worker
looks, while it has such a record in hand, whether another has begun it, and takes itself off (`take_back`). What
others know of is then at most one more than have died: the last one, who may not have looked yet.

A worker dies with all the records it has in hand, and counting would blame all of them. Records that already have a
count are therefore processed one at a time: a crash adds to the count of one record only. Those that wait for their
turn go back to the group when the worker drains: the one before them may hang.

If the cache is full, away or broken, the count stays as it is, because the work may free room. Counts that no worker
removes expire after `TTL_S`.
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
"""A record that waits for its turn looks so often whether the worker drains."""
_READER = "crash_counts"
_COUNT = re.compile(rb"([0-9]{1,9}) ([0-9]{1,9}) ([0-9a-f]{8})")


@dataclass(frozen=True, slots=True)
class _Count:
    begun: int = 0
    """Workers that began the record, and did not end it."""
    alive: int = 0
    """Those of them that were not dead when another began it."""

    @property
    def deaths(self) -> int:
        return max(0, self.begun - self.alive)


class CrashCounts:
    """The counts of one consumer group, as one worker keeps them. Thread-safe."""

    def __init__(self, cache: FrameCache, group: str, limit: int, draining: threading.Event) -> None:
        self._cache = cache
        self._digest = hashlib.blake2b(group.encode(), digest_size=8).hexdigest()
        """Of the group: extractors' names all their features, and a cache takes keys of some length."""
        self._limit = limit
        self._draining = draining
        self._suspect = threading.Lock()
        self._in_hand: dict[str, tuple[Record, int]] = {}
        """By key: what is counted, and as which of those who began it this worker counts."""

    @contextmanager
    def begun(self, record: Record) -> Iterator[int]:
        """Work on a record within this block. Yields how many crashes it has caused; with `limit` or more the caller
        must not try it again. Raises `Returned`."""
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
        """This worker lives: where another has begun what it has in hand, that was for no death. From time to time."""
        for key, (record, place) in list(self._in_hand.items()):
            try:
                count = self._read(key, record)
            except Exception:  # noqa: BLE001  nor does it answer for the others now; the next time is soon
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
        """Cannot be the key of a job: no job has a name that begins with a point."""
        return f"essp:.crashes:{{{self._digest}/{record.topic}/{record.partition}/{record.offset}}}"

    def _known(self, key: str, record: Record) -> _Count:
        """`_read`, where the work goes on without an answer."""
        try:
            return self._read(key, record)
        except Exception as error:  # noqa: BLE001  counting is not to stop what is counted
            log.warning("crashes on %s are not known: %s", key, error)
            return _Count()

    def _read(self, key: str, record: Record) -> _Count:
        """The count; none if it belongs to another record, from before the topic was created anew, or is damaged."""
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
        except Exception as error:  # noqa: BLE001  counting is not to stop what is counted
            log.warning("crashes on %s are not counted: %s", key, error)

    def _forget(self, key: str) -> None:
        try:
            self._cache.ack(key, _READER)
        except Exception as error:  # noqa: BLE001  counting is not to stop what is counted
            log.warning("crashes on %s stay counted for %g s: %s", key, TTL_S, error)


class Returned(Exception):
    """A drain came before a try: the record goes back to the group."""


def _digest(record: Record) -> bytes:
    return b"%08x" % zlib.crc32(record.value)
