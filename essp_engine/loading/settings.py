"""Settings of all programs that prepare batches of clips: the settings of every service, how far ahead, and with how
many threads."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import Field

from essp_common.runtime.config import Settings

ViewPlace: TypeAlias = Literal["auto", "host", "device"]


class LoadingSettings(Settings):
    """What is prepared ahead of a model."""

    prefetch_batches: int = Field(3, ge=1)
    """Batches prepared ahead of the model. Each holds its views in host memory, or whole frames if the device cuts."""
    fetches: int = Field(0, ge=0, le=64)
    """Threads that fetch clips from the cache, decode them and make views. 0: one per CPU, at most 8; but no threads
    for uncompressed clips in a memory cache, which the thread that takes clips handles."""
    fetch_processes: int = Field(0, ge=0, le=64)
    """Processes that do this instead of the threads, at most as many as there are spare cores: for a GPU that takes
    more than about 2,000 clips a second, when threads keep each other waiting. Each takes 270 MB. They need a cache in
    Redis or in shared memory. 0: threads."""
    views: ViewPlace = "auto"
    """Where views are made, that is, clips are cropped, resized and mirrored. `host`: on the threads above. `device`:
    where the model is, from whole frames. `auto`: on a GPU if it can, which it cannot with `rand_augment` or frames of
    different sizes; otherwise on the threads."""
