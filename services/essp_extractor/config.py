"""Settings of an extractor: those of every service (`essp_common.runtime.config`), its features and its lanes."""

from __future__ import annotations

from pydantic import Field

from essp_common.runtime.config import Settings


class ExtractorSettings(Settings):
    """What an extractor needs to know. The parameters of a feature come with each clip."""

    features: tuple[str, ...] = ()
    """Features to make (`essp extractor ls`), as a JSON list. Empty: all that are installed. The features of a process
    share intermediate results."""
    extractor_lanes: int = Field(0, ge=0, le=1024)
    """Clips processed at the same time. 0: one per CPU (cgroup limits count)."""
