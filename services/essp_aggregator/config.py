"""Settings of the aggregator: those of every service (`essp_common.runtime.config`), how it polls, and its children."""

from __future__ import annotations

from pydantic import Field

from essp_common.runtime.config import Settings


class AggregatorSettings(Settings):
    """What an aggregator needs to know. What to fuse and how is in the job."""

    poll_records: int = 500
    """Maximum number of `essp.progress` messages per poll. Nearly all are not for the aggregator and cost little."""
    aggregator_processes: int = Field(0, ge=0, le=1024)
    """Candidates tried at the same time where that takes long, each in a child process of one thread. 0: one per CPU
    (cgroup limits count).

    How many has no effect on the choice. Each needs memory for what it learns: see docs/aggregation.md.
    """
