"""Decides what is issued next: first lost clips, then new ones, then clips from the catch-up queues.

If all consumers keep in step, new clips wait at a bounded distance from the slowest.
"""

from __future__ import annotations

import sys
from itertools import accumulate

from essp_common.job.position import Position
from essp_engine.seeding.instructions import Instruction, IssueUnits
from essp_master.ledger.books import Books
from essp_master.ledger.closing import Closer
from essp_master.ledger.stragglers import Stragglers


class Lead:
    """Bounds how far a consumer may be ahead of the slowest one, if all keep in step. Part of the ledger.

    No consumer can train a clip that was not issued, so issuing stops at that distance from the slowest consumer.
    Otherwise, with a budget that holds several passes of small clips, the fastest consumer could be that many passes
    ahead.

    The rest of the slowest consumer's own phase is always issued. No batch reaches beyond a phase, so the slowest
    consumer never waits for clips that are held back here, and the job completes. No phase is longer than a pass, so
    this exceeds no bound.
    """

    def __init__(self, books: Books) -> None:
        config = books.config
        self._books = books
        self._before = [0, *accumulate(phase.clips for phase in config.phases)]
        """For each phase, the number of clips in all phases before it."""
        self._most = config.lead_clips if len(books.consumption) > 1 and not config.catch_up_bytes else 0

    @property
    def slowest(self) -> int:
        """How many clips the slowest consumer is done with."""
        return min(consumption.total for consumption in self._books.consumption.values())

    def reach(self, phase_index: int, slowest: int) -> int:
        """Return the index up to which clips of this phase may be issued. `slowest`: see above; it changes only with
        reports."""
        before = self._before[phase_index]
        return slowest + self._most - before if self._most and before > slowest else sys.maxsize

    def holds_back(self) -> bool:
        """Whether the next unit waits for the slowest consumer."""
        unit = self._books.order.peek() if self._most else None
        if unit is None:
            return False
        phase_index, clips, _ = unit
        return clips[-1].index >= self.reach(phase_index, self.slowest)


class Issuer:
    """Issues as far as credit and lead allow. Part of the ledger."""

    def __init__(self, books: Books, stragglers: Stragglers, lead: Lead, closer: Closer) -> None:
        self._books = books
        self._lead = lead
        self._outstanding = books.outstanding
        self._stragglers = stragglers
        self._closer = closer

    def issue(self, out: list[Instruction]) -> None:
        """Append to `out` everything that can be issued now."""
        self.issue_again(out)
        while not self._outstanding.settled and not self._outstanding.in_line:
            if self._outstanding.resume_preempted():
                self.issue_again(out)
            elif not self._stragglers.leave_one_behind(out):  # a consumer that may be stuck occupies the room
                break
        if self._outstanding.settled:
            self._issue_new(out)
        if self._stragglers.bits and not self._outstanding.in_line:
            # Not only when all is settled: stragglers ask for preempted clips once they have received those before
            # them.
            self._stragglers.issue(out)
            self.issue_again(out)

    def issue_again(self, out: list[Instruction]) -> None:
        """Append to `out` the clips that must be rebuilt, as far as there is room."""
        reissued = self._outstanding.reissue(out)
        self._books.counts.issued += reissued
        self._books.counts.reissued += reissued

    def _issue_new(self, out: list[Instruction]) -> None:
        books, outstanding, stragglers, issued = self._books, self._outstanding, self._stragglers, 0
        order, phases, names = books.order, books.phases, books.parts.names
        if not order.wanted:  # every loop is absent
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
            # No room for new clips. Moving a straggler to a catch-up queue may free some; then this unit is tried
            # again.
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
