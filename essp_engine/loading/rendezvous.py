"""Which rank of a training a process is."""

from __future__ import annotations

from typing import Self

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from essp_common.errors import ConfigError


class Rendezvous(BaseSettings):
    """Which rank of a training this process is, from the variables that torchrun sets.

    RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE. Torch itself reads MASTER_ADDR and MASTER_PORT.
    """

    model_config = SettingsConfigDict(extra="ignore", frozen=True)

    rank: int = Field(0, ge=0)
    world_size: int = Field(1, ge=1)
    local_rank: int = Field(0, ge=0)
    """Rank on this machine: the GPU to use."""
    local_world_size: int = Field(1, ge=1)
    """Ranks on this machine, which share its CPUs."""

    @classmethod
    def of_environment(cls) -> Self:
        """Read the environment. Raises `ConfigError` for a variable with an impossible value."""
        try:
            return cls()
        except ValidationError as error:
            wrong = [f"{'_'.join(map(str, e['loc'])).upper()}: {e['msg']}" for e in error.errors()]
            raise ConfigError("rank of a training: " + "; ".join(wrong)) from error
