"""The figures of the ledger: of the whole job, and of each phase."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from essp_common.quantities import percent
from essp_master.ledger.indices import IndexSet

_SAMPLE = 20
"""Attempts that have to be known before the share of failures means anything."""


@dataclass(slots=True)
class Counts:
    """The ledger's counters; see `status.CountStatus`."""

    issued: int = 0
    decoded: int = 0
    extracted: int = 0
    delivered: int = 0
    failed: int = 0
    replaced: int = 0
    skipped: int = 0
    lost: int = 0
    reissued: int = 0
    released: int = 0
    redecoded: int = 0
    duplicates: int = 0
    unreported: int = 0
    """Counted as made because a consumer has read it. The worker's report is still to come, and is no duplicate."""

    def values(self) -> dict[str, int]:
        """Counter -> value. Much faster than `asdict`, which copies."""
        return {counter.name: getattr(self, counter.name) for counter in fields(self)}

    def failing(self, clips: int, dead_ratio: float) -> str:
        """The reason why a job of so many clips cannot go on: too many attempts failed. Empty if it can.

        Where none may fail, the first one decides; else a share needs a sample.
        """
        tried = self.failed + self.decoded
        if (dead_ratio and tried < min(_SAMPLE, clips)) or self.failed <= dead_ratio * tried:
            return ""
        return (
            f"{self.failed} of the first {tried} clips could not be made, more than limits.dead_ratio "
            f"({percent(dead_ratio, 0)}) allows"
        )


@dataclass(slots=True)
class PhaseAccount:
    """What became of the clips of one phase."""

    issued: int = 0
    closed: int = 0
    """Clips that every consumer is done with, or that were skipped."""
    skipped: IndexSet = field(default_factory=IndexSet)
    """Indices at which at least one consumer found nothing."""
