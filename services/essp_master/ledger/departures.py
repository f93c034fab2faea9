"""Clips that a consumer no longer wants: a loop has left (`members.py`), or a trainer has stopped early or is
further than the ledger knew (`trainers.py`).

What was made for it is freed on its behalf. What is still in the making is freed when it has been made: a worker stores
it for all whom its seed names.
"""

from __future__ import annotations

from collections.abc import Iterator

from essp_common.position import Position
from essp_engine.seeding.instructions import Instruction, ReleaseClip
from essp_master.ledger.books import Books
from essp_master.ledger.closing import Closer
from essp_master.ledger.outstanding import Entry
from essp_master.ledger.states import OUT_OF_LINE, WAITING


class Departures:
    """Frees what consumers no longer want. Part of the ledger."""

    def __init__(self, books: Books, closer: Closer) -> None:
        self._books = books
        self._closer = closer
        self._everyone = books.parts.everyone
        self._outstanding = books.outstanding
        self.away = self._departed()
        """Bits of the consumers that may have left something."""

    def note(self) -> None:
        """A consumer has left, stopped or come, or is further than was known."""
        self.away = self._departed()

    def wanting(self, entry: Entry) -> int:
        """Those who want this clip, of those who have yet to ack it."""
        return entry.left & self._everyone & ~self._unwanting(entry)

    def give_back(self, entry: Entry, out: list[Instruction]) -> None:
        """Free what is made of a clip for those who do not want it any more."""
        unwanting = self._unwanting(entry)
        if entry.state in WAITING:
            self._free(entry, unwanting, out)
        elif unwanting:
            self._free(entry, sum(bit for bit, part in self._bits(unwanting) if entry.made >> part & 1), out)

    def drop(self, entry: Entry, out: list[Instruction]) -> None:
        """Nobody wants a clip that would have to be made again."""
        self._free(entry, entry.left & self._everyone, out)

    def _unwanting(self, entry: Entry) -> int:
        left = entry.left & self.away
        if not left:
            return 0
        consumption, bit = self._books.consumption, self._books.parts.bit
        names = self._books.parts.names(left)
        return sum(bit[name] for name in names if not consumption[name].wants(*entry.position))

    def _free(self, entry: Entry, bits: int, out: list[Instruction]) -> None:
        if not bits:
            return
        if entry.state not in OUT_OF_LINE:
            out.append(ReleaseClip(entry.phase_index, entry.clip, self._books.parts.names(bits)))
        for bit, part in list(self._bits(bits)):
            self._outstanding.acked(entry, bit, part)
        self._closer.acked(entry, out)

    def _bits(self, bits: int) -> Iterator[tuple[int, int]]:
        parts = self._books.parts
        return ((parts.bit[name], parts.part[name]) for name in parts.names(bits))

    def _departed(self) -> int:
        bit, begins = self._books.parts.bit, self._books.config.start
        return sum(
            bit[name]
            for name, each in self._books.consumption.items()
            if each.stopped is not None or each.start > begins.get(name, Position(0, 0))
        )
