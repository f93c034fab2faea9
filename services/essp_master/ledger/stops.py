"""Trainers that stop early: none of their last epochs was better than the best one before (`artifacts/early_stop.py`).

A trainer that has stopped wants nothing from there to the phases that follow all epochs, and counts as done with it.
The others go on. What is left to nobody is passed over: it is neither issued nor decoded. A trainer says again that it
has stopped whenever it is started; that changes nothing.
"""

from __future__ import annotations

from essp_common.pb.v1.messages_pb2 import StoppedEarly
from essp_common.planning.position import Position
from essp_common.runtime import ids
from essp_master.ledger.books import Books
from essp_master.ledger.closing import Closer
from essp_master.ledger.departures import Departures
from essp_master.ledger.instructions import Instruction
from essp_master.ledger.stragglers import Stragglers


class Stops:
    """Which trainers have stopped early. Part of the ledger."""

    def __init__(self, books: Books, stragglers: Stragglers, closer: Closer, departures: Departures) -> None:
        self._books = books
        self._closer = closer
        self._departures = departures
        self._stragglers = stragglers

    def account(self, event: StoppedEarly, out: list[Instruction]) -> None:
        """A trainer says that it has stopped."""
        books, name, position = self._books, ids.trainer_consumer(event.trainer), Position.of(event.position)
        consumption = books.consumption.get(name)
        if consumption is None or consumption.stopped is not None or not position < books.config.rest:
            return
        consumption.stop(position)
        self._departures.note()
        self._stragglers.pass_over(name)
        books.order.place(books.parts.bit[name], consumption.next_start)
        self._closer.recount(range(position.phase_index, books.config.rest.phase_index), out)
        for entry in books.outstanding.entries():
            self._departures.give_back(entry, out)
        for phase_index, begin, end in books.order.pass_over():
            self._closer.pass_over(phase_index, end - begin, out)
