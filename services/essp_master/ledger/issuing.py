"""What is issued next: first what is to be made again, then what is new, then what is owed to those left behind."""

from __future__ import annotations

from collections.abc import Sequence

from essp_master.ledger.accounts import Counts, PhaseAccount
from essp_master.ledger.instructions import Instruction, IssueUnit
from essp_master.ledger.order import IssueOrder
from essp_master.ledger.outstanding import Outstanding
from essp_master.ledger.parts import ClipParts
from essp_master.ledger.stragglers import Stragglers


class Issuer:
    """Issues as far as there is credit. Part of the ledger."""

    def __init__(
        self,
        parts: ClipParts,
        outstanding: Outstanding,
        order: IssueOrder,
        lag: Stragglers,
        counts: Counts,
        phases: Sequence[PhaseAccount],
    ) -> None:
        self._parts = parts
        self._outstanding = outstanding
        self._order = order
        self._lag = lag
        self._counts = counts
        self._phases = phases

    def issue(self, out: list[Instruction]) -> None:
        """Add to `out` what can be issued now."""
        self._again(out)
        if self._outstanding.settled:
            self._new(out)
        if self._lag.slow and self._outstanding.settled:
            self._lag.issue(out)
            self._again(out)

    def _again(self, out: list[Instruction]) -> None:
        while self._outstanding.next_again(out):
            self._counts.issued += 1
            self._counts.reissued += 1

    def _new(self, out: list[Instruction]) -> None:
        order, outstanding, issued = self._order, self._outstanding, 0
        while (unit := order.peek()) is not None:
            number, clips, consumers = unit
            if self._lag.slow:
                consumers &= ~self._lag.away((number, clips[0].index))
            if consumers:
                if not outstanding.issue(number, clips, consumers):
                    if self._lag.make_room(out):
                        continue
                    break
                out.append(IssueUnit(number, clips, self._parts.names(consumers)))
                issued += len(clips)
            order.take()
            self._phases[number].issued += len(clips)
        self._counts.issued += issued
