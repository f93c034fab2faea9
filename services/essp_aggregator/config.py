"""Settings of the aggregator: the common ones (`essp_common.runtime.config`), polling, and child processes."""

from __future__ import annotations

from pydantic import Field

from essp_common.runtime.config import Settings


class AggregatorSettings(Settings):
    """Settings of an aggregator. What to fuse, and how, is in the job."""

    poll_records: int = Field(500, ge=1)
    """Maximum number of `essp.progress` messages per poll. Most of them do not concern the aggregator and cost
    little."""
    aggregator_processes: int = Field(0, ge=0, le=1024)
    """Number of candidates to try in parallel when that takes long, each in a single-threaded child process. 0: one per
    CPU (cgroup limits count).

    The number does not affect the choice. Each process needs memory for what it learns: see docs/aggregation.md.
    """
