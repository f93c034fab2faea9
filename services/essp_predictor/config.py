"""Settings of a predictor: the common ones (`essp_common.runtime.config`), and how it computes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from essp_common.runtime.config import Settings


class PredictorSettings(Settings):
    """Settings of a predictor. What to classify, and with which model, is in the job."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the models run; `auto`: on a GPU if there is one, otherwise on the CPU."""
    batch_clips: int = Field(16, ge=1)
    """Clips scored in one batch. Batches are cut by index, so that scores do not depend on when clips arrive."""
    fetches: int = Field(0, ge=0, le=64)
    """Threads per stream that fetch clips from the cache, decode and crop them (0: one per CPU, at most 8).
    Uncompressed clips in a cache in memory need no such threads."""
