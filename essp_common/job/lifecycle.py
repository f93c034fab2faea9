"""The lifecycle of a job: which state allows which action.

    pending ──start──▶ running ◀──pause / resume──▶ paused
       │                 ▲ │                          │
       └────────▶ queued ┘◀┘◀─────── resume ──────────┘
       any of these ──▶ completed | failed | stopped ──start──▶ running, or queued

A job waits in the queue while there is no room for it; the master decides when it runs (`essp_master/queue/`). A job
that was paused when another master takes it over goes from pending to paused. Asking for the state a job is
already in is not an error, so that a repeated request is harmless. A job that has ended can be started again: it
resumes from its checkpoints.
"""

from __future__ import annotations

from essp_common.errors import Conflict
from essp_common.job.status import JobState

_STARTED = frozenset({JobState.QUEUED, JobState.RUNNING, JobState.PAUSED})
_ENDED = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.STOPPED})
_ALLOWED: dict[JobState, frozenset[JobState]] = {
    JobState.PENDING: _STARTED | {JobState.FAILED, JobState.STOPPED},
    JobState.QUEUED: frozenset({JobState.RUNNING, JobState.PAUSED}) | _ENDED,
    JobState.RUNNING: frozenset({JobState.QUEUED, JobState.PAUSED}) | _ENDED,
    JobState.PAUSED: frozenset({JobState.QUEUED, JobState.RUNNING}) | _ENDED,
    JobState.COMPLETED: _STARTED - {JobState.PAUSED},
    JobState.FAILED: _STARTED - {JobState.PAUSED},
    JobState.STOPPED: _STARTED - {JobState.PAUSED},
}
_VERBS = {
    JobState.QUEUED: "queued",
    JobState.RUNNING: "resumed",
    JobState.PAUSED: "paused",
    JobState.COMPLETED: "completed",
    JobState.FAILED: "failed",
    JobState.STOPPED: "stopped",
}


def allows(present: JobState, wanted: JobState) -> bool:
    """Whether a job may go from `present` to `wanted`; staying in the same state is always allowed."""
    return wanted is present or wanted in _ALLOWED[present]


def change(job: str, present: JobState, wanted: JobState) -> bool:
    """Whether going from `present` to `wanted` changes anything. Raises `Conflict`, naming the present state."""
    if not allows(present, wanted):
        raise Conflict(f"job {job} is {present}; it cannot be {_VERBS.get(wanted, wanted)}")
    return wanted is not present
