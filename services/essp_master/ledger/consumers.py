"""Handles what consumers report about their position.

`Members` are the user's own loops, which come and go. `Trainers` save, stop early, or find a damaged checkpoint.
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
"""Longest incarnation, in characters: the ledger keeps a number of them, and any client may send one."""


class Members:
    """The user's own loops: consumers that come and go. Part of the ledger.

    A loop that takes no part is absent: it counts as done with every clip, so no consumer waits for it. A loop that
    joins reports where it begins, and wants everything from there. If there are only loops and all of them are absent,
    nothing is issued, and the job does not end.

    - Clips that were not issued yet, it gets together with the others.
    - Clips that were issued already are rebuilt for it alone: it is a straggler that is owed these clips
      (`stragglers.py`). So a loop that was killed continues at the position in its state, and holds no other back.

    A loop that leaves returns the clips that it had not taken (`closing.py`).

    Several processes may join under one name, one after the other. The incarnation distinguishes them: a new process
    replaces the previous one, and messages of the old one are ignored. A loop repeats where it began, so that a master
    restored from an earlier state puts it there again.
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
        """Return the loops that take part, with their starting positions."""
        return [
            Loop(consumer=name, incarnation=each.incarnation, position=each.start.message())
            for name, each in self._books.consumption.items()
            if each.incarnation and not each.absent
        ]

    def account(self, event: Loop, out: list[Instruction]) -> None:
        """A loop reports that it takes part, or leaves."""
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
        """Whether this message came from a process that another one of the same name has replaced."""
        consumption = self._books.consumption.get(consumer)
        return consumption is not None and incarnation in consumption.retired

    # --- joining and leaving ---

    def _join(self, name: str, start: Position, out: list[Instruction]) -> None:
        books, bit = self._books, self._books.parts.bit[name]
        falls_behind = self._order.has_passed_from(start)
        # Before the loop wants anything: reopened clips that everyone has are owed to it from now on, so their end must
        # be counted again.
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
        # Read its position before it leaves: an absent loop counts as done with everything.
        owed_from = books.consumption[name].position()
        self._stragglers.dismiss(name)
        books.consumption[name].leave()
        self._departures.note()
        self._order.place(bit, None)
        self._closer.recount(self._issued_from(owed_from), out)
        for entry in self._outstanding.entries():
            if entry.left & bit:
                self._departures.give_back(entry, out)

    # --- positions ---

    def _inside(self, position: Position) -> Position:
        """Return the first existing clip at or after a position, which may come from any client."""
        if position.phase_index >= len(self._sizes):
            return Position(len(self._sizes), 0)
        return position if position.index < self._sizes[position.phase_index] else Position(position.phase_index + 1, 0)

    def _next_pass(self) -> Position:
        """Return the beginning of the first phase that has issued nothing yet."""
        begin = self._order.begin
        if begin.index == 0 and not self._order.has_passed_from(begin):
            return begin
        phase_index, index = self._order.end
        return Position(phase_index + (index > 0), 0)

    def _issued_from(self, start: Position) -> range:
        """Return the phases whose clips from `start` may have been issued."""
        return range(start.phase_index, min(self._order.end.phase_index + 1, len(self._sizes)))

    def _everybody_has(self, position: Position) -> bool:
        return all(each.has(*position) for each in self._books.consumption.values())


class Trainers:
    """Handles what trainers report about their position. Part of the ledger.

    A checkpoint covers everything before its position, and a trainer that stops early saves first. Usually the ledger
    knows that much from the trainer's reports. But while this run began, a trainer may have continued in the previous
    run and have saved after the master had read the checkpoints. It continues from there and reports it, or is already
    done and gone: then no one takes the clips in between. So those that were made are freed on its behalf, and those
    not issued yet are not made for it.

    A trainer that stops early (its last epochs did not improve on the best one, `artifacts/early_stop.py`) wants
    nothing from there to the phases that follow all epochs, and counts as done with that. The others continue. Clips
    that no one wants any more are passed over: they are neither issued nor decoded. The trainer repeats that it has
    stopped whenever it is started; that changes nothing.

    A trainer that finds its newest checkpoint damaged continues from an older one, possibly from before the ledger's
    start. It asks for what it needs from there: clips that were issued are rebuilt for it, and the rest is issued to
    it in turn.
    """

    def __init__(self, books: Books, stragglers: Stragglers, closer: Closer, departures: Departures) -> None:
        self._books = books
        self._closer = closer
        self._departures = departures
        self._stragglers = stragglers
        self._end = Position(len(books.config.phases), 0)

    def saved(self, event: CheckpointReady, events: list[PhaseEvent], out: list[Instruction]) -> None:
        """A trainer has saved, or continues from a checkpoint."""
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
        """A trainer asks for a clip. If it was done with that clip, it has fallen back."""
        books, consumption = self._books, self._books.consumption.get(name)
        if consumption is None or name in books.config.loops or not consumption.has(*position):
            return
        if books.order.passed(position):
            # Clips that were issued in their turn are requested one by one. Those still ahead are issued to it in order
            # again.
            consumption.fall_back(position)
            return
        consumption.begin_again(position, books.order.end, books.order.coming())
        self._departures.note()
        self._stragglers.go_back(name, position)
        books.order.place(books.parts.bit[name], consumption.next_start)

    def _reach(
        self, name: str, consumption: Consumption, told: Position, events: list[PhaseEvent], out: list[Instruction]
    ) -> None:
        """Count everything before a position as done."""
        position, bit = min(told, self._end), self._books.parts.bit[name]
        if consumption.position() >= position and not self._books.outstanding.is_left_before(bit, position):
            return
        for phase_index, indices in consumption.reach(position).items():
            events.append(PhaseEvent(phase_index, "trained_before", name, indices))
        self._step_over(name, range(min(position.phase_index + 1, self._end.phase_index)), out)

    def _step_over(self, name: str, phases: range, out: list[Instruction]) -> None:
        """Free the clips of these phases that a trainer no longer wants, and stop issuing them to it."""
        books = self._books
        self._departures.note()
        self._stragglers.pass_over(name)
        books.order.place(books.parts.bit[name], books.consumption[name].next_start)
        self._closer.recount(phases, out)
        for entry in books.outstanding.entries():
            self._departures.give_back(entry, out)
        for phase_index, begin, end in books.order.pass_over():
            self._closer.pass_over(phase_index, end - begin, out)
