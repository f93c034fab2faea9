"""The order of issue: every clip of every phase that some consumer still wants, as work units.

It is a function of the plans and of where the consumers start, never of timing. The phases follow one another. Within a
phase, units come in the order of `Plan.units`; long units are divided (`planning/work_units.py`). The order asks the
plan for one stretch of indices at a time: a locality window, or `_STRETCH` indices without one.

A straggler has a separate order: its catch-up queue.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import IssueState
from essp_engine.planning.planned_clip import PlannedClip
from essp_engine.planning.work_units import units_of
from essp_master.ledger.config import LedgerConfig
from essp_master.ledger.consumption import IndexSet

Unit: TypeAlias = tuple[int, tuple[PlannedClip, ...], int]
"""A phase's index, clips of one video in it, and the consumers that want them (bits of `ClipParts`). A plain tuple,
since in a random order nearly every clip is a unit by itself."""

_BEGINNING = Position(0, 0)
_STRETCH = 64
"""Indices planned at once if there is no locality window."""


class IssueOrder:
    """The units to issue, one after the other."""

    def __init__(self, config: LedgerConfig, start: Mapping[int, Position], window: int = 0) -> None:
        """`start`: the bit of each consumer that gets these units -> where it starts. `window`: number of indices
        issued together; default: the job's."""
        self._sizes = [phase.clips for phase in config.phases]
        self._plan_of = config.plan_of
        self._start = dict(start)
        self._unit_clips = config.unit_clips
        self._window = window or config.locality or _STRETCH
        self._together = bool(window or config.locality)
        first = min(start.values(), default=_BEGINNING)
        self._phase_index = first.phase_index
        self._begin = self._end = first.index
        self._units: list[Unit] = []
        """The remaining units of the stretch from `_begin` to `_end`, the next one last."""
        self._known_coming: set[int] | None = None
        """Their indices, computed on first use; only then is it worthwhile to maintain them."""

    def state(self) -> IssueState:
        """Return the progress as a message."""
        coming = self.coming()
        issued = IndexSet(index for index in range(self._begin, self._end) if index not in coming)
        return IssueState(phase_index=self._phase_index, begin=self._begin, end=self._end, issued=issued.message())

    def restore(self, state: IssueState) -> None:
        """Continue from the progress in `state`."""
        self._phase_index, self._begin, self._end = state.phase_index, state.begin, state.end
        issued = IndexSet.of(state.issued)
        units = [
            (phase_index, left, consumers)
            for phase_index, clips, consumers in self._stretch()
            if (left := tuple(clip for clip in clips if clip.index not in issued))
        ]
        self._turn_to(units)

    def peek(self) -> Unit | None:
        """Return the next unit, or None if all were taken."""
        while not self._units:
            if not self._advance():
                return None
            self._turn_to(self._stretch())
        return self._units[-1]

    def take(self) -> Unit:
        """Take the unit that `peek` returned."""
        unit = self._units.pop()
        if self._known_coming is not None:
            self._known_coming.difference_update(clip.index for clip in unit[1])
        return unit

    def take_alike(self, clips: int, reach: int) -> list[tuple[PlannedClip, ...]]:
        """Take the next units, starting with the one of `peek`, as long as they are for the same consumers, have at
        most `clips` clips together, and each ends before the index `reach`."""
        coming, taken, self._known_coming = self._units, [], None
        _, unit, consumers = coming[-1]
        wanted = consumers
        while wanted == consumers and len(unit) <= clips and unit[-1].index < reach:
            taken.append(unit)
            clips -= len(unit)
            coming.pop()
            if not coming:
                break
            _, unit, wanted = coming[-1]
        return taken

    def place(self, bit: int, start: Position | None) -> None:
        """Give a consumer units from `start`; None: no more units."""
        if start is None:
            self._start.pop(bit, None)
        else:
            self._start[bit] = start
        coming = self.coming()
        units = [
            unit
            for phase_index, clips, _ in self._stretch()
            if (present := [clip for clip in clips if clip.index in coming])
            for unit in self._by_consumers(phase_index, present)
        ]
        self._turn_to(units)

    def pass_over(self) -> Iterator[tuple[int, int, int]]:
        """Advance to the first clip that some consumer wants, if it lies beyond this stretch.

        Yields what is passed over: a phase, the first of its indices, and the index after the last.
        """
        first = min(self._start.values(), default=_BEGINNING)
        if first <= self.end:
            return
        for phase_index, clips, _ in self._units:
            for clip in clips:
                yield phase_index, clip.index, clip.index + 1
        for phase_index in range(self._phase_index, min(first.phase_index + 1, len(self._sizes))):
            begin = self._end if phase_index == self._phase_index else 0
            end = self._sizes[phase_index] if phase_index < first.phase_index else first.index
            if begin < end:
                yield phase_index, begin, end
        self._turn_to([])
        self._phase_index, self._begin, self._end = first.phase_index, first.index, first.index

    @property
    def wanted(self) -> bool:
        """Whether any consumer gets units from this order."""
        return bool(self._start)

    @property
    def begin(self) -> Position:
        """The beginning of the present stretch."""
        return Position(self._phase_index, self._begin)

    @property
    def end(self) -> Position:
        """The end of the present stretch, where the next one will begin."""
        return Position(self._phase_index, self._end)

    def passed(self, position: Position) -> bool:
        """Whether this clip was taken, or lies before every consumer's start."""
        phase_index, index = position
        if phase_index != self._phase_index or not self._begin <= index < self._end:
            return position < (self._phase_index, self._begin)
        return index not in self.coming()

    def count_passed(self, phase_index: int) -> int:
        """Return how many clips of a phase were taken, or lie before every consumer's start."""
        if phase_index != self._phase_index:
            return self._sizes[phase_index] if phase_index < self._phase_index else 0
        return self._end - len(self.coming())

    def has_passed_from(self, start: Position) -> bool:
        """Whether any clip from `start` was taken, or lies before every consumer's start."""
        for phase_index in range(start.phase_index, min(self._phase_index + 1, len(self._sizes))):
            first = start.index if phase_index == start.phase_index else 0
            if phase_index < self._phase_index:
                if first < self._sizes[phase_index]:
                    return True
            elif first < self._begin or not self.coming().issuperset(range(first, self._end)):
                return True
        return False

    def coming(self) -> set[int]:
        """Return the indices of the present stretch that were not taken yet."""
        if self._known_coming is None:
            self._known_coming = {clip.index for _, clips, _ in self._units for clip in clips}
        return self._known_coming

    def _turn_to(self, units: Sequence[Unit]) -> None:
        """Make these units the next ones."""
        self._units, self._known_coming = [*reversed(units)], None

    def _advance(self) -> bool:
        """Advance to the next stretch. Returns False if there is none left."""
        while self._phase_index < len(self._sizes):
            self._begin, size = self._end, self._sizes[self._phase_index]
            if self._begin < size:
                self._end = min(size, (self._begin // self._window + 1) * self._window)
                return True
            self._phase_index, self._begin, self._end = self._phase_index + 1, 0, 0
        return False

    def _stretch(self) -> list[Unit]:
        if self._begin == self._end:
            return []
        phase_index, most = self._phase_index, self._unit_clips
        parts: list[Sequence[PlannedClip]] = []
        for unit in self._plan_of(phase_index).units(self._begin, self._end):
            if len(unit) <= most:
                parts.append(unit)
            else:
                parts += units_of(unit, most, self._together)
        begin, end = self.begin, self.end
        # All clips of the stretch have the same consumers, unless one starts within it.
        if not any(begin < start < end for start in self._start.values()):
            wanted = sum(bit for bit, start in self._start.items() if start <= begin)
            return [(phase_index, tuple(clips), wanted) for clips in parts]
        return [unit for clips in parts for unit in self._by_consumers(phase_index, clips)]

    def _by_consumers(self, phase_index: int, clips: Sequence[PlannedClip]) -> Iterator[Unit]:
        """Divide a unit if some of its clips lie before the start of a consumer."""
        groups: dict[int, list[PlannedClip]] = {}
        for clip in clips:
            position = Position(phase_index, clip.index)
            wanted = sum(bit for bit, start in self._start.items() if position >= start)
            groups.setdefault(wanted, []).append(clip)
        for wanted, group in groups.items():
            yield phase_index, tuple(group), wanted


@dataclass(slots=True, eq=False)
class CatchUpQueue:
    """The catch-up queue of a straggler, which gets its clips from here, alone and at its own pace.

    The queue has its own order of issue, which begins at the first clip that the straggler is not done with, and a
    share of the budget that nothing else may use. That share pays for the clips that no other consumer still wants.
    """

    consumer: str
    bit: int
    """The consumer's bit in `ClipParts`."""
    order: IssueOrder
    share_bytes: int
    joins: Position | None = None
    """From this position, the consumer gets its clips together with the others again. None while it is far behind."""
    bytes: int = 0
    """Bytes that its clips occupy, or that are reserved for them."""
    positions: set[Position] = field(default_factory=set)
    """The positions of its clips."""
    _furthest: list[tuple[int, int]] = field(default_factory=list)
    """A heap of the negated `positions`, present and former ones."""

    def add(self, position: Position) -> None:
        """Charge a clip to this queue's share."""
        self.positions.add(position)
        heapq.heappush(self._furthest, (-position.phase_index, -position.index))

    def furthest(self) -> Position | None:
        """Return the last of its clips in the order of the plan, or None."""
        while self._furthest:
            phase_index, index = self._furthest[0]
            position = Position(-phase_index, -index)
            if position in self.positions:
                return position
            heapq.heappop(self._furthest)
        return None

    def serves(self, position: Position) -> bool:
        """Whether the consumer gets this clip from here, and not with the others."""
        return self.joins is None or position < self.joins
