"""Settings of a trainer: those of its batches (`essp_engine.loading.settings`), of saving, and of its ranks.

The job says what to train and how. The number of ranks is not part of it: it changes only how long training takes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import AfterValidator, Field

from essp_common.artifacts.staging import parse_burst
from essp_common.errors import ConfigError
from essp_engine.loading.settings import LoadingSettings


def _checked_burst(url: str) -> str:
    try:
        if url:
            parse_burst(url)
    except ConfigError as error:
        raise ValueError(str(error)) from error
    return url


class TrainerSettings(LoadingSettings):
    """What a trainer process needs to know."""

    report_interval_s: float = Field(0.25, gt=0)
    """Minimum time between two reports of live numbers."""
    local_trainers: int = Field(1, ge=1)
    """Trainers that share this machine. With `threads: 0`, each takes an equal share of its CPUs."""
    deterministic: bool = False
    """On a GPU: use only cuDNN kernels that give the same bits each time, and do not search for the fastest one."""
    burst: Annotated[str, AfterValidator(_checked_burst)] = ""
    """A fast disk of this node for checkpoints, as in `file:///nvme/essp?bytes=20GiB`: a save waits for it alone, and a
    thread copies from it to the job's output. Each training may hold that many bytes there. Empty: none."""
    save_retry_s: float = Field(30.0, ge=0)
    """How long to train on after a failed save before the next attempt."""
    final_save_timeout_s: float = Field(300.0, ge=0)
    """How long the trainer tries to save the final checkpoint before the training fails."""
    owner_check_s: float = Field(10.0, gt=0)
    """How often the trainer looks whether another process of its name has taken the training over; then it leaves."""
    start_warning_s: float = Field(10.0, gt=0)
    """How long the trainer waits until its job starts before it logs what it waits for, and which jobs there are."""
    rank_restarts: int = Field(5, ge=0)
    """`essp trainer --ranks`: how often in a row to restart ranks that ran for less than five minutes."""
    rank_timeout_s: float = Field(600.0, gt=0)
    """How long ranks wait for a rank that does not answer. They notice at once if one dies."""
    drained_exit: int = Field(0, ge=0, le=125)
    """Exit code of a process that leaves before the training is done, because it or another rank got SIGTERM. Set one
    other than 0 in a Kubernetes Job, which does not restart a pod that exits with 0."""


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """One training of one job, as this process runs it."""

    job: str
    trainer: str
    worker: str
    """This process's name in messages."""
    local_rank: int = 0
    """Rank on this machine."""
    local_ranks: int = 1
    """Ranks of this training on this machine."""
    stays: bool = False
    """Once it is done it waits until the job is over, should that get more epochs; else it leaves, and is started
    again."""
    settings: TrainerSettings = field(default_factory=TrainerSettings)
