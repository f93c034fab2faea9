"""What the workers of an installation use, for users: the same in the API, on the page and in `essp top`.

A figure is null if no worker reports it. Workers that share a process, as all of `essp run` do, have figures only
together: then the pools have none, and the row `one process` has them.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

ONE_PROCESS = "one process"
"""The row of processes that run several pools."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class GpuUsage(_Model):
    """A GPU that a process uses."""

    id: str
    """The driver's id."""
    name: str
    busy: float | None
    """Share of the time for which it was busy."""
    memory_bytes: int | None
    memory_limit_bytes: int
    watts: float | None


class ProcessUsage(_Model):
    """A process of workers, with its children, by its last heartbeat."""

    host: str
    process: int
    """Its id on that host."""
    workers: tuple[str, ...]
    pools: tuple[str, ...]
    cpu_cores: float | None
    """Cores that it kept busy; null in its first seconds."""
    cores: float
    """Cores that it may use: those of its container, or of the machine."""
    memory_bytes: int
    memory_limit_bytes: int
    """The memory of its container, or of the machine."""
    disk_free_bytes: int
    """Free space where it keeps temporary files; 0 if `disk_bytes` is, because it is not known."""
    disk_bytes: int
    gpus: tuple[GpuUsage, ...]


class PoolUsage(_Model):
    """What the workers of a pool that are up do and use together."""

    pool: str
    """A pool, or `one process`."""
    workers: int
    busy: float | None
    """Mean share of the time for which they worked."""
    clips_per_s: float | None
    queue: int | None
    """Clips that wait for the pool or are in its hands."""
    cpu_cores: float | None
    """Cores that they kept busy."""
    cores: float | None
    """Cores that they may use; a machine counts once."""
    memory_bytes: int | None
    memory_limit_bytes: int | None
    """The least memory that one of them may use."""
    disk_free_bytes: int | None
    """The least free space that one of them has for temporary files."""
    gpus: int
    gpu_busy: float | None
    """Mean over the GPUs."""
    gpu_memory_bytes: int | None
    gpu_memory_limit_bytes: int | None
    gpu_watts: float | None


class Usage(_Model):
    """The workers that are up."""

    pools: tuple[PoolUsage, ...]
    processes: tuple[ProcessUsage, ...]
