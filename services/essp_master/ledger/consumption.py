"""Which clips a consumer is done with, stored as compactly as the order of consumption allows.

Consumers take clips in index order, so one watermark per phase covers nearly all of them. Reports may overtake one
another, and so may the ranks of a trainer; a small set holds the clips beyond the watermark that are already done.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from functools import reduce
from operator import and_
from typing import Self

from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import ConsumerState, Indices

BLOCK = 1024
"""Indices per block."""


class IndexSet(Set[int]):
    """A set of indices that stays small however many it contains: bitmaps of blocks.

    Ten million indices take at most 1.3 MB, in memory and as a message, in any pattern. A few indices take a few
    hundred bytes.
    """

    __slots__ = ("_blocks", "_size")

    def __init__(self, indices: Iterable[int] = ()) -> None:
        self._blocks: dict[int, int] = {}
        self._size = 0
        for index in indices:
            self.add(index)

    @classmethod
    def of(cls, message: Indices) -> Self:
        """Read a set from a message. Raises `ValueError` if no set would produce this message."""
        made = cls()
        if len(set(message.blocks)) != len(message.blocks) or any(not 0 < len(b) <= BLOCK // 8 for b in message.bits):
            raise ValueError("indices in blocks that are there twice, or have too many or none")
        made._blocks = {b: int.from_bytes(bits, "little") for b, bits in zip(message.blocks, message.bits, strict=True)}
        made._size = sum(bits.bit_count() for bits in made._blocks.values())
        return made

    def message(self) -> Indices:
        """Return the set as a message."""
        blocks = sorted(self._blocks)
        bits = [self._blocks[block] for block in blocks]
        return Indices(blocks=blocks, bits=[value.to_bytes(-(-value.bit_length() // 8), "little") for value in bits])

    def add(self, index: int) -> bool:
        """Add an index. Returns False if it was already in the set."""
        block, bit = index // BLOCK, 1 << index % BLOCK
        present = self._blocks.get(block, 0)
        if present & bit:
            return False
        self._blocks[block] = present | bit
        self._size += 1
        return True

    def remove(self, index: int) -> None:
        """Remove an index that is in the set."""
        block = index // BLOCK
        left = self._blocks[block] & ~(1 << index % BLOCK)
        self._size -= 1
        if left:
            self._blocks[block] = left
        else:
            del self._blocks[block]

    def update(self, indices: Iterable[int]) -> None:
        """Add indices."""
        for index in indices:
            self.add(index)

    def fill(self, first: int, end: int) -> None:
        """Add the indices from `first` up to, but not including, `end`."""
        for block in range(first // BLOCK, -(-end // BLOCK)) if first < end else ():
            low, high = max(first - block * BLOCK, 0), min(end - block * BLOCK, BLOCK)
            present = self._blocks.get(block, 0)
            self._blocks[block] = filled = present | (1 << high) - (1 << low)
            self._size += filled.bit_count() - present.bit_count()

    @property
    def first(self) -> int:
        """The lowest index of a non-empty set."""
        return next(iter(self))

    @property
    def last(self) -> int:
        """The highest index of a non-empty set."""
        block = max(self._blocks)
        return block * BLOCK + self._blocks[block].bit_length() - 1

    def block(self, block: int) -> int:
        """Return the bits of the `BLOCK` indices from `block * BLOCK`."""
        return self._blocks.get(block, 0)

    def take_run(self, start: int) -> int:
        """Remove the consecutive indices from `start`, and return the first index after them."""
        while True:
            block, place = divmod(start, BLOCK)
            bits = self._blocks.get(block, 0)
            ahead = bits >> place
            run = (ahead ^ (ahead + 1)).bit_length() - 1
            if not run:
                return start
            bits ^= ((1 << run) - 1) << place
            if bits:
                self._blocks[block] = bits
            else:
                del self._blocks[block]
            self._size -= run
            start += run

    def __contains__(self, index: object) -> bool:
        return isinstance(index, int) and self._blocks.get(index // BLOCK, 0) >> index % BLOCK & 1 == 1

    def __iter__(self) -> Iterator[int]:
        for block in sorted(self._blocks):
            bits = self._blocks[block]
            while bits:
                lowest = bits & -bits
                yield block * BLOCK + lowest.bit_length() - 1
                bits ^= lowest

    def __len__(self) -> int:
        return self._size


_MOST_RETIRED = 64


class Consumption:
    """The clips that one consumer is done with, over all phases."""

    def __init__(self, sizes: Sequence[int], start: Position, rest: Position, absent: bool = False) -> None:
        """`sizes`: clips of each phase. Everything before `start` is done; `absent`: a loop that wants nothing yet.
        `rest`: the beginning of the phases that follow all epochs."""
        self._sizes = sizes
        self._rest = rest
        self.incarnation = ""
        """For a loop: the process that currently takes part under its name."""
        self.retired: list[str] = []
        """Its previous incarnations, up to a limit."""
        self.begin(start)
        if absent:
            self.leave()

    @classmethod
    def restored(cls, sizes: Sequence[int], rest: Position, state: ConsumerState) -> Self:
        """Restore from a message. Raises `ValueError` if it names clips that no phase has."""
        name = state.consumer
        if len(state.below) != len(sizes):
            raise ValueError(f"{name} has {len(state.below)} phases, and the job {len(sizes)}")
        consumption = cls(sizes, Position.of(state.start), rest, state.absent)
        consumption.incarnation, consumption.retired = state.incarnation, list(state.retired)
        consumption.stopped = Position.of(state.stopped) if state.HasField("stopped") else None
        consumption._wanted_from = (
            Position.of(state.wanted_from) if state.HasField("wanted_from") else consumption.start
        )
        consumption._below = list(state.below)
        consumption._beyond = {phase_index: IndexSet.of(beyond) for phase_index, beyond in state.beyond.items()}
        for phase_index, (below, size) in enumerate(zip(consumption._below, sizes, strict=True)):
            if below > size:
                raise ValueError(f"{name} is done with {below} clips of phase {phase_index}, which has {size}")
        for phase_index, beyond in consumption._beyond.items():
            if not beyond or not consumption._below[phase_index] < beyond.first <= beyond.last < sizes[phase_index]:
                raise ValueError(f"{name} is done with clips of phase {phase_index} that it cannot be done with")
        consumption.total = sum(consumption._below) + sum(map(len, consumption._beyond.values()))
        return consumption

    def state(self, consumer: str) -> ConsumerState:
        """Return the complete state as a message."""
        return ConsumerState(
            consumer=consumer,
            start=self.start.message(),
            below=self._below,
            beyond={phase_index: beyond.message() for phase_index, beyond in self._beyond.items()},
            absent=self.absent,
            incarnation=self.incarnation,
            retired=self.retired,
            stopped=None if self.stopped is None else self.stopped.message(),
            wanted_from=None if self._wanted_from == self.start else self._wanted_from.message(),
        )

    def begin(self, start: Position) -> None:
        """Want everything from here, and nothing before it."""
        self.absent = False
        """A loop that takes no part: it counts as done with everything."""
        self.start = start
        self._wanted_from = start
        """Before `start` if the consumer fell back to there: it is done with the clips in between, and wants them
        again."""
        self.stopped: Position | None = None
        """For a trainer that stopped early: it wants nothing from here to the phases that follow all epochs."""
        self._below = [self._before(phase_index) for phase_index in range(len(self._sizes))]
        self._beyond: dict[int, IndexSet] = {}
        self.total = sum(self._below)
        """Number of clips of all phases that are done."""

    def replace_incarnation(self, incarnation: str) -> None:
        """Another process has taken this name."""
        if self.incarnation:
            self.retired = [*self.retired, self.incarnation][-_MOST_RETIRED:]
        self.incarnation = incarnation

    @property
    def next_start(self) -> Position:
        """The consumer wants everything from here that is issued from now on."""
        return self.start if self.stopped is None else max(self.start, self._rest)

    def stop(self, position: Position) -> None:
        """Want nothing from here to the phases that follow all epochs, and count that as done."""
        self.stopped = position
        for phase_index in range(position.phase_index, self._rest.phase_index):
            first = position.index if phase_index == position.phase_index else 0
            below, beyond = self._below[phase_index], self._beyond.pop(phase_index, IndexSet())
            before = below + len(beyond)
            beyond.fill(max(first, below), self._sizes[phase_index])
            self._below[phase_index] = beyond.take_run(below)
            if beyond:
                self._beyond[phase_index] = beyond
            self.total += self.done(phase_index) - before

    def reach(self, position: Position) -> dict[int, list[int]]:
        """Count everything before a position as done, and no longer want it. Returns the newly done clips by phase."""
        fresh = {}
        for phase_index, size in enumerate(self._sizes[: position.phase_index + 1]):
            end = size if phase_index < position.phase_index else min(position.index, size)
            indices = [index for index in range(self._below[phase_index], end) if not self.has(phase_index, index)]
            if indices:
                fresh[phase_index] = indices
                self.add_all(phase_index, set(indices))
        self.start, self._wanted_from = max(self.start, position), max(self._wanted_from, position)
        return fresh

    def fall_back(self, position: Position) -> None:
        """Want clips from here again on request, although they are done."""
        self._wanted_from = min(self._wanted_from, position)

    def begin_again(self, position: Position, end: Position, coming: Set[int]) -> None:
        """Mark the clips from `position` that were not issued yet as not done: those from `end`, and those in `coming`
        before it."""
        self.start = self._wanted_from = position
        if self.stopped is not None and position < self.stopped:
            self.stopped = None
        for phase_index in range(position.phase_index, len(self._sizes)):
            first = position.index if phase_index == position.phase_index else 0
            last = end.index if phase_index == end.phase_index else 0
            issued = [i for i in range(first, last) if i not in coming and self.has(phase_index, i)]
            below, beyond = self._below[phase_index], self._beyond.pop(phase_index, IndexSet())
            left = IndexSet([*(index for index in beyond if index < first), *issued])
            self.total -= below + len(beyond)
            self._below[phase_index] = left.take_run(min(below, first))
            if left:
                self._beyond[phase_index] = left
            self.total += self.done(phase_index)

    def leave(self) -> None:
        """Want nothing more."""
        self.begin(Position(len(self._sizes), 0))
        self.absent = True

    def add(self, phase_index: int, index: int) -> bool:
        """Count a clip as done. Returns False if it was already done."""
        if self.has(phase_index, index):
            return False
        self.add_all(phase_index, {index})
        return True

    def add_all(self, phase_index: int, indices: set[int]) -> None:
        """Count clips as done. None of them may be done already."""
        self.total += len(indices)
        below = self._below[phase_index]
        end = below + len(indices)
        beyond = self._beyond.get(phase_index)
        if beyond is None:
            if indices.issuperset(range(below, end)):  # nearly always
                self._below[phase_index] = end
                return
            beyond = self._beyond[phase_index] = IndexSet()
        beyond.update(indices)
        self._below[phase_index] = beyond.take_run(below)
        if not beyond:
            del self._beyond[phase_index]

    def has(self, phase_index: int, index: int) -> bool:
        """Whether this clip is done."""
        return index < self._below[phase_index] or index in self._beyond.get(phase_index, ())

    def wants(self, phase_index: int, index: int) -> bool:
        """Whether this clip belongs to those that the consumer began with or continues with."""
        return (phase_index, index) >= self._wanted_from and not self.skips(phase_index, index)

    def skips(self, phase_index: int, index: int) -> bool:
        """Whether the consumer stopped before this clip and wants nothing until the phases that follow all epochs."""
        return self.stopped is not None and self.stopped <= (phase_index, index) < self._rest

    def owes(self, phase_index: int, index: int) -> bool:
        """Whether the consumer wants this clip and is not done with it."""
        return self.wants(phase_index, index) and not self.has(phase_index, index)

    def done(self, phase_index: int) -> int:
        """Return how many clips of a phase are done."""
        return self._below[phase_index] + len(self._beyond.get(phase_index, ()))

    def position(self) -> Position:
        """Return the position of the first clip that is not done."""
        for phase_index, (below, size) in enumerate(zip(self._below, self._sizes, strict=True)):
            if below < size:
                return Position(phase_index, below)
        return Position(len(self._sizes), 0)

    def below(self, phase_index: int) -> int:
        """Return the first index of a phase that is not done."""
        return self._below[phase_index]

    def block(self, phase_index: int, block: int) -> int:
        """Return the bits of the done clips in one block of indices (`IndexSet.block`)."""
        below = min(max(self._below[phase_index] - block * BLOCK, 0), BLOCK)
        beyond = self._beyond.get(phase_index)
        return (1 << below) - 1 | (beyond.block(block) if beyond is not None else 0)

    def _before(self, phase_index: int) -> int:
        if phase_index < self.start.phase_index:
            return self._sizes[phase_index]
        return min(self.start.index, self._sizes[phase_index]) if phase_index == self.start.phase_index else 0


def done_by_all(consumption: Collection[Consumption], phase_index: int, end: int) -> int:
    """Return how many clips of a phase, before the index `end`, all these consumers are done with.

    Counts whole blocks of indices at once: a phase may have millions of clips, and the master waits meanwhile.
    """
    below = min(end, *(each.below(phase_index) for each in consumption))
    if below == end:
        return end
    count = 0
    for block in range(below // BLOCK, -(-end // BLOCK)):
        bits = reduce(and_, (each.block(phase_index, block) for each in consumption))
        count += (bits & (1 << min(end - block * BLOCK, BLOCK)) - 1).bit_count()
    return below // BLOCK * BLOCK + count
