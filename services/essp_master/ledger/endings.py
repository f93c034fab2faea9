"""The end of a clip: when its consumers are done with it, and who is owed it still."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from essp_common.pb.v1.messages_pb2 import PhasePlan
from essp_master.ledger.accounts import PhaseAccount
from essp_master.ledger.consumption import Consumption
from essp_master.ledger.instructions import FinishPhase, Instruction
from essp_master.ledger.order import Place
from essp_master.ledger.outstanding import Entry, Outstanding
from essp_master.ledger.parts import ClipParts
from essp_master.ledger.stragglers import Stragglers


class Endings:
    """Closes clips, and counts them in their passes. Part of the ledger."""

    def __init__(
        self,
        parts: ClipParts,
        plans: Sequence[PhasePlan],
        outstanding: Outstanding,
        consumption: Mapping[str, Consumption],
        lag: Stragglers,
        phases: Sequence[PhaseAccount],
    ) -> None:
        self.total = sum(account.closed for account in phases)
        """Clips of all phases that every consumer is done with, or that were skipped."""
        self._everyone = parts.everyone
        self._clips = [plan.clips for plan in plans]
        self._outstanding = outstanding
        self._consumption = consumption
        self._lag = lag
        self._phases = phases

    def acked(self, entry: Entry, out: list[Instruction]) -> None:
        """A consumer is done with a clip; close it if it was the last."""
        if entry.left & self._everyone:
            if self._lag.slow:
                self.settle(entry, out)
            return
        self._outstanding.close(entry)
        if not entry.again:
            self.closed(entry.place, entry.clip.attempt, out)

    def settle(self, entry: Entry, out: list[Instruction]) -> None:
        """See what becomes of a clip if only consumers that were left behind still want it."""
        if not entry.left & self._everyone & ~self._lag.slow:
            self._lag.settle(entry, out)

    def closed(self, place: Place, attempt: int, out: list[Instruction]) -> None:
        """Nobody has this clip any more; it is done if nobody is owed it either."""
        if self._lag.slow:
            if not all(consumption.has(*place) for consumption in self._consumption.values()):
                self._lag.remember(place, attempt)
                return
            self._lag.forget(place)
        number = place[0]
        account = self._phases[number]
        account.closed += 1
        self.total += 1
        if account.closed == self._clips[number]:
            out.append(FinishPhase(number))
