"""How far a consumer may be ahead of the slowest one, where all keep in step.

Nobody can train what was not issued, so the order of issue waits at that distance from the slowest consumer. A budget
that holds several passes of small clips would otherwise let the fastest consumer be as many passes ahead.

What is left of the slowest consumer's own phase is always issued: no batch reaches beyond it, so the slowest consumer
never waits for what is held back here, and the job comes to its end. No phase is longer than a pass, so that exceeds
no bound.
"""

from __future__ import annotations

import sys
from itertools import accumulate

from essp_master.ledger.books import Books


class Lead:
    """The bound on the lead. Part of the ledger."""

    def __init__(self, books: Books) -> None:
        config = books.config
        self._books = books
        self._before = [0, *accumulate(phase.clips for phase in config.phases)]
        """For each phase, the clips of all phases before it."""
        self._most = config.lead_clips if len(books.consumption) > 1 and not config.catch_up_bytes else 0

    @property
    def slowest(self) -> int:
        """How many clips the slowest consumer is done with."""
        return min(consumption.total for consumption in self._books.consumption.values())

    def reach(self, phase_index: int, slowest: int) -> int:
        """Clips of this phase may be issued up to this index. `slowest`: as above; it only changes with reports."""
        before = self._before[phase_index]
        return slowest + self._most - before if self._most and before > slowest else sys.maxsize

    def holds_back(self) -> bool:
        """Whether the next unit waits for the slowest consumer."""
        unit = self._books.order.peek() if self._most else None
        if unit is None:
            return False
        phase_index, clips, _ = unit
        return clips[-1].index >= self.reach(phase_index, self.slowest)
