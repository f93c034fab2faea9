"""The configuration of a ledger: everything that it needs to know about its job. Built by `job/run.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from essp_common.job.position import Position, after_epochs
from essp_common.pb.v1.messages_pb2 import PhasePlan, Stage
from essp_engine.planning.planned_clip import Plan
from essp_engine.seeding.clip_parts import ClipParts


@dataclass(frozen=True, kw_only=True)
class LedgerConfig:
    """Everything that a ledger needs to know about its job."""

    phases: Sequence[PhasePlan]
    plan_of: Callable[[int], Plan]
    """`phase_index` -> the plan of that phase."""
    parts: ClipParts
    bounds: Sequence[Sequence[int]]
    """For each phase, the largest size in bytes of each part of a clip."""
    replaceable: Sequence[bool]
    """For each phase, whether another video may replace one that fails."""
    start: Mapping[str, Position]
    """Where each consumer starts; a consumer that is not listed starts at the beginning."""
    finals: frozenset[str]
    """Trainers whose final checkpoint already existed."""
    budget_bytes: int
    unit_clips: int
    """Largest number of clips in one work unit."""
    locality: int
    replacements: int
    dead_ratio: float
    last_stage: Stage | None
    """The stage whose `Finished` completes the job; None: the job is complete when every clip is closed."""
    lag: float = 0.5
    """A consumer is a straggler if it is behind by more than this share of the outstanding clips (`stragglers.py`)."""
    loops: frozenset[str] = frozenset()
    """The consumers that come and go (`consumers.py`); they take part only once they say so."""
    catch_up_bytes: int = 0
    """The share of the budget for catch-up queues; 0: there are no queues, and all consumers keep in step."""
    catch_up_window: int = 0
    """Number of indices that a catch-up queue issues together: a divisor of `locality` for which its share has room; 0:
    no limit."""
    lead_clips: int = 0
    """How far a consumer may be ahead of the slowest one if all keep in step, at least the longest phase; 0: as far as
    the budget allows (`issuing.py`)."""

    @property
    def rest(self) -> Position:
        """The beginning of the phases that follow all epochs."""
        return after_epochs(self.phases)
