"""The ledger's instructions. The shell (`service.py`) carries them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from essp_engine.planning.planned_clip import PlannedClip


class IssueUnits(NamedTuple):
    """Publish work units, each with clips of one video, for these consumers."""

    phase_index: int
    units: Sequence[tuple[PlannedClip, ...]]
    consumers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PublishSkip:
    """Announce to the consumers of these streams that an index has no clip, so that they skip it."""

    phase_index: int
    clip: PlannedClip
    streams: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class ReleaseClip:
    """Free a clip's bytes on behalf of these consumers. It is made again when its turn comes or one of them asks."""

    phase_index: int
    clip: PlannedClip
    consumers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TellOfLoops:
    """Announce which loops take part now."""


@dataclass(frozen=True, slots=True)
class TellOfChanges:
    """Announce which changes of the job were made, and from where they apply."""


@dataclass(frozen=True, slots=True)
class FinishPhase:
    """Every consumer has processed every clip of this phase."""

    phase_index: int


@dataclass(frozen=True, slots=True)
class CompleteJob:
    """The job has its result."""

    uri: str
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class FailJob:
    """The job cannot continue; the reason says what to do."""

    reason: str


Instruction: TypeAlias = (
    IssueUnits | PublishSkip | ReleaseClip | TellOfLoops | TellOfChanges | FinishPhase | CompleteJob | FailJob
)
