"""Takes over the jobs that were under way when the previous master left, and remembers those that had ended.

Histories are read in parallel (`failover/reading.py`), starting with jobs under way: requests wait meanwhile, and a
store with thousands of jobs takes a moment for each.

The master waits for a server that does not answer, because messages about a job that is not taken over yet would be
lost, but no longer than `takeover_s`: a single job must not keep the master from all others. It does not wait for the
history of an ended job that cannot be read: until the store answers (`read_on`), the last command gives its status. A
job that cannot be taken over is announced as failed, so that the next master does not encounter it again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import closing, suppress
from functools import partial

from essp_common import topics
from essp_common.errors import Conflict, NotFound, TransientError, Unavailable
from essp_common.failures import reason_of, shortened
from essp_common.job.past_status import status_by_command
from essp_common.job.spec import stored_spec
from essp_common.job.status import JobStatus
from essp_common.messages.control import ENDED
from essp_common.pb.v1.messages_pb2 import Control
from essp_common.runtime.failpoints import failpoint
from essp_common.runtime.retry import Outage
from essp_common.wiring import Adapters
from essp_master.config import MasterSettings
from essp_master.failover.reading import Histories, Reading
from essp_master.failover.recovery import as_recorded, last_commands, under_way
from essp_master.lifecycle.runner import JobRunner
from essp_master.lifecycle.starter import JobStarter

log = logging.getLogger(__name__)

_LONGEST_WAIT_S = 5.0
"""Longest pause in seconds between two tries to take over jobs."""
_AGAIN_S = 60.0
"""Interval at which unreadable histories of ended jobs are read again."""
_PATIENCE_S = 10.0
"""How long a request waits until the master knows the jobs."""
_WAIT_TOGETHER = 20
"""Number of requests that may wait for it; further ones are refused at once. Each takes a thread, and metrics and logs
need threads, too."""


class Takeover:
    """What a master learns about the previous one. Takes the runner's lock."""

    def __init__(
        self,
        runner: JobRunner,
        starter: JobStarter,
        adapters: Adapters,
        settings: MasterSettings,
        draining: threading.Event,
    ) -> None:
        """`draining`: the master is leaving."""
        self.done = threading.Event()
        """Set when all jobs under way are known; until then requests wait."""
        self.obstacle = ""
        """What the master waits for before it can take over jobs; empty if nothing."""
        self._waiting = threading.BoundedSemaphore(_WAIT_TOGETHER)
        self._runner = runner
        self._starter = starter
        self._bus = adapters.bus
        self._stores = adapters.stores
        self._histories = Histories(adapters.stores, runner.clock, draining)
        self._unread: dict[str, tuple[Control, JobStatus]] = {}
        """Ended jobs whose histories could not be read: the last command, and the status shown meanwhile."""
        self._settings = settings
        self._draining = draining
        self._listened = runner.recovers
        if not runner.recovers:
            self.done.set()

    def wait(self) -> None:
        """Wait until the jobs under way are known. Raises `Unavailable` if that takes long, or if too many requests
        wait."""
        if not self._listened:
            self._listen()
        if self.done.is_set():
            return
        waits = self._waiting.acquire(blocking=False)
        try:
            known = self.done.wait(_PATIENCE_S if waits else 0.0)
        finally:
            if waits:
                self._waiting.release()
        if not known:
            obstacle = f" ({self.obstacle})" if self.obstacle else ""
            raise Unavailable(f"this master is still finding out what was under way{obstacle}; ask again in a moment")

    def run(self) -> None:
        """Take over all jobs. Returns early if the master leaves."""
        clock, commands, began_s = self._runner.clock, None, 0.0
        outage = Outage("master", self._draining.wait, _LONGEST_WAIT_S)
        while not self.done.is_set() and not self._draining.is_set():
            with outage:
                try:
                    if commands is None:
                        commands = self._heard()
                        began_s = clock()  # time without the bus does not count against the patience with stores
                    self._take_over_all(commands, clock() - began_s >= self._settings.takeover_s)
                except TransientError as error:
                    self.obstacle = str(error)
                    raise
                if not self._draining.is_set():
                    self.obstacle = ""
                    self.done.set()

    def _heard(self) -> list[Control]:
        """Return the last commands of the jobs that were not removed. Remembers the fences of all of them."""
        commands = last_commands(self._bus, self._draining)
        with self._runner.lock:
            for command in commands:
                self._runner.note_fence(command.job, command.fence)
        return [command for command in commands if not command.removed]

    def _listen(self) -> None:
        """Once, for a master that takes nothing over: its bus may be a cluster's, and know the name of its job."""
        with suppress(NotFound):  # no process has made the topic
            if any(self._bus.held(topics.CONTROL)):
                self._heard()
        self._listened = True

    def read_on(self) -> None:
        """Keep reading the unreadable histories, until the master leaves or knows all of them."""
        while self._unread and not self._draining.wait(_AGAIN_S):
            self.read_again()

    def read_again(self) -> None:
        """Read again the histories that could not be read before."""
        with closing(self._histories.read([command for command, _ in self._unread.values()])) as readings:
            for reading in readings:
                command, told = self._unread[reading.command.job]
                if isinstance(reading.error, TransientError):
                    continue
                with self._runner.lock:
                    started_again = self._runner.jobs.past(command.job) != told
                if started_again or self._take_over(reading) is None:
                    del self._unread[command.job]

    def _take_over_all(self, commands: Sequence[Control], late: bool) -> None:
        """Take over all jobs that are not known yet.

        Raises `TransientError` if one of them has to wait. `late`: such jobs are failed instead.
        """
        unknown = [command for command in commands if not self._known(command)]
        unknown.sort(key=under_way, reverse=True)
        awaited: list[tuple[Control, TransientError]] = []
        put_off: list[tuple[Control, TransientError]] = []
        with closing(self._histories.read(unknown, insist=late)) as readings:
            for reading in readings:
                if (error := self._take_over(reading)) is not None:
                    (put_off if reading.command.command in ENDED else awaited).append((reading.command, error))
        if self._draining.is_set():
            return
        self._put_off(put_off)
        if awaited and not late:
            raise awaited[0][1]
        for command, error in awaited:
            self._give_up(command, f"{error}; start it again, and it resumes from its last checkpoint")

    def _put_off(self, unread: Sequence[tuple[Control, TransientError]]) -> None:
        """Remember these ended jobs with the status of their last commands."""
        for command, error in unread:
            reason = f"its history cannot be read yet: {error}"
            told = status_by_command(command)
            told = told.model_copy(update={"reason": "; ".join(filter(None, (told.reason, reason)))})
            self._remember(told)
            self._unread[command.job] = command, told
        if unread:
            log.warning(
                "the histories of %d jobs that have ended cannot be read (%s); they are read again every %g s",
                len(unread),
                unread[0][1],
                _AGAIN_S,
            )

    def _known(self, command: Control) -> bool:
        return command.job in self._runner.jobs or self._runner.jobs.is_past(command.job)

    def _take_over(self, reading: Reading) -> TransientError | None:
        """Take over one job. Returns an error if a server does not answer, else None: nothing is left to do."""
        command = reading.command
        try:
            if reading.error is not None:
                raise reading.error
            if reading.ended is not None:  # possibly by a master that still exists
                self._remember(reading.ended)
            else:
                command = as_recorded(command, self._stores)
                self._starter.take_over(stored_spec(command.snapshot.spec_json, f"job {command.job}"), command)
                failpoint("master.taken-over")
        except TransientError as error:
            if command.command in ENDED:
                return error
            reason = f"job {command.job} cannot be taken over yet: {error}"
            log.warning("%s", reason, extra={"job_id": command.job})
            return TransientError(reason, error.retry_after_s)
        except Conflict as error:  # another master has the job
            log.error("job %s cannot be taken over: %s", command.job, error, extra={"job_id": command.job})
        except Exception as error:
            log.exception("job %s cannot be taken over", command.job, extra={"job_id": command.job})
            self._give_up(command, f"it cannot be taken over by a new master: {reason_of(error)}")
        return None

    def _give_up(self, command: Control, reason: str) -> None:
        """Announce as failed a job that this master cannot even begin to take over. A job that had already ended stays
        unchanged."""
        last = Control()
        last.CopyFrom(command)
        if command.command not in ENDED:
            last.command, last.reason = Control.FAIL, shortened(reason)
            tell = partial(self._bus.publish, topics.CONTROL, command.job.encode(), last.SerializeToString())
            self._runner.outbox.add(tell)
            # Decoders that started before this master have taken up its seeds, which the broker still holds. What they
            # store from now on is freed when they report it.
            with self._runner.lock:
                self._runner.dispatch.purge(command.job)
        self._remember(status_by_command(last))

    def _remember(self, past: JobStatus) -> None:
        """Remember a past job, unless it was started again in the meantime."""
        with self._runner.lock:  # requests list the jobs meanwhile
            if past.name not in self._runner.jobs:
                self._runner.jobs.remember(past)
