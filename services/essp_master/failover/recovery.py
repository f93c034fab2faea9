"""What the previous master left: the last command of every job in `essp.control`, and the jobs' histories.

A command is published before its request is answered, and written to the history afterwards. So if the two differ, the
command is newer, and it is carried out again.
"""

from __future__ import annotations

import threading

from essp_common import topics
from essp_common.artifacts.history import History
from essp_common.bus.port import Bus
from essp_common.bus.reading import read_all
from essp_common.job.past_status import past_status, status_by_command
from essp_common.job.spec import stored_spec
from essp_common.job.status import JobStatus
from essp_common.messages.control import ENDED, ends_for_next, run_of
from essp_common.messages.parsing import BadMessage, parsed, refuse
from essp_common.pb.v1.messages_pb2 import Control
from essp_common.wiring import Stores

_UNDER_WAY = (Control.START, Control.RESUME, Control.PAUSE)


def last_commands(bus: Bus, draining: threading.Event) -> list[Control]:
    """Return the last command of each job, also of those that were removed.

    Raises `TransientError` if the bus does not answer: a job that is missed now would be lost to this master.
    """
    found: dict[str, Control] = {}
    for record in read_all(bus, topics.CONTROL, draining.is_set, whole=True):
        try:
            command = parsed(Control, record)
        except BadMessage as error:
            refuse("master", record, error)
            continue
        if not command.job:  # about pools
            continue
        last = found.get(command.job, command)
        if command.fence >= last.fence or last.removed:
            found[command.job] = command
    return list(found.values())


def under_way(command: Control) -> bool:
    """Whether the job is running or paused after this command."""
    return command.command in _UNDER_WAY


def as_recorded(command: Control, stores: Stores) -> Control:
    """Return the command, unless the job's next run follows it: if that run is already in the history but was never
    announced, return the command that announces it."""
    if not ends_for_next(command):
        return command
    spec = stored_spec(command.snapshot.spec_json, f"job {command.job}")
    newest = History(stores.under(spec.output)).newest()
    if newest is None or newest.since <= run_of(command):
        return command
    told = Control()
    told.CopyFrom(command)
    told.since, told.next_spec_json = newest.since, ""
    told.snapshot.spec_json = command.next_spec_json
    return told


def past(command: Control, stores: Stores) -> JobStatus | None:
    """Return the last status of a job that has ended; None if its history lacks it, or the job has not ended.

    A later run that was never announced, because its master died while it restarted the job, does not count. If a job
    has ended and its history is gone, because its output was removed, its last command gives the status.
    """
    spec = stored_spec(command.snapshot.spec_json, f"job {command.job}")
    history = History(stores.under(spec.output))
    newest = history.newest()
    if newest is not None and newest.since > run_of(command) and command.command in ENDED:
        newest = history.last_of(run_of(command))
    if newest is None and command.command in ENDED:
        return status_by_command(command)
    if newest is None or not newest.status_json:
        return None
    return past_status(newest.status_json, f"the status in the history of {spec.output}")
