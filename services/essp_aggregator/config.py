"""Settings of the aggregator: those of every service (`essp_common.runtime.config`), and no more."""

from __future__ import annotations

from essp_common.runtime.config import Settings


class AggregatorSettings(Settings):
    """What an aggregator needs to know. What to fuse and how is in the job."""

    poll_records: int = 500
    """Messages of `essp.progress` taken at once. Nearly all are not for the aggregator, so a step is cheap."""
