"""The catch-up queue of a straggler: it gets its clips from here, alone and at its own pace.

The queue has an order of issue of its own, which begins at the first clip that the straggler is not done with, and a
share of the budget that nothing else may use. That share pays for the clips that no other consumer still wants.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from essp_common.position import Position
from essp_master.ledger.order import IssueOrder


@dataclass(slots=True, eq=False)
class CatchUpQueue:
    """The catch-up queue of one consumer."""

    consumer: str
    bit: int
    """The consumer's bit in `ClipParts`."""
    order: IssueOrder
    share_bytes: int
    joins: Position | None = None
    """From here on the consumer gets its clips with the others again. Not known while it is far behind."""
    bytes: int = 0
    """Bytes that its clips take up, or that are reserved for them."""
    positions: set[Position] = field(default_factory=set)
    """Its clips."""
    _furthest: list[tuple[int, int]] = field(default_factory=list)
    """A heap of the negated `positions`, present and former ones."""

    def add(self, position: Position) -> None:
        """Have a clip take up this queue's share."""
        self.positions.add(position)
        heapq.heappush(self._furthest, (-position.phase_index, -position.index))

    def furthest(self) -> Position | None:
        """The last of its clips, in the order of the plan."""
        while self._furthest:
            phase_index, index = self._furthest[0]
            position = Position(-phase_index, -index)
            if position in self.positions:
                return position
            heapq.heappop(self._furthest)
        return None

    def serves(self, position: Position) -> bool:
        """Whether the consumer gets this clip from here, and not with the others."""
        return self.joins is None or position < self.joins
