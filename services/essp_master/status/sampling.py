"""What is kept of a job's present state for its course (`essp_master/job/timeline.py`)."""

from __future__ import annotations

import time
from collections.abc import Iterable

from essp_common.job.status import JobState
from essp_common.job.usage import ONE_PROCESS, PoolUsage
from essp_common.runtime import ids
from essp_master.job.activity import TrainerActivity
from essp_master.job.job import Job
from essp_master.job.timeline import Key

_OF_ALL_JOBS = frozenset({ids.DECODER, ids.AGGREGATOR, ids.PREDICTOR, ids.MASTER, ONE_PROCESS})
"""Pools that work for every job, as far as they exist."""


def sample(job: Job, usage: Iterable[PoolUsage], now_s: float) -> None:
    """Add the present state of a job to its course. `usage`: what all pools use."""
    own = [pool for pool in usage if _works_for(pool.pool, job)]
    job.timeline.add(_values(job, now_s), own, now_s, time.time())


def _works_for(pool: str, job: Job) -> bool:
    if ids.is_training(pool):
        return pool in {ids.trainer_pool(job.name, name) for name in job.spec.trainers}
    made = (ids.extractor_pool([stream.feature]) for stream in job.spec.streams.values())
    return pool in _OF_ALL_JOBS or any(ids.serves(pool, one) for one in made)


def _values(job: Job, now_s: float) -> dict[Key, float | None]:
    runs = job.state is JobState.RUNNING
    found: dict[Key, float | None] = {
        ("clips_per_s", ""): job.activity.clips_per_s(now_s) if runs else 0.0,
        ("outstanding_bytes", ""): job.ledger.credits.outstanding_bytes,
    }
    for pool in job.activity.pool_statuses(job.ledger.backlog(), now_s):
        found["queue", pool.name] = pool.queue
        found["pool_clips_per_s", pool.name] = pool.clips_per_s
    clips = job.run.epoch_clips
    for name, training in job.activity.trainers.items():
        if name in job.ledger.finals or training.step is None:
            continue
        found["epoch", name] = _epoch(training, clips)
        found["lr", name] = training.step.lr if training.step.HasField("lr") else None
        if job.works:
            found["trainer_clips_per_s", name] = training.step.clips_per_s
            found["data_wait", name] = training.step.data_wait_ratio
    return found


def _epoch(training: TrainerActivity, clips: int) -> float | None:
    """Return how many epochs it has trained, with the part of the present one."""
    step = training.step
    if step is None or not clips or training.phase not in ("train", "validation"):
        return None
    return step.epoch + (min(1.0, step.clips_done / clips) if training.phase == "train" else 1.0)
