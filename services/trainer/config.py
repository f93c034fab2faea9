"""Settings of a trainer: those of every service (`essp_common.config`) and how it prefetches.

What to train and how is in the job, not here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic import Field

from essp_common.config import Settings


class TrainerSettings(Settings):
    """What a trainer process needs to know."""

    prefetch_batches: int = Field(3, ge=1)
    """Batches prepared ahead of the model; each holds its clips, cropped, in host memory."""
    loaders: int = Field(1, ge=1)
    """Threads that crop, resize and mirror."""
    report_interval_s: float = Field(0.25, gt=0)
    """Least time between two reports of live numbers."""
    trainings: int = Field(1, ge=1)
    """Trainings that share this machine: a trainer with `threads: 0` takes this share of its CPUs."""


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """One training of one job, as this process does it."""

    job: str
    trainer: str
    worker: str
    """This process's name in messages."""
    settings: TrainerSettings = field(default_factory=TrainerSettings)
