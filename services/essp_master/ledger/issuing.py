"""What is issued next: first clips that have to be made again, then new ones, then those of the catch-up queues."""

from __future__ import annotations

from essp_common.position import Position
from essp_engine.seeding.instructions import Instruction, IssueUnits
from essp_master.ledger.books import Books
from essp_master.ledger.closing import Closer
from essp_master.ledger.lead import Lead
from essp_master.ledger.stragglers import Stragglers


class Issuer:
    """Issues as far as the credit and the lead go. Part of the ledger."""

    def __init__(self, books: Books, stragglers: Stragglers, lead: Lead, closer: Closer) -> None:
        self._books = books
        self._lead = lead
        self._outstanding = books.outstanding
        self._stragglers = stragglers
        self._closer = closer

    def issue(self, out: list[Instruction]) -> None:
        """Add to `out` what can be issued now."""
        self.issue_again(out)
        while not self._outstanding.settled and not self._outstanding.in_line:
            if self._outstanding.resume_preempted():
                self.issue_again(out)
            elif not self._stragglers.leave_one_behind(out):  # a consumer that may stand still has the room
                break
        if self._outstanding.settled:
            self._issue_new(out)
        if self._stragglers.bits and not self._outstanding.in_line:
            # Not only when all is settled: stragglers ask for preempted clips once they have had those before them.
            self._stragglers.issue(out)
            self.issue_again(out)

    def issue_again(self, out: list[Instruction]) -> None:
        """Add to `out` what has to be made again, as far as there is room."""
        reissued = self._outstanding.reissue(out)
        self._books.counts.issued += reissued
        self._books.counts.reissued += reissued

    def _issue_new(self, out: list[Instruction]) -> None:
        books, outstanding, stragglers, issued = self._books, self._outstanding, self._stragglers, 0
        order, phases, names = books.order, books.phases, books.parts.names
        if not order.wanted:  # every loop is away
            return
        slowest = self._lead.slowest
        while (unit := order.peek()) is not None:
            phase_index, clips, consumers = unit
            reach = self._lead.reach(phase_index, slowest)
            if clips[-1].index >= reach:  # the clips of a unit ascend
                break
            if not consumers:
                order.take()
                self._closer.pass_over(phase_index, len(clips), out)
                continue
            if stragglers.bits:
                position = Position(phase_index, clips[0].index)
                consumers &= ~stragglers.served(position)
                if not consumers and stragglers.hold(position):
                    break
            room = outstanding.room(phase_index, consumers)
            if len(clips) > room:
                if stragglers.leave_one_behind(out):
                    continue
                break
            units = [order.take()[1]] if stragglers.bits else order.take_alike(room, reach)
            together = [clip for unit in units for clip in unit]
            if consumers:
                outstanding.issue(phase_index, together, consumers)
                out.append(IssueUnits(phase_index, units, names(consumers)))
                issued += len(together)
            phases[phase_index].issued += len(together)
        books.counts.issued += issued
