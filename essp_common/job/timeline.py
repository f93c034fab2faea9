"""The course of a job over its time, for users: rates, waiting, learning rates, and what its workers used.

Plain data, JSON in the API and in the job's output (`timeline.json`). Its size is bounded: each time is the middle of a
stretch, each value the mean over it, and the stretches become longer as the job does.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from essp_common.job.status import TrainerCurve

Figure = Literal[
    "clips_per_s",
    "outstanding_bytes",
    "queue",
    "pool_clips_per_s",
    "trainer_clips_per_s",
    "data_wait",
    "epoch",
    "lr",
    "cpu_cores",
    "memory_bytes",
    "gpu_busy",
    "gpu_memory_bytes",
    "gpu_watts",
]
"""What a series shows. Of the job: `clips_per_s`, `outstanding_bytes`. Of a trainer: `trainer_clips_per_s`,
`data_wait` (share of its time for which it waited for clips), `epoch` (2.5: the middle of the third), `lr`. Of a pool:
`queue` (clips that wait for it), `pool_clips_per_s`, and from `cpu_cores` on what its workers used."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class TimelineSeries(_Model):
    """One figure over time."""

    figure: Figure
    of: str
    """The trainer or the pool; empty for the job. `one process` is a process that runs several pools."""
    values: tuple[float | None, ...]
    """One for each of `times`; null where it was not known."""


class UsageTotal(_Model):
    """What the workers of a pool used while the job was under way."""

    pool: str
    """A pool, or `one process`."""
    seconds: float
    """Time for which they were observed."""
    cpu_cores: float | None
    """Mean number of cores that they kept busy."""
    busy: float | None
    """Mean share of the time for which they worked."""
    peak_memory_bytes: int | None
    gpu_busy: float | None
    """Mean over time and GPUs."""
    peak_gpu_memory_bytes: int | None
    gpu_joules: float | None
    """Energy that their GPUs took, if the driver measures power."""


class JobTimeline(_Model):
    """The course of a job, over all of its runs."""

    every_s: float
    """Length of a stretch."""
    times: tuple[float, ...]
    """Seconds since 1970, ascending. A pause longer than a stretch is a gap: no master ran the job."""
    series: tuple[TimelineSeries, ...]
    totals: tuple[UsageTotal, ...]


class StoredTimeline(_Model):
    """What the output of a job keeps of its course."""

    timeline: JobTimeline
    curves: tuple[TrainerCurve, ...] = ()
    """The curves within epochs."""


NO_TIMELINE = JobTimeline(every_s=0.0, times=(), series=(), totals=())
"""For a job without a stored timeline."""
