"""All that a ledger needs to know of its job. Made by `job/run.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from essp_common.pb.v1.messages_pb2 import PhasePlan, Stage
from essp_common.planning.plan import Plan
from essp_common.planning.position import Position
from essp_master.ledger.parts import ClipParts


@dataclass(frozen=True, kw_only=True)
class LedgerConfig:
    """All that a ledger needs to know of its job."""

    phases: Sequence[PhasePlan]
    plan_of: Callable[[int], Plan]
    """The plan of a phase, by its number."""
    parts: ClipParts
    bounds: Sequence[Sequence[int]]
    """For each phase, the most bytes of each part of a clip."""
    replaceable: Sequence[bool]
    """For each phase, whether another video may take the place of one that fails."""
    start: Mapping[str, Position]
    """Where each consumer stands; those who are not named, at the beginning."""
    finals: frozenset[str]
    """Trainers that were done before."""
    budget_bytes: int
    unit_clips: int
    """Most clips of one work unit."""
    locality: int
    replacements: int
    dead_ratio: float
    last_stage: Stage
    """The stage whose `Finished` completes the job."""
    lag: float = 0.5
    """A consumer that is behind by more than this share of the clips outstanding is left behind (`lag.py`)."""
    lane_bytes: int = 0
    """Share of the budget of one that was left behind; 0: nobody is."""
