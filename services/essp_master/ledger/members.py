"""Loops of the user's own: consumers that come and go.

A loop that takes no part is absent: it counts as done with every clip, so nobody waits for it. One that comes says
where it begins, and wants everything from there on. Where there are only loops, and all of them are absent, nothing is
issued, and the job does not end.

- What was not issued yet it gets with the others.
- What was issued already is made again for it alone: it is a straggler that has these clips yet to get
  (`stragglers.py`). So a loop that was killed goes on where its state says, and holds nobody back.

One that leaves gives back what it had not taken (`departures.py`).

Several processes may come under one name, one after the other. The incarnation tells them apart: a new one replaces the
one before, and what an old one says is of no account. A loop says again and again where it began: a master that was
restored from an earlier state places it there.
"""

from __future__ import annotations

from collections.abc import Iterator

from essp_common.pb.v1.messages_pb2 import Loop
from essp_common.planning.position import Position
from essp_master.ledger.books import Books
from essp_master.ledger.closing import Closer
from essp_master.ledger.departures import Departures
from essp_master.ledger.instructions import Instruction, TellOfLoops
from essp_master.ledger.states import REOPENED
from essp_master.ledger.stragglers import Stragglers

_LONGEST = 256
"""Characters of an incarnation: the ledger keeps those of a while, and anybody may send one."""


class Members:
    """Which loops take part. Part of the ledger."""

    def __init__(self, books: Books, stragglers: Stragglers, closer: Closer, departures: Departures) -> None:
        self._books = books
        self._closer = closer
        self._departures = departures
        self._order = books.order
        self._outstanding = books.outstanding
        self._sizes = [phase.clips for phase in books.config.phases]
        self._stragglers = stragglers

    def present(self) -> list[Loop]:
        """The loops that take part, and where they began."""
        return [
            Loop(consumer=name, incarnation=each.incarnation, position=each.start.message())
            for name, each in self._books.consumption.items()
            if each.incarnation and not each.absent
        ]

    def account(self, event: Loop, out: list[Instruction]) -> None:
        """A loop says that it takes part, or leaves."""
        consumption = self._books.consumption.get(event.consumer)
        if consumption is None or event.consumer not in self._books.config.loops:
            return
        if not 0 < len(event.incarnation) <= _LONGEST or event.incarnation in consumption.retired:
            return
        news = event.incarnation != consumption.incarnation
        if event.left:
            if not news and not consumption.absent:
                self._leave(event.consumer, out)
                out.append(TellOfLoops())
            return
        asked = self._inside(Position.of(event.position)) if event.HasField("position") else None
        if not news and not consumption.absent and asked in (None, consumption.start):
            return
        if news:
            consumption.replace_incarnation(event.incarnation)
        if not consumption.absent:
            self._leave(event.consumer, out)
        self._join(event.consumer, self._next_pass() if asked is None else asked, out)
        out.append(TellOfLoops())

    def is_outdated(self, consumer: str, incarnation: str) -> bool:
        """Whether this was said by a process that another one of its name has replaced."""
        consumption = self._books.consumption.get(consumer)
        return consumption is not None and incarnation in consumption.retired

    # --- coming and going ---

    def _join(self, name: str, start: Position, out: list[Instruction]) -> None:
        books, bit = self._books, self._books.parts.bit[name]
        passed = list(self._passed_from(start))
        counted = [position for position in passed if self._was_counted(position)]
        books.consumption[name].begin(start)
        self._departures.note()
        self._order.place(bit, start)
        for position in counted:
            self._closer.uncount(position.phase_index)
            if (entry := self._outstanding.get(position)) is not None:
                self._outstanding.owe(entry)
        if passed:
            self._stragglers.open(name, start, out)
        for phase_index, begin, end in self._order.pass_over():
            self._closer.pass_over(phase_index, end - begin, out)

    def _leave(self, name: str, out: list[Instruction]) -> None:
        books, bit = self._books, self._books.parts.bit[name]
        owed = self._stragglers.dismiss(name)
        books.consumption[name].leave()
        self._departures.note()
        self._order.place(bit, None)
        for position in owed:
            self._closer.count(*position, 0, out)
        for entry in self._outstanding.entries():
            if entry.left & bit:
                self._departures.give_back(entry, out)

    # --- where ---

    def _inside(self, position: Position) -> Position:
        """The first clip at or after a position that anybody may name."""
        if position.phase_index >= len(self._sizes):
            return Position(len(self._sizes), 0)
        return position if position.index < self._sizes[position.phase_index] else Position(position.phase_index + 1, 0)

    def _next_pass(self) -> Position:
        """The beginning of the first phase of which nothing is issued yet."""
        begin = self._order.begin
        if begin.index == 0 and not any(self._passed_from(begin)):
            return begin
        phase_index, index = self._order.end
        return Position(phase_index + (index > 0), 0)

    def _passed_from(self, start: Position) -> Iterator[Position]:
        """The clips from `start` on that were issued, or passed over."""
        end = self._order.end
        for phase_index in range(start.phase_index, min(end.phase_index + 1, len(self._sizes))):
            first = start.index if phase_index == start.phase_index else 0
            last = self._sizes[phase_index] if phase_index < end.phase_index else end.index
            for index in range(first, min(last, self._sizes[phase_index])):
                if self._order.passed(position := Position(phase_index, index)):
                    yield position

    def _was_counted(self, position: Position) -> bool:
        """Whether the end of a clip was counted: everybody is done with it, though one may want it once more."""
        entry = self._outstanding.get(position)
        if entry is not None and entry.state not in REOPENED:
            return False
        return all(each.has(*position) for each in self._books.consumption.values())
