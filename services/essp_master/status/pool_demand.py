"""What one job demands of the pools: exactly the input of the decisions about their sizes.

`essp_common/job/status.py` is for users, and may change with what they want to read; no decision depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from essp_master.job.activity import TrainerActivity
from essp_master.job.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerDemand:
    """One training of a job."""

    name: str
    stream: str
    model: str
    final: bool
    """Whether it is done."""
    clips_per_s: float | None
    """None if not known yet."""
    data_wait_ratio: float | None
    """Share of its time for which it waited for clips; None if not known yet."""
    losses: tuple[float, ...]
    """Validation losses, one per epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolDemand:
    """One job that has not ended."""

    job: str
    created: datetime
    """When it was last started."""
    running: bool
    """Whether workers have something to do for it. False: it is paused, or it waits for other jobs and has finished its
    work."""
    streams: Mapping[str, str]
    """Stream -> its feature."""
    epoch_clips: int
    """Clips of one training epoch; 0 if the job does not train."""
    backlog: Mapping[str, int]
    """`decoder` or stream -> clips that wait or are being made."""
    done: Mapping[str, int]
    """Pool -> clips finished."""
    awaits: tuple[str, ...] = ()
    """The pools that still lack the worker that they must have before the seeds are issued."""
    out_of_credit: bool
    """Whether more could be issued with more credit: consumers are the bottleneck."""
    trainers: tuple[TrainerDemand, ...]
    predicts: bool = False
    """Whether predictors take its clips."""
    waiting: int = 0
    """Clips that are made and wait for predictors; of each stream by itself."""

    @property
    def to_fuse(self) -> bool:
        """Whether it waits for an aggregator: all its trainers are done."""
        return bool(self.trainers) and all(trainer.final for trainer in self.trainers)


def demand_of(job: Job) -> PoolDemand:
    """Return the present demand of a job."""
    ledger, found = job.ledger, job.run.preflight
    return PoolDemand(
        job=job.name,
        created=job.life.created,
        running=job.works,
        streams={name: stream.feature for name, stream in found.spec.streams.items()},
        epoch_clips=job.run.epoch_clips,
        backlog=ledger.backlog(),
        done=job.activity.done(),
        awaits=job.awaits,
        out_of_credit=ledger.out_of_credit,
        predicts=found.spec.predicts,
        waiting=ledger.waiting() if found.spec.predicts else 0,
        trainers=tuple(
            _demand_of(name, training, name in ledger.finals) for name, training in job.activity.trainers.items()
        ),
    )


def _demand_of(name: str, training: TrainerActivity, final: bool) -> TrainerDemand:
    step = training.step
    return TrainerDemand(
        name=name,
        stream=training.spec.stream,
        model=training.spec.model,
        final=final,
        clips_per_s=step.clips_per_s if step else None,
        data_wait_ratio=step.data_wait_ratio if step else None,
        losses=tuple(
            r.metrics["loss"] for r in training.reports.values() if r.purpose == "validation" and "loss" in r.metrics
        ),
    )
