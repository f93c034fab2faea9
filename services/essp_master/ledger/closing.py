"""The end of a clip: when its last consumer is done with it, and no straggler is still owed it."""

from __future__ import annotations

from essp_common.planning.position import Position
from essp_master.ledger.books import Books
from essp_master.ledger.instructions import FinishPhase, Instruction
from essp_master.ledger.outstanding import Entry
from essp_master.ledger.states import REOPENED
from essp_master.ledger.stragglers import Stragglers


class Closer:
    """Closes clips, and counts them in their phases. Part of the ledger."""

    def __init__(self, books: Books, stragglers: Stragglers) -> None:
        self.total = sum(account.closed for account in books.phases)
        """Clips of all phases that every consumer is done with, or that were skipped."""
        self._books = books
        self._everyone = books.parts.everyone
        self._clips = [phase.clips for phase in books.config.phases]
        self._outstanding = books.outstanding
        self._phases = books.phases
        self._stragglers = stragglers

    def acked(self, entry: Entry, out: list[Instruction]) -> None:
        """A consumer is done with a clip; close it after the last one."""
        if entry.left & self._everyone:
            if self._stragglers.bits:
                if entry.catch_up is not None and not entry.catch_up.bit & entry.left:
                    self._outstanding.move(entry, None)
                self.settle(entry, out)
            return
        self._outstanding.close(entry)
        if entry.state not in REOPENED:
            self.count(entry.phase_index, entry.clip.index, entry.clip.attempt, out)

    def settle(self, entry: Entry, out: list[Instruction]) -> None:
        """Decide on a clip that only stragglers may still want."""
        if not entry.left & self._everyone & ~self._stragglers.bits:
            self._stragglers.settle(entry, out)

    def count(self, phase_index: int, index: int, attempt: int, out: list[Instruction]) -> None:
        """Count a clip as closed, unless a straggler is still owed it."""
        if self._stragglers.bits:
            position = Position(phase_index, index)
            if not all(consumption.has(phase_index, index) for consumption in self._books.consumption.values()):
                self._stragglers.remember(position, attempt)
                return
            self._stragglers.forget(position)
        self.count_all(phase_index, 1, out)

    def uncount(self, phase_index: int) -> None:
        """A clip whose end was counted is wanted once more."""
        self._phases[phase_index].closed -= 1
        self.total -= 1

    def pass_over(self, phase_index: int, clips: int, out: list[Instruction]) -> None:
        """Count clips as issued and closed that nobody wants."""
        self._phases[phase_index].issued += clips
        self.count_all(phase_index, clips, out)

    def count_all(self, phase_index: int, clips: int, out: list[Instruction]) -> None:
        """Count clips as closed that nobody is owed."""
        account = self._phases[phase_index]
        account.closed += clips
        self.total += clips
        if account.closed == self._clips[phase_index] and not self._is_skipped(phase_index):
            out.append(FinishPhase(phase_index))

    def _is_skipped(self, phase_index: int) -> bool:
        """Whether all consumers have stopped before this phase."""
        return all(consumption.skips(phase_index, 0) for consumption in self._books.consumption.values())
