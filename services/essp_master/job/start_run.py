"""How a run of a job begins, or continues under another master: with a fence, and with the first write of its history.

These are the writes; `preflight.py` has read and checked everything before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from essp_common.errors import Conflict, Fenced
from essp_common.job.status import JobState
from essp_common.pb.v1.messages_pb2 import Change, Control
from essp_common.runtime.failpoints import failpoint
from essp_common.wiring import Stores
from essp_master.job.events import EventLog
from essp_master.job.job import Job
from essp_master.job.preflight import Preflight
from essp_master.job.run import claim_run

_TRIES = 5


def start_run(
    preflight: Preflight,
    stores: Stores,
    command: Control | None,
    events: EventLog,
    worker: str,
    clock: Callable[[], float],
    team: str = "",
    queued: bool = False,
    changes: Sequence[Change] = (),
) -> Job:
    """A job whose history this master was the last to write. No worker knows of it yet.

    `command`: the last one of a run that another master left. `team`: whose job it is. `queued`: it waits for other
    jobs at first. `changes`: of its run before, as this master knows them. Raises `Conflict` when other masters start
    the job, too.
    """
    paused = command is not None and command.command == Control.PAUSE
    state = JobState.QUEUED if queued else JobState.PAUSED if paused else JobState.RUNNING
    since = 0 if command is None else command.since or command.fence
    told = changes if command is None else command.changes
    for _ in range(_TRIES):
        job = Job(claim_run(preflight, stores, since, told), clock(), events, team)
        if command is not None:
            job.priority = command.priority
        if state is not JobState.RUNNING:
            job.pause(finishes=queued)
        job.enter(state, clock())
        try:
            job.run.history.append(job.segment(worker, clock()))
        except Fenced as error:  # by a master that was still writing, or that started the job at the same time
            if error.fence > job.run.fence:
                raise
            continue
        failpoint("master.start-recorded")
        return job
    raise Conflict(f"job {preflight.spec.name} is being started by other masters, too; stop all but one")
