"""Records that were read from several partitions and wait to be handed out, the oldest first.

kafka-python empties one partition after the other. A worker that took records as they come would make what is wanted
last before what is wanted next, as far as everything that is outstanding reaches. So the oldest of all partitions is
next, by the time at which it was published; those of one partition keep their order whatever their times say. A time
that is still to come, of a publisher whose clock is ahead, counts as that of the arrival: else its records would wait
for as long as there are others.
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
        """No partition without records."""
        self._first: list[tuple[int, TopicPartition]] = []
        """A heap: of each partition the time of its first record."""

    def __len__(self) -> int:
        return self._count

    def add(self, slot: TopicPartition, time_ms: int, record: Record) -> None:
        """The next record of a partition. `time_ms`: when it was published, since 1970."""
        time_ms = min(time_ms, int(1000 * self._clock()))
        waiting = self._waiting.get(slot)
        if waiting is None:
            waiting = self._waiting[slot] = deque()
            heappush(self._first, (time_ms, slot))
        waiting.append((time_ms, record))
        self._count += 1
        self.size_bytes += len(record.value)

    def pop(self) -> tuple[TopicPartition, Record]:
        """The oldest record. Raises `IndexError` if there is none."""
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
        """Forget the records of these partitions."""
        for slot in slots:
            for _, record in self._waiting.pop(slot, ()):
                self._count -= 1
                self.size_bytes -= len(record.value)
        self._first = [first for first in self._first if first[1] in self._waiting]
        heapify(self._first)
