"""What consumers say of where they are.

`Members` are loops of the user's own, which come and go. `Trainers` save, stop early, or find a checkpoint damaged.
"""

from __future__ import annotations

from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import CheckpointReady, Loop, StoppedEarly
from essp_common.runtime import ids
from essp_engine.seeding.instructions import Instruction, TellOfLoops
from essp_master.ledger.batches import PhaseEvent
from essp_master.ledger.books import Books
from essp_master.ledger.closing import Closer, Departures
from essp_master.ledger.consumption import Consumption
from essp_master.ledger.stragglers import Stragglers

_LONGEST = 256
"""Characters of an incarnation: the ledger keeps those of a while, and anybody may send one."""


class Members:
    """Loops of the user's own: consumers that come and go. Part of the ledger.

    A loop that takes no part is absent: it counts as done with every clip, so nobody waits for it. One that comes says
    where it begins, and wants everything from there on. Where there are only loops, and all of them are absent, nothing
    is issued, and the job does not end.

    - What was not issued yet it gets with the others.
    - What was issued already is made again for it alone: it is a straggler that has these clips yet to get
      (`stragglers.py`). So a loop that was killed goes on where its state says, and holds nobody back.

    One that leaves gives back what it had not taken (`closing.py`).

    Several processes may come under one name, one after the other. The incarnation tells them apart: a new one replaces
    the one before, and what an old one says is of no account. A loop says again and again where it began: a master that
    was restored from an earlier state places it there.
    """

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
        falls_behind = self._order.has_passed_from(start)
        for entry in self._outstanding.reopened():
            if entry.position >= start and self._everybody_has(entry.position):
                self._outstanding.owe(entry)
        books.consumption[name].begin(start)
        self._departures.note()
        self._order.place(bit, start)
        self._closer.recount(self._issued_from(start), out)
        if falls_behind:
            self._stragglers.open(name, start, out)
        for phase_index, begin, end in self._order.pass_over():
            self._closer.pass_over(phase_index, end - begin, out)

    def _leave(self, name: str, out: list[Instruction]) -> None:
        books, bit = self._books, self._books.parts.bit[name]
        owed_from = books.consumption[name].position()
        self._stragglers.dismiss(name)
        books.consumption[name].leave()
        self._departures.note()
        self._order.place(bit, None)
        self._closer.recount(self._issued_from(owed_from), out)
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
        if begin.index == 0 and not self._order.has_passed_from(begin):
            return begin
        phase_index, index = self._order.end
        return Position(phase_index + (index > 0), 0)

    def _issued_from(self, start: Position) -> range:
        """The phases of which clips from `start` on may have been issued."""
        return range(start.phase_index, min(self._order.end.phase_index + 1, len(self._sizes)))

    def _everybody_has(self, position: Position) -> bool:
        return all(each.has(*position) for each in self._books.consumption.values())


class Trainers:
    """What trainers say of where they are. Part of the ledger.

    A checkpoint holds all before its position, and a trainer that stops early saves first.

    As a rule the ledger knows that much from their reports. But a trainer may have gone on in the run before while this
    one began, and have saved after the master had looked. It goes on from there, and says so, or is done and gone: then
    nobody takes what lies between. So what was made of it is freed on its behalf, and what was not issued yet is not
    made for it.

    A trainer that stops early (none of its last epochs was better than the best one before, `artifacts/early_stop.py`)
    wants nothing from there to the phases that follow all epochs, and counts as done with it. The others go on. What is
    left to nobody is passed over: it is neither issued nor decoded. It says again that it has stopped whenever it is
    started; that changes nothing.

    A trainer that finds its newest checkpoint damaged goes on from an older one, perhaps from before the ledger's
    start. It asks for what it needs from there: what was issued is made again for it, and the rest is issued to it in
    its turn.
    """

    def __init__(self, books: Books, stragglers: Stragglers, closer: Closer, departures: Departures) -> None:
        self._books = books
        self._closer = closer
        self._departures = departures
        self._stragglers = stragglers
        self._end = Position(len(books.config.phases), 0)

    def saved(self, event: CheckpointReady, events: list[PhaseEvent], out: list[Instruction]) -> None:
        """A trainer has saved, or goes on from what it has saved."""
        name = ids.trainer_consumer(event.trainer)
        consumption = self._books.consumption.get(name)
        if consumption is not None and event.HasField("position"):
            self._reach(name, consumption, Position.of(event.position), events, out)

    def stopped(self, event: StoppedEarly, events: list[PhaseEvent], out: list[Instruction]) -> None:
        """A trainer has stopped early."""
        name, position, rest = ids.trainer_consumer(event.trainer), Position.of(event.position), self._books.config.rest
        consumption = self._books.consumption.get(name)
        if consumption is None or consumption.stopped is not None or not position < rest:
            return
        self._reach(name, consumption, position, events, out)
        consumption.stop(position)
        self._step_over(name, range(position.phase_index, rest.phase_index), out)

    def asked(self, name: str, position: Position) -> None:
        """A trainer asks for a clip: if it is done with that, it has fallen back."""
        books, consumption = self._books, self._books.consumption.get(name)
        if consumption is None or name in books.config.loops or not consumption.has(*position):
            return
        if books.order.passed(position):
            consumption.fall_back(position)
            return
        consumption.begin_again(position, books.order.end, books.order.coming())
        self._departures.note()
        self._stragglers.go_back(name, position)
        books.order.place(books.parts.bit[name], consumption.next_start)

    def _reach(
        self, name: str, consumption: Consumption, told: Position, events: list[PhaseEvent], out: list[Instruction]
    ) -> None:
        """Count everything before a position as done, if it is not."""
        position, bit = min(told, self._end), self._books.parts.bit[name]
        if consumption.position() >= position and not self._books.outstanding.is_left_before(bit, position):
            return
        for phase_index, indices in consumption.reach(position).items():
            events.append(PhaseEvent(phase_index, "trained_before", name, indices))
        self._step_over(name, range(min(position.phase_index + 1, self._end.phase_index)), out)

    def _step_over(self, name: str, phases: range, out: list[Instruction]) -> None:
        """Free, and issue no more, what a trainer wants no longer of these phases."""
        books = self._books
        self._departures.note()
        self._stragglers.pass_over(name)
        books.order.place(books.parts.bit[name], books.consumption[name].next_start)
        self._closer.recount(phases, out)
        for entry in books.outstanding.entries():
            self._departures.give_back(entry, out)
        for phase_index, begin, end in books.order.pass_over():
            self._closer.pass_over(phase_index, end - begin, out)
