"""The lifecycle of a job: which state allows which action.

    pending ──start──▶ running ◀──pause / resume──▶ paused
       └────────────────┴───────────────┴──▶ completed | failed | stopped ──start──▶ running

A job that was paused when another master takes it over goes from pending to paused. Asking for the state a job is
already in is no error, so that a repeated request is harmless. A job that has ended can be started again: it resumes
from its checkpoints.
"""

from __future__ import annotations

from essp_common.errors import Conflict
from essp_common.job.status import JobState

_ALLOWED: dict[JobState, frozenset[JobState]] = {
    JobState.PENDING: frozenset({JobState.RUNNING, JobState.PAUSED, JobState.FAILED, JobState.STOPPED}),
    JobState.RUNNING: frozenset({JobState.PAUSED, JobState.COMPLETED, JobState.FAILED, JobState.STOPPED}),
    JobState.PAUSED: frozenset({JobState.RUNNING, JobState.COMPLETED, JobState.FAILED, JobState.STOPPED}),
    JobState.COMPLETED: frozenset({JobState.RUNNING}),
    JobState.FAILED: frozenset({JobState.RUNNING}),
    JobState.STOPPED: frozenset({JobState.RUNNING}),
}
_VERBS = {
    JobState.RUNNING: "resumed",
    JobState.PAUSED: "paused",
    JobState.COMPLETED: "completed",
    JobState.FAILED: "failed",
    JobState.STOPPED: "stopped",
}


def allows(present: JobState, wanted: JobState) -> bool:
    """Whether a job may go from `present` to `wanted`; to where it is already, always."""
    return wanted is present or wanted in _ALLOWED[present]


def change(job: str, present: JobState, wanted: JobState) -> bool:
    """Whether going from `present` to `wanted` changes anything. Raises `Conflict`, naming the present state."""
    if not allows(present, wanted):
        raise Conflict(f"job {job} is {present}; it cannot be {_VERBS.get(wanted, wanted)}")
    return wanted is not present
