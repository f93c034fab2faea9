"""The order of issue: every clip of every pass that some consumer still wants, as work units.

A function of the plans and of where the consumers start, never of timing. The passes follow one another; within one
the order is that of `Plan.units`, of which long units are divided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from essp_common.layout import Position
from essp_common.plan import Plan, PlannedClip

Unit: TypeAlias = tuple[int, tuple[PlannedClip, ...], tuple[str, ...]]
"""Number of the pass, clips of one video, and the consumers who want them."""

_CHUNK = 64
"""Indices that are planned at once when there is no locality window."""


class IssueOrder:
    """The units to issue, one after the other."""

    def __init__(
        self,
        sizes: Sequence[int],
        plan_of: Callable[[int], Plan],
        start: dict[str, Position],
        unit_clips: int,
        locality: int,
    ) -> None:
        """`sizes`: clips of each pass. `start`: where each consumer stands. `unit_clips`: most clips of a unit."""
        self._sizes = sizes
        self._plan_of = plan_of
        self._start = start
        self._unit_clips = unit_clips
        self._chunk = locality or _CHUNK
        self._everyone = tuple(start)
        self._last = max(start.values())
        self._units = self._all()
        self._next: Unit | None = None

    def peek(self) -> Unit | None:
        """The next unit, or None when all were taken."""
        if self._next is None:
            self._next = next(self._units, None)
        return self._next

    def take(self) -> None:
        """Go on to the unit after the next."""
        self._next = None

    def _all(self) -> Iterator[Unit]:
        first = min(self._start.values())
        for number in range(first.pass_index, len(self._sizes)):
            plan, size = self._plan_of(number), self._sizes[number]
            begin = first.clips if number == first.pass_index else 0
            while begin < size:
                end = min(size, (begin // self._chunk + 1) * self._chunk)
                for unit in plan.units(begin, end):
                    for place in range(0, len(unit), self._unit_clips):
                        yield from self._by_consumers(number, unit[place : place + self._unit_clips])
                begin = end

    def _by_consumers(self, number: int, clips: Sequence[PlannedClip]) -> Iterator[Unit]:
        """A unit, divided where the consumers who want its clips differ, for some start later than others."""
        if (number, min(clip.index for clip in clips)) >= (self._last.pass_index, self._last.clips):
            yield number, tuple(clips), self._everyone
            return
        groups: dict[tuple[str, ...], list[PlannedClip]] = {}
        for clip in clips:
            here = Position(number, clip.index)
            wanted = tuple(name for name, start in self._start.items() if here >= start)
            groups.setdefault(wanted, []).append(clip)
        for wanted, group in groups.items():
            yield number, tuple(group), wanted
