"""Settings of a trainer: batches (`essp_engine.loading.settings`), saving, and ranks.

The job says what to train and how. The number of ranks is a setting: it changes only how long training takes.
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
    """Settings of a trainer process."""

    report_interval_s: float = Field(0.25, gt=0)
    """Minimum time between two reports of live metrics."""
    local_trainers: int = Field(1, ge=1)
    """Trainers that share this machine. With `threads: 0`, each gets an equal share of its CPUs."""
    deterministic: bool = False
    """On a GPU: use only cuDNN kernels with bitwise reproducible results, and do not search for the fastest one."""
    burst: Annotated[str, AfterValidator(_checked_burst)] = ""
    """A fast disk of this node for checkpoints, as in `file:///nvme/essp?bytes=20GiB`: a save waits only for this disk,
    and a thread copies from it to the job's output. Each training may use that many bytes there. Empty: no burst
    buffer."""
    save_retry_s: float = Field(30.0, ge=0)
    """How long to continue training after a failed save before the next attempt."""
    final_save_timeout_s: float = Field(300.0, ge=0)
    """How long the trainer tries to save the final checkpoint before the training fails."""
    owner_check_s: float = Field(10.0, gt=0)
    """How often the trainer checks whether another process of its name has taken over the training; if so, it
    leaves."""
    start_warning_s: float = Field(10.0, gt=0)
    """How long the trainer waits for its job to start before it logs what it waits for, and which jobs there are."""
    rank_restarts: int = Field(5, ge=0)
    """`essp trainer --ranks`: how often in a row to restart ranks that ran for less than five minutes."""
    rank_timeout_s: float = Field(600.0, gt=0)
    """How long ranks wait for a rank that does not answer. They notice at once if one dies."""
    drained_exit: int = Field(0, ge=0, le=125)
    """Exit code of a process that leaves before the training is done, because it or another rank got SIGTERM. Choose a
    non-zero code in a Kubernetes Job, which does not restart a pod that exits with 0."""


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
    """Number of ranks of this training on this machine."""
    stays: bool = False
    """Whether a finished trainer waits until the job is over, in case the job gets more epochs. Otherwise it leaves,
    and is started again."""
    settings: TrainerSettings = field(default_factory=TrainerSettings)
