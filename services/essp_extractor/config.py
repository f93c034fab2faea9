"""Settings of an extractor: the common ones (`essp_common.runtime.config`), its features and its lanes."""

from __future__ import annotations

from pydantic import Field

from essp_common.runtime.config import Settings


class ExtractorSettings(Settings):
    """Settings of an extractor. The parameters of a feature come with each clip."""

    features: tuple[str, ...] = ()
    """Features to compute (`essp extractor ls`), as a JSON list. Empty: all installed features. The features of a
    process share intermediate results."""
    extractor_lanes: int = Field(0, ge=0, le=1024)
    """Number of clips to process in parallel. 0: one per CPU (cgroup limits count)."""
