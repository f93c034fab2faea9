"""Takes over the jobs that were under way when the previous master left; remembers those that had ended.

Histories are read side by side, first those of the jobs that were under way: requests wait meanwhile, and a store that
has thousands of jobs takes a moment for each.

A server that does not answer is waited for, as what is said of a job that is not taken over yet would be lost, but no
longer than `takeover_s`: a single job must not keep the master from all others. Nobody waits for the history of a job
that has ended and cannot be read; the next master reads it. A job that cannot be taken over is announced as failed, so
that the next master does not meet it again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from essp_common import topics
from essp_common.errors import Conflict, TransientError, Unavailable
from essp_common.failures import reason_of, shortened
from essp_common.job.spec import stored_spec
from essp_common.job.status import JobStatus
from essp_common.messages.control import ENDED
from essp_common.pb.v1.messages_pb2 import Control
from essp_common.runtime.failpoints import failpoint
from essp_common.runtime.retry import Outage
from essp_common.wiring import Adapters
from essp_master.config import MasterSettings
from essp_master.failover.recovery import as_recorded, last_commands, past, under_way
from essp_master.job.status_view import status_by_command
from essp_master.lifecycle.runner import JobRunner
from essp_master.lifecycle.starter import JobStarter

log = logging.getLogger(__name__)

_LONGEST_WAIT_S = 5.0
"""Most seconds between two tries to take over what was under way."""
_READ_TOGETHER = 16
"""Histories."""
_PATIENCE_S = 10.0
"""How long a request waits for the master to know the jobs."""


class Takeover:
    """What a master learns of the one before it. Takes the runner's lock."""

    def __init__(
        self,
        runner: JobRunner,
        starter: JobStarter,
        adapters: Adapters,
        settings: MasterSettings,
        draining: threading.Event,
    ) -> None:
        """`draining`: the master leaves."""
        self.done = threading.Event()
        """It is known what was under way; until then requests wait."""
        self.obstacle = ""
        """What the master waits for before it can take over what was under way; empty: nothing."""
        self._runner = runner
        self._starter = starter
        self._bus = adapters.bus
        self._stores = adapters.stores
        self._settings = settings
        self._draining = draining
        if not runner.recovers:
            self.done.set()

    def wait(self) -> None:
        """Until it is known what was under way. Raises `Unavailable` if that takes long."""
        if not self.done.wait(_PATIENCE_S):
            obstacle = f" ({self.obstacle})" if self.obstacle else ""
            raise Unavailable(f"this master is still finding out what was under way{obstacle}; ask again in a moment")

    def run(self) -> None:
        """Take over all jobs; returns early when the master leaves."""
        clock, commands, began_s = self._runner.clock, None, 0.0
        outage = Outage("master", self._draining.wait, _LONGEST_WAIT_S)
        while not self.done.is_set() and not self._draining.is_set():
            with outage:
                try:
                    if commands is None:
                        commands = last_commands(self._bus, self._draining)
                        began_s = clock()  # a bus that was away takes nothing from the patience with stores
                    self._take_over_all(commands, clock() - began_s >= self._settings.takeover_s)
                except TransientError as error:
                    self.obstacle = str(error)
                    raise
                self.obstacle = ""
                self.done.set()

    def _take_over_all(self, commands: Sequence[Control], late: bool) -> None:
        """Take over all jobs but those that are known already.

        Raises `TransientError` if one has to be waited for. `late`: such jobs are failed instead.
        """
        unknown = [command for command in commands if not self._known(command)]
        unknown.sort(key=under_way, reverse=True)
        readers = ThreadPoolExecutor(_READ_TOGETHER, "essp-takeover")
        try:
            histories = [(command, readers.submit(past, command, self._stores)) for command in unknown]
            tried = ((command, self._take_over(command, history)) for command, history in histories)
            awaited = [(command, error) for command, error in tried if error is not None and under_way(command)]
        finally:
            readers.shutdown(cancel_futures=True)
        if awaited and not late:
            raise awaited[0][1]
        for command, error in awaited:
            self._give_up(command, f"{error}; start it again, and it resumes from its last checkpoint")

    def _known(self, command: Control) -> bool:
        return command.job in self._runner.jobs or self._runner.jobs.past(command.job) is not None

    def _take_over(self, command: Control, history: Future[JobStatus | None]) -> TransientError | None:
        """Take over one job. Returns an error if a server does not answer, and None if there is nothing left to do."""
        if self._draining.is_set():
            return None
        try:
            if (ended := history.result()) is not None:  # perhaps by a master that is still there
                with self._runner.lock:  # requests list the jobs meanwhile
                    self._runner.jobs.remember(ended)
            else:
                command = as_recorded(command, self._stores)
                self._starter.take_over(stored_spec(command.snapshot.spec_json, f"job {command.job}"), command)
                failpoint("master.taken-over")
        except TransientError as error:
            reason = f"job {command.job} cannot be taken over yet: {error}"
            log.warning("%s", reason, extra={"job_id": command.job})
            return TransientError(reason, error.retry_after_s)
        except Conflict as error:  # another master has it
            log.error("job %s cannot be taken over: %s", command.job, error, extra={"job_id": command.job})
        except Exception as error:
            log.exception("job %s cannot be taken over", command.job, extra={"job_id": command.job})
            self._give_up(command, f"it cannot be taken over by a new master: {reason_of(error)}")
        return None

    def _give_up(self, command: Control, reason: str) -> None:
        """Have everybody know that a job failed which this master cannot even begin to take over. One that had ended
        before stays as it was."""
        last = Control()
        last.CopyFrom(command)
        if command.command not in ENDED:
            last.command, last.reason = Control.FAIL, shortened(reason)
            tell = partial(self._bus.publish, topics.CONTROL, command.job.encode(), last.SerializeToString())
            self._runner.outbox.add(tell)
        with self._runner.lock:
            self._runner.jobs.remember(status_by_command(last))
