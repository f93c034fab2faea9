"""How a run of a job begins, or continues under another master: with a fence, and with the first write to its history.

These are the writes; `preflight.py` has read and checked everything before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from essp_common.errors import Conflict, Fenced
from essp_common.job.status import JobState
from essp_common.messages.control import run_of
from essp_common.pb.v1.messages_pb2 import Change, Control
from essp_common.runtime.failpoints import failpoint
from essp_common.wiring import Stores
from essp_engine.preflight.preflight import Preflight
from essp_master.job.events import EventLog
from essp_master.job.job import Job
from essp_master.job.run import claim_run

_TRIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What a run inherits."""

    state: JobState = JobState.RUNNING
    """Its first state: running, paused or queued."""
    since: int = 0
    """The fence with which the continued run began; 0 for a new run."""
    team: str = ""
    """The owning team."""
    priority: int | None = None
    """In the queue; None: the job's own priority."""
    changes: Sequence[Change] = ()
    """Changes of the job that are known to this process or were announced."""
    above: int = 0
    """The highest fence with which the job's name was announced; the run takes a higher one."""
    before: Job | None = None
    """The run that ends for this one, which has more epochs or trainers; None if this one does not follow another."""

    @classmethod
    def of_command(cls, command: Control) -> Self:
        """Return the origin of a run that another master left, given its last command."""
        paused = JobState.PAUSED if command.command == Control.PAUSE else JobState.RUNNING
        return cls(
            state=JobState.QUEUED if command.queued else paused,
            since=run_of(command),
            team=command.team,
            priority=command.priority,
            changes=command.changes,
        )

    @classmethod
    def of_run(cls, before: Job) -> Self:
        """Return the origin of a run for which `before` ends."""
        return cls(
            state=before.state,
            team=before.team,
            priority=before.priority,
            changes=tuple(before.changes.made),
            before=before,
        )


def start_run(
    preflight: Preflight, stores: Stores, origin: Origin, events: EventLog, worker: str, clock: Callable[[], float]
) -> Job:
    """Start a run and return its job. This master was the last to write the job's history; no worker knows the run yet.

    Raises `Conflict` if other masters keep starting the job at the same time.
    """
    for _ in range(_TRIES):
        run = claim_run(preflight, stores, origin.since, origin.changes, origin.team, origin.above)
        job = Job(run, clock(), events, origin.team)
        if origin.priority is not None:
            job.priority = origin.priority
        if origin.before is not None:
            job.follow(origin.before, clock())
        if origin.state is not JobState.RUNNING:
            job.pause(finishes=origin.state is JobState.QUEUED)
        job.enter(origin.state, clock())
        try:
            job.run.history.append(job.segment(worker, clock()))
        except Fenced as error:  # by a master that was still writing, or that started the job at the same time
            if error.fence > job.run.fence:
                raise
            continue
        failpoint("master.start-recorded")
        return job
    raise Conflict(f"job {preflight.spec.name} is being started by other masters, too; stop all but one")
