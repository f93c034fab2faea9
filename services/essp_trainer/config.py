"""Settings of a trainer: those of every service (`essp_common.runtime.config`), how it prefetches, and where its ranks
meet.

What to train and how is in the job, not here: the number of ranks changes nothing but the time that it takes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from essp_common.errors import ConfigError
from essp_common.runtime.config import Settings


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
    deterministic: bool = False
    """On a GPU: only kernels of cuDNN that give the same bits each time, and no search for the fastest one."""
    save_retry_s: float = Field(30.0, ge=0)
    """After a checkpoint could not be saved: how long to train on before it is tried again."""
    final_save_timeout_s: float = Field(300.0, ge=0)
    """How long the final checkpoint is tried before the training fails."""
    rank_restarts: int = Field(5, ge=0)
    """`essp trainer --ranks`: how often, in a row, ranks are started again that ran for less than five minutes."""
    rank_timeout_s: float = Field(600.0, gt=0)
    """How long ranks wait for one that says nothing. One that dies is noticed at once."""
    drained_exit: int = Field(0, ge=0, le=125)
    """Exit code after SIGTERM before the training is over, if that is not to look like its end: to a Job of Kubernetes
    0 means that it need not be started again."""


class Rendezvous(BaseSettings):
    """Which of the ranks of a training this process is: the variables that torchrun sets.

    RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE. Torch itself reads MASTER_ADDR and MASTER_PORT.
    """

    model_config = SettingsConfigDict(extra="ignore", frozen=True)

    rank: int = Field(0, ge=0)
    world_size: int = Field(1, ge=1)
    local_rank: int = Field(0, ge=0)
    """Among the ranks of this machine: the GPU to take."""
    local_world_size: int = Field(1, ge=1)
    """Ranks on this machine, which share its CPUs."""

    @classmethod
    def of_environment(cls) -> Self:
        """Raises `ConfigError` for a variable that makes no sense."""
        try:
            return cls()
        except ValidationError as error:
            wrong = [f"{'_'.join(map(str, e['loc'])).upper()}: {e['msg']}" for e in error.errors()]
            raise ConfigError("rank of a training: " + "; ".join(wrong)) from error


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """One training of one job, as this process does it."""

    job: str
    trainer: str
    worker: str
    """This process's name in messages."""
    local_rank: int = 0
    """Among the ranks of this machine."""
    local_ranks: int = 1
    """Ranks of this training on this machine."""
    settings: TrainerSettings = field(default_factory=TrainerSettings)
