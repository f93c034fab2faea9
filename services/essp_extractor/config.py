"""Settings of an extractor: those of every service (`essp_common.runtime.config`), and which features it makes."""

from __future__ import annotations

from pydantic import Field

from essp_common.runtime.config import Settings


class ExtractorSettings(Settings):
    """What an extractor needs to know. The parameters of a feature come with each clip."""

    features: tuple[str, ...] = ()
    """Features to make (`essp extractor ls`), a JSON list. Empty: all that are installed. Those of one process share
    their intermediate results."""
    extractor_lanes: int = Field(0, ge=0, le=1024)
    """Clips worked on at a time. 0: as many as CPUs (cgroup limits count)."""
