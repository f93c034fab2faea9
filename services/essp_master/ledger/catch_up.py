"""A lane: how a consumer that was left behind gets its clips, by itself and at its own pace.

It has an order of its own, from the first clip that the consumer is not done with, and a share of the budget that
nobody else may use. What it holds of that share are clips that no other consumer still wants.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from essp_master.ledger.order import IssueOrder, Place


@dataclass(slots=True, eq=False)
class Lane:
    """The lane of one consumer."""

    consumer: str
    bit: int
    """The consumer's, in `ClipParts`."""
    order: IssueOrder
    share_bytes: int
    joins: Place | None = None
    """From here on the consumer gets its clips with the others again; not known while it is far behind."""
    bytes: int = 0
    """What its clips take up, or may come to."""
    places: set[Place] = field(default_factory=set)
    """Its clips."""
    _furthest: list[Place] = field(default_factory=list)  # a heap of `places` and of former ones, negated

    def add(self, place: Place) -> None:
        """A clip becomes this lane's."""
        self.places.add(place)
        heapq.heappush(self._furthest, (-place[0], -place[1]))

    def furthest(self) -> Place | None:
        """The last of its clips."""
        while self._furthest:
            number, index = self._furthest[0]
            if (-number, -index) in self.places:
                return (-number, -index)
            heapq.heappop(self._furthest)
        return None

    def serves(self, place: Place) -> bool:
        """Whether the consumer gets this clip here and not with the others."""
        return self.joins is None or place < self.joins
