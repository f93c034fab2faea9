"""How a run of a job begins, or is gone on with by another master: behind a fence, and first of all in its history."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from essp_common.errors import Conflict, Fenced
from essp_common.features.declared import DeclaredFeature
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobState
from essp_common.pb.v1.messages_pb2 import Control
from essp_common.runtime.failpoints import failpoint
from essp_common.wiring import Stores
from essp_master.job.events import EventLog
from essp_master.job.job import Job
from essp_master.job.preflight import launch

_TRIES = 5


def open_run(
    spec: JobSpec,
    stores: Stores,
    fresh: bool,
    command: Control | None,
    declared: Mapping[str, DeclaredFeature],
    events: EventLog,
    worker: str,
    clock: Callable[[], float],
) -> Job:
    """A job of which this master is the last to have written the history; nobody has been told of it yet.

    `command`: the last one of a run that another master left. Raises `ConfigError`, and `Conflict` when other masters
    start the job, too.
    """
    paused = command is not None and command.command == Control.PAUSE
    since = 0 if command is None else command.since or command.fence
    for _ in range(_TRIES):
        job = Job(launch(spec, stores, fresh, since, declared), clock(), events)
        if paused:
            job.pause()
        job.enter(JobState.PAUSED if paused else JobState.RUNNING, clock())
        try:
            job.launch.history.append(job.segment(worker, clock()))
        except Fenced as error:  # by a master that was still writing, or that started the job at the same time
            if error.fence > job.fence:
                raise
            continue
        failpoint("master.start-recorded")
        return job
    raise Conflict(f"job {spec.name} is being started by other masters, too; stop all but one")
