"""The bus within one process: `memory://`.

It guarantees what Kafka does, and no more, so that a service that works here works there: partitions keyed by message
key, groups whose partitions are reassigned when a member joins or leaves, delivery at least once. A partition that
changes its owner is delivered again from the offset below which everything was done.

Every `from_url` returns a separate bus. Nothing outlives the process, and publishing is durable at once. A record is
dropped when every group that knows its partition has committed it, and enough newer ones exist; topics that no
group reads (`essp.control`) are kept completely. Readers block on a condition variable.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import count as count_from
from typing import Self

from essp_common.bus.port import SUSPECTS, Record, check_size, has_enough
from essp_common.bus.watermark import Watermark
from essp_common.errors import ConfigError, NotFound, Unavailable
from essp_common.runtime.addresses import shown_address
from essp_common.runtime.troubles import Troubles
from essp_common.topics import DATA_PARTITIONS

RETAINED = 4096
"""Records that a topic keeps although every group has committed them, for a group that joins late."""

_STEPS = 16
"""A partition drops records when it exceeds its share of `RETAINED` by this fraction of that, or by this number."""

Slot = tuple[str, int]
"""Topic and partition."""


class _Log:
    """One partition: its records from offset `start`.

    Stored as keys and values: many are kept, and the garbage collector does not visit bytes.
    """

    def __init__(self) -> None:
        self.start = 0
        self._keys: list[bytes] = []
        self._values: list[bytes] = []

    @property
    def end(self) -> int:
        return self.start + len(self._values)

    def append(self, key: bytes, value: bytes) -> None:
        """Append a record."""
        self._keys.append(key)
        self._values.append(value)

    def read(self, offset: int, count: int) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield offset, key and value of up to `count` records."""
        first = offset - self.start
        chosen = slice(first, first + count)
        return zip(count_from(offset), self._keys[chosen], self._values[chosen], strict=False)

    def drop(self, offset: int) -> None:
        """Drop records below `offset`."""
        surplus = max(0, offset - self.start)
        del self._keys[:surplus], self._values[:surplus]
        self.start += surplus


class _Group:
    """The committed offsets and the members of a group."""

    def __init__(self) -> None:
        self.committed: dict[Slot, int] = {}
        self.members: list[MemorySubscription] = []
        self.owners: dict[Slot, MemorySubscription] = {}


