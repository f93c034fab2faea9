"""Trainers that say where they are: a checkpoint holds all before its position, and one that stops early saves first.

As a rule the ledger knows that much from their reports. But a trainer may have gone on in the run before while this one
began, and have saved after the master had looked. It goes on from there, and says so, or is done and gone: then nobody
takes what lies between. So what was made of it is freed on its behalf, and what was not issued yet is not made for it.

A trainer that stops early (none of its last epochs was better than the best one before, `artifacts/early_stop.py`)
wants nothing from there to the phases that follow all epochs, and counts as done with it. The others go on. What is
left to nobody is passed over: it is neither issued nor decoded. It says again that it has stopped whenever it is
started; that changes nothing.

A trainer that finds its newest checkpoint damaged goes on from an older one, perhaps from before the ledger's start. It
asks for what it needs from there: what was issued is made again for it, and the rest is issued to it in its turn.
"""

from __future__ import annotations

from essp_common.pb.v1.messages_pb2 import CheckpointReady, StoppedEarly
from essp_common.position import Position
from essp_common.runtime import ids
from essp_engine.seeding.instructions import Instruction
from essp_master.ledger.batches import PhaseEvent
from essp_master.ledger.books import Books
from essp_master.ledger.closing import Closer
from essp_master.ledger.consumption import Consumption
from essp_master.ledger.departures import Departures
from essp_master.ledger.stragglers import Stragglers


class Trainers:
    """What trainers say of where they are. Part of the ledger."""

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
