"""The share of a plan for one of several ranks: every `ranks`-th clip, starting with clip `rank`.

Clip j of the share is clip `j * ranks + rank` of the plan. So b clips of each rank are the next b * ranks clips of the
plan, and a position that all ranks have reached is a single index of the plan, even if the number of ranks changes
later.
"""

from __future__ import annotations

from collections.abc import Sequence

from essp_common.errors import ConfigError
from essp_engine.planning.planned_clip import Plan, PlannedClip


class Share:
    """A `Plan` of the clips of one rank."""

    def __init__(self, plan: Plan, rank: int, ranks: int, equal: bool) -> None:
        """`equal`: every rank has the same number of clips, and up to `ranks - 1` clips of the plan are left out;
        otherwise ranks that wait for each other in each step could not end. If False, every clip is in one share."""
        self._plan, self._rank, self._ranks = plan, rank, ranks
        self._size = len(plan) // ranks if equal else len(range(rank, len(plan), ranks))
        self.left_out = len(plan) - self._size * ranks if equal else 0
        """Clips of the plan that belong to no rank's share."""
        if not self._size:
            raise ConfigError(f"{len(plan)} clips are too few for {ranks} ranks", code="range")

    def __len__(self) -> int:
        return self._size

    def clip(self, index: int, attempt: int = 0) -> PlannedClip:
        """See `Plan.clip`."""
        if not 0 <= index < self._size:
            raise IndexError(f"the share has clips 0..{self._size - 1}, not {index}")
        return self._plan.clip(index * self._ranks + self._rank, attempt)._replace(index=index)

    def units(self, start: int, stop: int) -> Sequence[Sequence[PlannedClip]]:
        """See `Plan.units`."""
        if start >= stop:
            return []
        first, last = start * self._ranks + self._rank, (stop - 1) * self._ranks + self._rank
        shares = (
            [clip._replace(index=clip.index // self._ranks) for clip in unit if clip.index % self._ranks == self._rank]
            for unit in self._plan.units(first, last + 1)
        )
        return [share for share in shares if share]