class MemoryBus:
    """Implements `essp_common.bus.port.Bus` in memory."""

    def __init__(self, retained: int = RETAINED, partitions: int = DATA_PARTITIONS) -> None:
        """`partitions`: of its data topics."""
        self.partitions = partitions
        self.lock = threading.RLock()
        self.closed = False
        self._retained = retained
        self._topics: dict[str, list[_Log]] = {}
        self._groups: defaultdict[str, _Group] = defaultdict(_Group)
        self._readers: defaultdict[str, list[MemorySubscription]] = defaultdict(list)

    @classmethod
    def from_url(cls, url: str, partitions: int = DATA_PARTITIONS) -> Self:
        """Return a new, empty bus. Raises `ConfigError` for a URL other than `memory://`."""
        if url != "memory://":
            raise ConfigError(f"bus URL {shown_address(url)!r}: the memory bus has no options; write memory://")
        return cls(partitions=partitions)

    def ensure_topics(self, partitions: Mapping[str, int], kept: Collection[str] = (), grow: bool = False) -> None:
        with self.lock:
            for topic, count in partitions.items():
                present = self._topics.setdefault(topic, [_Log() for _ in range(count)])
                if grow and len(present) < count:
                    present += [_Log() for _ in range(count - len(present))]
                    self._dealt_anew(topic)
                if not has_enough(len(present), count):
                    raise ConfigError(f"topic {topic} has {len(present)} partitions, not {count}", code="conflict")

    def publish(self, topic: str, key: bytes, value: bytes, partition: int | None = None) -> None:
        check_size(topic, key, value)
        with self.lock:
            self._check_open()
            logs = self._logs(topic)
            chosen = zlib.crc32(key) % len(logs) if partition is None else partition
            if not 0 <= chosen < len(logs):
                raise ValueError(f"topic {topic} has {len(logs)} partitions, there is no {chosen}")
            logs[chosen].append(key, value)
            for reader in self._readers[topic]:
                reader.arrived((topic, chosen))

    def flush(self, timeout_s: float = 30.0) -> None:
        with self.lock:
            self._check_open()

    def subscribe(
        self, topics: Sequence[str], group: str | None, partitions: Sequence[int] | None = None
    ) -> MemorySubscription:
        with self.lock:
            self._check_open()
            slots = [(topic, number) for topic in topics for number in range(len(self._logs(topic)))]
            state = None if group is None else self._groups[group]
            subscription = MemorySubscription(self, topics, state, chosen=partitions is not None)
            for topic in topics:
                self._readers[topic].append(subscription)
            if state is not None:
                for slot in slots:
                    state.committed.setdefault(slot, self.log(slot).start)
            if state is None or partitions is not None:
                wanted = slots if partitions is None else [slot for slot in slots if slot[1] in set(partitions)]
                subscription.take(wanted)
            else:
                state.members.append(subscription)
                self._deal(state)
            return subscription

    def backlog(self, topic: str, group: str) -> int:
        with self.lock:
            committed = self._groups[group].committed if group in self._groups else {}
            return sum(log.end - committed.get((topic, n), log.start) for n, log in enumerate(self._logs(topic)))

    def begin_groups(self, groups: Mapping[str, str]) -> None:
        with self.lock:
            self._check_open()
            for name, topic in groups.items():
                ends = {(topic, number): log.end for number, log in enumerate(self._logs(topic))}
                committed = self._groups[name].committed
                if not committed.keys() & ends.keys():
                    committed |= ends

    def delete_groups(self, groups: Collection[str]) -> None:
        with self.lock:
            self._check_open()
            for name in groups:
                if name in self._groups and not self._groups[name].members:
                    del self._groups[name]

    def held(self, topic: str) -> list[range]:
        with self.lock:
            self._check_open()
            return [range(log.start, log.end) for log in self._logs(topic)]

    def troubles(self) -> Troubles:
        return {}

    def close(self) -> None:
        with self.lock:
            self.closed = True
            for readers in self._readers.values():
                for reader in readers:
                    reader.wake()

    def log(self, slot: Slot) -> _Log:
        """Return the records of one partition."""
        return self._logs(slot[0])[slot[1]]

    def leave(self, subscription: MemorySubscription, group: _Group | None) -> None:
        """End a subscription; its partitions go to the rest of its group."""
        for topic in subscription.topics:
            self._readers[topic].remove(subscription)
        if group is not None and subscription in group.members:
            group.members.remove(subscription)
            self._deal(group)

    def trim(self, slot: Slot, committed: int) -> None:
        """Drop records that every group has committed and every reader without a group has read. `committed`: by one of
        them."""
        log = self.log(slot)
        retained = self._retained // len(self._logs(slot[0]))
        if committed - log.start <= retained + max(_STEPS, retained // _STEPS):
            return  # below that, checking the others and moving the rest of the list is not worthwhile
        limits = [group.committed[slot] for group in self._groups.values() if slot in group.committed]
        limits += [r.position(slot) for r in self._readers[slot[0]] if r.group is None and slot in r.slots]
        log.drop(min(*limits, log.end - retained))

    def _logs(self, topic: str) -> list[_Log]:
        try:
            return self._topics[topic]
        except KeyError:
            raise NotFound(f"there is no topic {topic}; a master makes it when it starts") from None

    def _check_open(self) -> None:
        if self.closed:
            raise Unavailable("the memory bus is closed")

    def _dealt_anew(self, topic: str) -> None:
        """Let readers of a topic notice its new partitions, except those that chose their partitions themselves."""
        slots = [(topic, number) for number in range(len(self._logs(topic)))]
        for reader in self._readers[topic]:
            if reader.group is None and not reader.chosen:
                others = [slot for slot in reader.slots if slot[0] != topic]
                reader.take([*others, *slots])
            elif reader.group is not None:
                for slot in slots:
                    reader.group.committed.setdefault(slot, self.log(slot).start)
        for group in self._groups.values():
            if any(topic in member.topics for member in group.members):
                self._deal(group)

    def _deal(self, group: _Group) -> None:
        """Share the partitions of each topic evenly, moving as few as possible."""
        owners: dict[Slot, MemorySubscription] = {}
        for topic in sorted({topic for member in group.members for topic in member.topics}):
            members = [member for member in group.members if topic in member.topics]
            slots = [(topic, number) for number in range(len(self._logs(topic)))]
            owners |= _deal_evenly(slots, members, group.owners)
        group.owners = owners
        shares: defaultdict[MemorySubscription, list[Slot]] = defaultdict(list)
        for slot, owner in owners.items():
            shares[owner].append(slot)
        for member in group.members:
            member.take(shares[member])


def _deal_evenly(
    slots: Sequence[Slot], members: Sequence[MemorySubscription], before: Mapping[Slot, MemorySubscription]
) -> dict[Slot, MemorySubscription]:
    share, larger = divmod(len(slots), len(members))
    load = dict.fromkeys(members, 0)
    owners: dict[Slot, MemorySubscription] = {}
    for slot in slots:
        owner = before.get(slot)
        if owner in load and (load[owner] < share or (load[owner] == share and larger > 0)):
            larger -= load[owner] == share
            load[owner] += 1
            owners[slot] = owner
    for slot in slots:
        if slot not in owners:
            owners[slot] = min(members, key=load.__getitem__)
            load[owners[slot]] += 1
    return owners


class MemorySubscription:
    """Implements `essp_common.bus.port.Subscription`. The lock of its bus guards its state."""

    def __init__(self, bus: MemoryBus, topics: Sequence[str], group: _Group | None, chosen: bool) -> None:
        """`chosen`: it takes certain partitions, and gets no others."""
        self.chosen = chosen
        self.topics = tuple(topics)
        self.group = group
        self.slots: dict[Slot, Watermark] = {}
        self._begun: Counter[Slot] = Counter()
        """How often this subscription has begun to read each partition."""
        self._bus = bus
        self._ready: dict[Slot, None] = {}
        """Partitions with something to read, the longest waiting first: checking all of them costs more than a read."""
        self._changed = threading.Condition(bus.lock)
        self._waiting = False
        """Whether a reader is sleeping that nothing has woken yet."""
        self._paused = False
        self._closed = False

    def poll(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        deadline = time.monotonic() + timeout_s
        with self._bus.lock:
            while True:
                if self._bus.closed:
                    raise Unavailable("the memory bus is closed")
                records = [] if self._paused or self._closed else self._read(max_records)
                left = deadline - time.monotonic()
                if records or left <= 0 or self._closed:
                    return records
                self._waiting = True
                self._changed.wait(left)

    def done(self, record: Record) -> None:
        slot = (record.topic, record.partition)
        with self._bus.lock:
            watermark = self.slots.get(slot)
            if watermark is None or self.group is None or watermark.delivery != record.delivery:
                return
            if not watermark.done(record.offset):
                return
            self.group.committed[slot] = max(watermark.committable, self.group.committed[slot])
            self._bus.trim(slot, self.group.committed[slot])

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False

    @property
    def partitions(self) -> int:
        return len(self.slots)

    def owned(self, topic: str) -> frozenset[int]:
        with self._bus.lock:
            return frozenset(number for name, number in self.slots if name == topic)

    def close(self) -> None:
        with self._bus.lock:
            if not self._closed:
                self._closed = True
                self.slots = {}
                self._ready = {}
                self._bus.leave(self, self.group)
                self.wake()

    def take(self, slots: Sequence[Slot]) -> None:
        """Own exactly these partitions; new ones are read from the group's committed offset."""
        kept = {slot: self.slots[slot] for slot in slots if slot in self.slots}
        self.slots = {slot: kept.get(slot) or self._begin(slot) for slot in slots}
        self._ready = {slot: None for slot in slots if self._bus.log(slot).end > self.slots[slot].position}
        self.wake()

    def arrived(self, slot: Slot) -> None:
        """A record was appended to this partition."""
        if slot in self.slots:
            self._ready[slot] = None
            self.wake()

    def position(self, slot: Slot) -> int:
        """Return the offset after the last record that was delivered."""
        return self.slots[slot].position

    def wake(self) -> None:
        """Wake the reader: there may be something to read."""
        if self._waiting:
            self._waiting = False
            self._changed.notify_all()

    def _begin(self, slot: Slot) -> Watermark:
        start = self._bus.log(slot).start
        first = start if self.group is None else max(start, self.group.committed[slot])
        watermark = Watermark(first, self._begun[slot])
        self._begun[slot] += 1
        return watermark

    def _read(self, max_records: int) -> list[Record]:
        records: list[Record] = []
        while self._ready and len(records) < max_records:
            slot = next(iter(self._ready))
            del self._ready[slot]
            watermark, log = self.slots[slot], self._bus.log(slot)
            suspects = 0 if self.group is None else watermark.start + SUSPECTS
            for offset, key, value in log.read(watermark.position, max_records - len(records)):
                watermark.delivered(offset)
                if self.group is None:
                    watermark.done(offset)
                records.append(Record(*slot, offset, key, value, offset < suspects, watermark.delivery))
            if log.end > watermark.position:
                # To the end of the queue, so that a busy partition does not starve the others.
                self._ready[slot] = None
        return records
