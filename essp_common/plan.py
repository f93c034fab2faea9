"""Plans: which clip is at an index, as a pure function of (seed, purpose, epoch, index).

Random numbers are counter-based (Philox 4x64: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
SC'11), so any index of any epoch costs O(1), and nothing depends on who asks, how often, or in which order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class PlannedClip:
    """What is at one index of a plan."""

    index: int
    attempt: int
    class_id: int
    video: int
    """Position in the plan's `CatalogView`."""
    first_frame: int
    frame_count: int
    stride: int


class Plan(Protocol):
    """The clips of one pass."""

    def __len__(self) -> int: ...

    def clip(self, index: int, attempt: int = 0) -> PlannedClip:
        """The clip at `index`; `attempt` > 0 gives the n-th replacement, of the same class. O(1).

        Raises `IndexError` outside the plan, and `LookupError` when there is no replacement.
        """

    def units(self, start: int, stop: int) -> Sequence[Sequence[PlannedClip]]:
        """The clips `start..stop` in the order of issue, grouped into work units of one video each."""
