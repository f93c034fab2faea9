"""The order of issue: every clip of every phase that some consumer still wants, as work units.

A function of the plans and of where the consumers start, never of timing. The phases follow one another; within one
the order is that of `Plan.units`, of which long units are divided. Plans are asked for a stretch of indices at a time:
a locality window, or as many as are planned at once without one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from essp_common.pb.v1.messages_pb2 import IssueState
from essp_common.planning.plan import Plan, PlannedClip
from essp_common.planning.position import Position
from essp_master.ledger.indices import IndexSet

Place: TypeAlias = tuple[int, int]
"""Pass number and index."""
Unit: TypeAlias = tuple[int, tuple[PlannedClip, ...], int]
"""Number of the phase, clips of one video, and the consumers who want them (bits of `ClipParts`)."""

_STRETCH = 64
"""Indices that are planned at once when there is no locality window."""


class IssueOrder:
    """The units to issue, one after the other."""

    def __init__(
        self,
        sizes: Sequence[int],
        plan_of: Callable[[int], Plan],
        start: Mapping[int, Position],
        unit_clips: int,
        locality: int,
    ) -> None:
        """`sizes`: clips of each phase. `start`: where each consumer (its bit) stands. `unit_clips`: most clips of a
        unit."""
        self._sizes = sizes
        self._plan_of = plan_of
        self._start = start
        self._unit_clips = unit_clips
        self._window = locality or _STRETCH
        self._everyone = sum(start)
        self._last = max(start.values())
        first = min(start.values())
        self._number = first.phase_index
        self._begin = self._end = first.index
        self._units: list[Unit] = []
        """Of the stretch from `_begin` to `_end`, those to come, the next one last."""

    def state(self) -> IssueState:
        """How far it has come, as a message."""
        coming = self._coming()
        issued = IndexSet(index for index in range(self._begin, self._end) if index not in coming)
        return IssueState(phase_index=self._number, begin=self._begin, end=self._end, issued=issued.message())

    def restore(self, state: IssueState) -> None:
        """Go on where `state` had come to."""
        self._number, self._begin, self._end = state.phase_index, state.begin, state.end
        issued = IndexSet.of(state.issued)
        units = [unit for unit in self._stretch() if unit[1][0].index not in issued]
        self._units = units[::-1]

    def peek(self) -> Unit | None:
        """The next unit, or None when all were taken."""
        while not self._units:
            if not self._go_on():
                return None
            self._units = self._stretch()[::-1]
        return self._units[-1]

    def take(self) -> None:
        """Go on to the unit after the next."""
        self._units.pop()

    @property
    def begin(self) -> Place:
        """Where the present stretch begins."""
        return (self._number, self._begin)

    @property
    def end(self) -> Place:
        """Where the present stretch ends, and the next one will begin."""
        return (self._number, self._end)

    def passed(self, place: Place) -> bool:
        """Whether this clip was taken (or lies before where anybody started)."""
        if place[0] != self._number or not self._begin <= place[1] < self._end:
            return place < (self._number, self._begin)
        return place[1] not in self._coming()

    def _coming(self) -> set[int]:
        return {clip.index for _, clips, _ in self._units for clip in clips}

    def _go_on(self) -> bool:
        """Turn to the stretch after this one; False: there is none."""
        while self._number < len(self._sizes):
            self._begin, size = self._end, self._sizes[self._number]
            if self._begin < size:
                self._end = min(size, (self._begin // self._window + 1) * self._window)
                return True
            self._number, self._begin, self._end = self._number + 1, 0, 0
        return False

    def _stretch(self) -> list[Unit]:
        if self._begin == self._end:
            return []
        number, most, everyone = self._number, self._unit_clips, self._everyone
        parts: list[Sequence[PlannedClip]] = []
        for unit in self._plan_of(number).units(self._begin, self._end):
            if len(unit) <= most:
                parts.append(unit)
            else:
                parts += [unit[place : place + most] for place in range(0, len(unit), most)]
        if self.begin >= self._last:
            return [(number, tuple(clips), everyone) for clips in parts]
        return [unit for clips in parts for unit in self._by_consumers(number, clips)]

    def _by_consumers(self, number: int, clips: Sequence[PlannedClip]) -> Iterator[Unit]:
        """A unit, divided where the consumers who want its clips differ, for some start later than others."""
        groups: dict[int, list[PlannedClip]] = {}
        for clip in clips:
            here = Position(number, clip.index)
            wanted = sum(bit for bit, start in self._start.items() if here >= start)
            groups.setdefault(wanted, []).append(clip)
        for wanted, group in groups.items():
            yield number, tuple(group), wanted
