"""Settings of the aggregator: those of every service (`essp_common.runtime.config`), and how it polls."""

from __future__ import annotations

from essp_common.runtime.config import Settings


class AggregatorSettings(Settings):
    """What an aggregator needs to know. What to fuse and how is in the job."""

    poll_records: int = 500
    """Maximum number of `essp.progress` messages per poll. Nearly all are not for the aggregator and cost little."""
