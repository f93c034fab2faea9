"""Which of the present conditions keeps a job from getting on: what its status gives as its reason.

A silent broker looks like slow decoders, and a store without its bucket like an idle pool: figures do not show the
cause, conditions do. The gravest comes first: servers that everything waits for, then workers, then saving.
"""

from __future__ import annotations

from essp_common.job.status import JobState
from essp_common.runtime import ids
from essp_common.runtime.conditions import Condition
from essp_common.runtime.troubles import Kind
from essp_master.job.job import Job

_SERVERS = (Kind.BUS_REFUSES, Kind.BUS_SILENT, Kind.BUS_STALLED, Kind.CACHE_REFUSES, Kind.CACHE_SILENT)
"""What everything waits for."""
_STOPS = (
    *_SERVERS,
    Kind.PAUSED,
    Kind.CRASHING,
    Kind.HELD_UP,
    Kind.NO_WORKERS,
    Kind.UNASSIGNED,
    Kind.STORAGE_SILENT,
    Kind.STORAGE_FULL,
)
"""Work stands still, for a while at least."""
_GRAVEST_FIRST = (*_STOPS, Kind.UNSAVED)
"""A trainer that cannot save continues, but its job cannot end."""


def hindrance_of(job: Job, now_s: float) -> Condition | None:
    """Return the gravest condition that concerns a running job; None if there is none. A server that only some workers
    cannot reach does not count while clips arrive."""
    if job.state is not JobState.RUNNING:
        return None
    needed, moves = _needed(job), job.activity.clips_per_s(now_s) > 0
    kinds = [kind for kind in _GRAVEST_FIRST if not (moves and kind in _SERVERS)]
    found = [it for it in job.reporter.conditions if it.kind in kinds and _concerns(it.subject, needed)]
    return min(found, key=lambda it: (_GRAVEST_FIRST.index(it.kind), it.since), default=None)


def stopped_by(hindrance: Condition | None) -> Condition | None:
    """Return the condition if work stands still because of it."""
    return hindrance if hindrance is not None and hindrance.kind in _STOPS else None


def _needed(job: Job) -> set[str]:
    """Return the pools that a job waits for now: those that its clips flow through, and in the end who fuses."""
    if job.spec.trainers and job.ledger.finals >= job.spec.trainers.keys():
        return {ids.AGGREGATOR}
    return {*job.needed_pools} - {ids.AGGREGATOR}


def _concerns(subject: str, needed: set[str]) -> bool:
    """Whether a condition of this subject affects a job that needs these pools. Trainers are its own (`EventReporter`),
    and without the master nothing is issued."""
    return subject == ids.MASTER or ids.is_training(subject) or any(ids.serves(subject, made) for made in needed)
