"""Puts items that arrive in any order into the order of the plan. Pure: no bus, no cache, no clock.

    put(position, version, item) ──▶ items by position ──take──▶ item 0, item 1, ..., end of phase, item 0, ...

The buffer awaits one position at a time, beginning at `start`, and only the indices of each phase that this rank owns.

Guarantees:

- Each item is returned once and in order; between the last item of a phase and the first of the next, `end_phase`
  returns the phase, even if this rank owns nothing in it.
- If several items arrive for one position, the item with the highest version stays; `put` returns the one to drop.
- An item for a position that was passed is refused, and `put` says whether its user still holds the item taken there.

The buffer holds items that were put and not taken, and positions that were taken and not released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto
from itertools import islice
from typing import Generic, TypeVar

from essp_common.job.position import Position

T = TypeVar("T")
Version = tuple[int, ...]
"""Fence, attempt, and whether the item is skipped: the latest request, by a run or by the master, decides which attempt
is valid."""


class Put(Enum):
    """The outcome of `put`."""

    STORED = auto()
    """It waits for its turn."""
    REPLACED = auto()
    """It waits and has replaced an item with a lower version."""
    DUPLICATE = auto()
    """An item with the same or a higher version already waits."""
    PASSED = auto()
    """Its position was passed, and was released or never taken from this buffer."""
    HELD = auto()
    """Its position was taken and is not released yet."""


class ReorderBuffer(Generic[T]):
    """Items by position. Used from one thread, except `release`."""

    def __init__(self, sizes: Sequence[int], start: Position, owns: Callable[[int], bool] = lambda index: True) -> None:
        """`sizes`: clips of each phase. `start`: the first position to await. `owns`: the indices to await."""
        self._sizes = sizes
        self._owns = owns
        self._waiting: dict[tuple[int, int], tuple[Version, T]] = {}
        """By position. A plain tuple may be the key: it is equal, and faster to create."""
        self._held: set[Position] = set()
        self._next = self._owned_from(*start)

    def __len__(self) -> int:
        """The number of items that wait for their turn."""
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
        """Add an item. Returns the outcome, and the item to drop if another item was at this position."""
        if position < self._next:
            return (Put.HELD if position in self._held else Put.PASSED), None
        present = self._waiting.get(position)
        if present is not None and present[0] >= version:
            return Put.DUPLICATE, present[1]
        self._waiting[position] = (version, item)
        return (Put.STORED, None) if present is None else (Put.REPLACED, present[1])

    def peek(self) -> T | None:
        """The awaited item, if it has arrived."""
        present = self._waiting.get(self._next)
        return None if present is None else present[1]

    def upcoming(self, count: int) -> Iterator[T]:
        """The items that have arrived for the next `count` positions of this phase, in order."""
        if self.finished:
            return
        phase_index, first = self._next
        for index in islice(filter(self._owns, range(first, self._sizes[phase_index])), count):
            if (present := self._waiting.get((phase_index, index))) is not None:
                yield present[1]

    def missing(self) -> Iterator[Position]:
        """The awaited position, and the gaps of its phase before the last item that has arrived."""
        phase_index, first = self._next
        last = max((index for phase, index in self._waiting if phase == phase_index), default=first)
        for index in filter(self._owns, range(first, last + 1)):
            if (phase_index, index) not in self._waiting:
                yield Position(phase_index, index)

    def take(self) -> Position:
        """Take the item that `peek` returned and await the next one. Returns its position, which is held until
        `release`."""
        taken = self._next
        del self._waiting[taken]
        self._held.add(taken)
        self._next = self._owned_from(taken.phase_index, taken.index + 1)
        return taken

    def discard(self, position: Position) -> None:
        """Forget the item at this position, and await another one for it."""
        del self._waiting[position]

    def end_phase(self) -> int | None:
        """The phase that is over, once; None while items of it are awaited, or after the last phase."""
        phase_index, index = self._next
        if self.finished or index < self._sizes[phase_index]:
            return None
        self._next = self._owned_from(phase_index + 1, 0)
        return phase_index

    def release(self, position: Position) -> None:
        """The item that was taken at this position is no longer held. Thread-safe."""
        self._held.discard(position)

    def _owned_from(self, phase_index: int, index: int) -> Position:
        size = self._sizes[phase_index] if phase_index < len(self._sizes) else 0
        while index < size and not self._owns(index):
            index += 1
        return Position(phase_index, index)
