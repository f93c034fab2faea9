"""Sets of indices that stay small however many they hold: bitmaps of blocks.

Ten million indices take at most 1.3 MB, in memory and as a message, in any pattern. A few take a few hundred bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from typing import Self

from essp_common.pb.v1.messages_pb2 import Indices

BLOCK = 1024
"""Indices of one block."""


class IndexSet(Set[int]):
    """A set of indices >= 0."""

    __slots__ = ("_blocks", "_size")

    def __init__(self, indices: Iterable[int] = ()) -> None:
        self._blocks: dict[int, int] = {}
        self._size = 0
        for index in indices:
            self.add(index)

    @classmethod
    def of(cls, message: Indices) -> Self:
        """The set that a message holds. Raises `ValueError` if no set makes such a message."""
        made = cls()
        if len(set(message.blocks)) != len(message.blocks) or any(not 0 < len(b) <= BLOCK // 8 for b in message.bits):
            raise ValueError("indices in blocks that are there twice, or have too many or none")
        made._blocks = {b: int.from_bytes(bits, "little") for b, bits in zip(message.blocks, message.bits, strict=True)}
        made._size = sum(bits.bit_count() for bits in made._blocks.values())
        return made

    def message(self) -> Indices:
        """The set as a message."""
        blocks = sorted(self._blocks)
        bits = [self._blocks[block] for block in blocks]
        return Indices(blocks=blocks, bits=[value.to_bytes(-(-value.bit_length() // 8), "little") for value in bits])

    def add(self, index: int) -> bool:
        """Add an index; False if it was in the set."""
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
        """Add the indices from `first` to before `end`, if there are any."""
        for block in range(first // BLOCK, -(-end // BLOCK)) if first < end else ():
            low, high = max(first - block * BLOCK, 0), min(end - block * BLOCK, BLOCK)
            present = self._blocks.get(block, 0)
            self._blocks[block] = filled = present | (1 << high) - (1 << low)
            self._size += filled.bit_count() - present.bit_count()

    @property
    def first(self) -> int:
        """The lowest index of a set that is not empty."""
        return next(iter(self))

    @property
    def last(self) -> int:
        """The highest index of a set that is not empty."""
        block = max(self._blocks)
        return block * BLOCK + self._blocks[block].bit_length() - 1

    def block(self, block: int) -> int:
        """The bits of the indices from `block * BLOCK` on, as many as a block has."""
        return self._blocks.get(block, 0)

    def take_run(self, start: int) -> int:
        """Remove the indices that follow one another from `start` on; the first one after them."""
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
