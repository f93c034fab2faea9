"""Settings of a predictor: those of every service (`essp_common.runtime.config`), and how it computes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from essp_common.runtime.config import Settings


class PredictorSettings(Settings):
    """What a predictor needs to know. What to classify, and with which model, is in the job."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the models run; `auto`: on a GPU if there is one, otherwise on the CPU."""
    batch_clips: int = Field(16, ge=1)
    """Clips scored in one batch. Batches are cut by index, so that scores do not depend on when clips arrive."""
    fetches: int = Field(0, ge=0, le=64)
    """Threads of a stream that fetch clips from the cache, decode and crop them (0: one a CPU, at most 8). Uncompressed
    clips of a cache in memory need none."""
