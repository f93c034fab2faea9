"""Buffered records from several partitions, delivered oldest first.

kafka-python reads one partition to its end before the next. A worker that took records in that order could do what is
needed last before what is needed next, across everything outstanding. So the oldest record of all partitions is next,
by its publishing time; records of one partition keep their order whatever their times are. A time in the future, from a
publisher whose clock is ahead, counts as the time of arrival: otherwise its records would wait for as long as there are
others.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection
from heapq import heapify, heappop, heappush, heapreplace

from kafka import TopicPartition

from essp_common.bus.port import Record


class ReadAhead:
    """Not thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.size_bytes = 0
        """Of all values."""
        self._count = 0
        self._waiting: dict[TopicPartition, deque[tuple[int, Record]]] = {}
        """Contains only partitions with records."""
        self._first: list[tuple[int, TopicPartition]] = []
        """A heap: the time of each partition's first record."""

    def __len__(self) -> int:
        return self._count

    def add(self, slot: TopicPartition, time_ms: int, record: Record) -> None:
        """Add the next record of a partition. `time_ms`: when it was published, since 1970."""
        time_ms = min(time_ms, int(1000 * self._clock()))
        waiting = self._waiting.get(slot)
        if waiting is None:
            waiting = self._waiting[slot] = deque()
            heappush(self._first, (time_ms, slot))
        waiting.append((time_ms, record))
        self._count += 1
        self.size_bytes += len(record.value)

    def pop(self) -> tuple[TopicPartition, Record]:
        """Remove and return the oldest record. Raises `IndexError` if there is none left."""
        slot = self._first[0][1]
        waiting = self._waiting[slot]
        _, record = waiting.popleft()
        if waiting:
            heapreplace(self._first, (waiting[0][0], slot))
        else:
            heappop(self._first)
            del self._waiting[slot]
        self._count -= 1
        self.size_bytes -= len(record.value)
        return slot, record

    def drop(self, slots: Collection[TopicPartition]) -> None:
        """Drop the records of these partitions."""
        for slot in slots:
            for _, record in self._waiting.pop(slot, ()):
                self._count -= 1
                self.size_bytes -= len(record.value)
        self._first = [first for first in self._first if first[1] in self._waiting]
        heapify(self._first)
