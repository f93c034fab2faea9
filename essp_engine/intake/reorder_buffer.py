"""Puts items that arrive in any order into the order of the plan. Pure: no bus, no cache, no clock.

    put(position, version, item) ──▶ items by position ──take──▶ item 0, item 1, ..., end of phase, item 0, ...

The buffer awaits one position at a time, from `start` on, and of each phase only the indices that this rank owns.

Guarantees:

- Items come once each and in order; between the last item of a phase and the first of the next comes `end_phase`, also
  for a phase of which this rank owns nothing.
- Of several items for one position the one with the highest version stays; `put` returns the one that has to go.
- An item for a position that was passed is refused, and `put` says whether its user still holds what was taken there.

The buffer holds what was put and not taken, and the positions that were taken and not released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto
from itertools import islice
from typing import Generic, TypeVar

from essp_common.job.position import Position

T = TypeVar("T")
Version = tuple[int, ...]
"""Fence, attempt, and whether that is skipped: the run, or the master, that asked for an item last decides which
attempt is right."""


class Put(Enum):
    """What became of an item that was put."""

    STORED = auto()
    """It waits for its turn."""
    REPLACED = auto()
    """It waits in place of one with a lower version."""
    DUPLICATE = auto()
    """One with the same or a higher version waits already."""
    PASSED = auto()
    """Its position was passed, and released or never taken from this buffer."""
    HELD = auto()
    """Its position was taken and is not released yet."""


class ReorderBuffer(Generic[T]):
    """Items by position. Used from one thread, except `release`."""

    def __init__(self, sizes: Sequence[int], start: Position, owns: Callable[[int], bool] = lambda index: True) -> None:
        """`sizes`: clips of each phase. `start`: the first position that is wanted. `owns`: the indices to await."""
        self._sizes = sizes
        self._owns = owns
        self._waiting: dict[tuple[int, int], tuple[Version, T]] = {}
        """By position, for which a plain tuple may stand: it is equal, and made faster."""
        self._held: set[Position] = set()
        self._next = self._owned_from(*start)

    def __len__(self) -> int:
        """How many items wait for their turn."""
        return len(self._waiting)

    @property
    def next(self) -> Position:
        """The position that is awaited."""
        return self._next

    @property
    def finished(self) -> bool:
        """Every phase is over."""
        return self._next.phase_index >= len(self._sizes)

    def put(self, position: Position, version: Version, item: T) -> tuple[Put, T | None]:
        """An item has arrived; what became of it, and the item at the same position, if another one was there."""
        if position < self._next:
            return (Put.HELD if position in self._held else Put.PASSED), None
        present = self._waiting.get(position)
        if present is not None and present[0] >= version:
            return Put.DUPLICATE, present[1]
        self._waiting[position] = (version, item)
        return (Put.STORED, None) if present is None else (Put.REPLACED, present[1])

    def peek(self) -> T | None:
        """The item that is awaited, if it is there."""
        present = self._waiting.get(self._next)
        return None if present is None else present[1]

    def upcoming(self, count: int) -> Iterator[T]:
        """The items that are there of the next `count` positions of this phase, in order."""
        if self.finished:
            return
        phase_index, first = self._next
        for index in islice(filter(self._owns, range(first, self._sizes[phase_index])), count):
            if (present := self._waiting.get((phase_index, index))) is not None:
                yield present[1]

    def missing(self) -> Iterator[Position]:
        """The position that is awaited, and those of its phase that are missing before the last item that is there."""
        phase_index, first = self._next
        last = max((index for phase, index in self._waiting if phase == phase_index), default=first)
        for index in filter(self._owns, range(first, last + 1)):
            if (phase_index, index) not in self._waiting:
                yield Position(phase_index, index)

    def take(self) -> Position:
        """Take the item that `peek` returned, and await the next one; its position, which is held until `release`."""
        taken = self._next
        del self._waiting[taken]
        self._held.add(taken)
        self._next = self._owned_from(taken.phase_index, taken.index + 1)
        return taken

    def discard(self, position: Position) -> None:
        """Forget the item that waits at this position, and await another one for it."""
        del self._waiting[position]

    def end_phase(self) -> int | None:
        """The phase that is over, once; None while items of it are awaited, or all phases are over."""
        phase_index, index = self._next
        if self.finished or index < self._sizes[phase_index]:
            return None
        self._next = self._owned_from(phase_index + 1, 0)
        return phase_index

    def release(self, position: Position) -> None:
        """What was taken at this position is no longer held. Thread-safe."""
        self._held.discard(position)

    def _owned_from(self, phase_index: int, index: int) -> Position:
        while not self._owns(index):
            index += 1
        return Position(phase_index, index)
