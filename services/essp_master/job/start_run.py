"""How a run of a job begins, or continues under another master: with a fence, and with the first write of its history.

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
    """What a run has from what was before it."""

    state: JobState = JobState.RUNNING
    """In which it begins: running, paused or queued."""
    since: int = 0
    """The run that continues, by the fence with which it began; 0: a new one."""
    team: str = ""
    """Whose job it is."""
    priority: int | None = None
    """In the queue; None: as the job says."""
    changes: Sequence[Change] = ()
    """Of the job, as far as they are known to this process, or to all."""
    before: Job | None = None
    """The run that ends for this one, which has more epochs or trainers; None: there is none."""

    @classmethod
    def of_command(cls, command: Control) -> Self:
        """Of a run that another master left, by its last command."""
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
        """Of a run that ends, so that this one can begin with more."""
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
    """A job whose history this master was the last to write. No worker knows of it yet.

    Raises `Conflict` when other masters start the job, too.
    """
    for _ in range(_TRIES):
        job = Job(claim_run(preflight, stores, origin.since, origin.changes, origin.team), clock(), events, origin.team)
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
