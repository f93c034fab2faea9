"""The configuration of a ledger: all that it needs to know of its job. `job/run.py` makes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from essp_common.job.position import Position, after_epochs
from essp_common.pb.v1.messages_pb2 import PhasePlan, Stage
from essp_engine.planning.planned_clip import Plan
from essp_engine.seeding.clip_parts import ClipParts


@dataclass(frozen=True, kw_only=True)
class LedgerConfig:
    """All that a ledger needs to know of its job."""

    phases: Sequence[PhasePlan]
    plan_of: Callable[[int], Plan]
    """`phase_index` -> the plan of that phase."""
    parts: ClipParts
    bounds: Sequence[Sequence[int]]
    """For each phase, the most bytes of each part of a clip."""
    replaceable: Sequence[bool]
    """For each phase, whether another video may replace one that fails."""
    start: Mapping[str, Position]
    """Where each consumer starts; a consumer that is not named starts at the beginning."""
    finals: frozenset[str]
    """Trainers whose final checkpoint was there already."""
    budget_bytes: int
    unit_clips: int
    """Most clips of one work unit."""
    locality: int
    replacements: int
    dead_ratio: float
    last_stage: Stage | None
    """The stage whose `Finished` completes the job; None: it is complete when every clip is closed."""
    lag: float = 0.5
    """A consumer is a straggler if it is behind by more than this share of the clips outstanding (`stragglers.py`)."""
    loops: frozenset[str] = frozenset()
    """The consumers that come and go (`consumers.py`); they take no part until they say so."""
    catch_up_bytes: int = 0
    """The share of the budget that a catch-up queue gets; 0: there are none, and all consumers keep in step."""
    catch_up_window: int = 0
    """Indices that a catch-up queue issues together: a divisor of `locality`, and all that its share has room for;
    0: as many as all."""
    lead_clips: int = 0
    """How far a consumer may be ahead of the slowest one where all keep in step, at least the longest phase; 0: as far
    as the budget goes (`issuing.py`)."""

    @property
    def rest(self) -> Position:
        """Where the phases begin that follow all epochs."""
        return after_epochs(self.phases)
