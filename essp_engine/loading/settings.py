"""Settings of whatever makes batches of clips: those of every service, how far ahead, and with how many threads."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import Field

from essp_common.runtime.config import Settings

ViewPlace: TypeAlias = Literal["auto", "host", "device"]


class LoadingSettings(Settings):
    """What is prepared ahead of a model."""

    prefetch_batches: int = Field(3, ge=1)
    """Batches prepared ahead of the model; each keeps its views, or whole frames of a device that cuts, in host
    memory."""
    fetches: int = Field(0, ge=0, le=64)
    """Threads that fetch clips from the cache, decode them and make views (0: one a CPU, at most 8; but none for
    uncompressed clips of a cache in memory, where the thread that takes clips does it)."""
    fetch_processes: int = Field(0, ge=0, le=64)
    """Processes that do this in place of those threads, as many as there are cores to spare: for a GPU that takes
    more than some 2,000 clips a second, where threads keep each other waiting. Each takes 270 MB. They need a cache of
    Redis, or in shared memory. 0: threads."""
    views: ViewPlace = "auto"
    """Who makes views: crops, resizes and mirrors clips. `host`: the threads above. `device`: where the model is, out
    of whole frames. `auto`: a GPU does if it can, which it cannot with `rand_augment` or frames of different sizes; for
    a CPU the threads do."""
