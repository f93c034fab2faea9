"""Carries out what is decided about jobs, and has their histories written.

A defect of one job (a catalog of which no seed can be made, an error in its account) fails that job alone, with the
reason; the other jobs go on.

Only one master may run a job. Of two, the one that started it later has the higher fence and continues; the other finds
a message or a segment of it, and lets the job go.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta

from essp_common.errors import EsspError, Fenced, TransientError
from essp_common.failures import reason_of, shortened
from essp_common.job.status import JobState
from essp_common.messages.control import ControlFeed
from essp_common.pb.v1.messages_pb2 import Control, Progress
from essp_common.runtime.failpoints import failpoint
from essp_common.wiring import Adapters
from essp_engine.seeding.instructions import CompleteJob, FailJob, Instruction, IssueUnits, TellOfChanges, TellOfLoops
from essp_master.config import MasterSettings
from essp_master.effects.dispatch import Dispatch
from essp_master.effects.history_writer import HistoryWriter
from essp_master.effects.outbox import Outbox
from essp_master.job.job import COMMANDS, Job
from essp_master.lifecycle.job_table import JobTable
from essp_master.pools.worker_registry import WorkerRegistry
from essp_master.status.status_view import status_of, without_events
from essp_master.tracking.tracking import Tracking

log = logging.getLogger(__name__)

RECENT = timedelta(hours=1)
"""For how long a job that has ended is among the metrics, if it is one of the newest."""
KEPT_WHOLE = 100
"""Jobs that have ended, the newest, of which all is kept, and which are among the metrics; of older ones the last
status is kept. What a master costs therefore follows from the jobs under way, not from all that it ever had."""
_LOOK_S = 1.0
"""How often the store is asked whether another master has taken a fence."""
_SWEEP_S = 2.0
"""How often stray bytes of jobs are looked for that ended so long ago at least: workers learn of it a moment later."""


class JobRunner:
    """What a master does about its jobs. Methods are called under `lock`, unless they say otherwise."""

    def __init__(
        self,
        adapters: Adapters,
        settings: MasterSettings,
        history: HistoryWriter,
        worker_registry: WorkerRegistry,
        tracking: Tracking,
        recovers: bool,
        clock: Callable[[], float],
    ) -> None:
        """`recovers`: the master takes over jobs of others, and outlives its own."""
        self.lock = threading.RLock()
        """Guards all that is known of jobs."""
        self.jobs = JobTable()
        self.outbox = Outbox(adapters.bus)
        self.dispatch = Dispatch(adapters.bus, adapters.cache, self.outbox, self.lock)
        self.history = history
        self.tracking = tracking
        self.recovers = recovers
        self.clock = clock
        self.fenced: Fenced | None = None
        """Another master runs a job that this one had."""
        self._settings = settings
        self._worker_registry = worker_registry
        self._swept_s = clock()
        self._look_s: dict[str, float] = {}
        """Jobs of which nobody had taken a higher fence, and when that is asked again: it is asked under the lock, and
        anybody may send messages with such fences."""
        self._late: set[str] = set()
        """Jobs that are past, of which a worker has stored bytes since: it stood still while its job ended."""
        self._defects: dict[str, str] = {}
        """What has gone wrong last with which job."""

    def handle(self, progress: Progress, now_s: float) -> None:
        """Account for a message about a job."""
        job = self.jobs.find(progress.job)
        if job is None:
            if progress.HasField("made") and self.jobs.is_past(progress.job):
                self._late.add(progress.job)
            return
        with self.isolated(job):
            if progress.fence > job.run.fence:
                self.yield_to(job, progress.fence)
            if out := job.handle(progress, now_s):
                self.carry_out(job, out)

    def issue(self) -> None:
        """Issue what there is room for."""
        for job in self.jobs:
            if job.state.ended:
                continue
            with self.isolated(job):
                if job.held:
                    self.carry_out(job, job.look(*self.up()))
                self.carry_out(job, job.issue())

    def tick(self, now_s: float) -> None:
        """What is to be done about jobs of which nothing is heard, and those that have ended."""
        for job in self.jobs:
            with self.isolated(job):
                self.carry_out(job, job.dismiss_silent(now_s, self._settings.loop_patience_s))
                if job.has_stalled(now_s, self._settings.stall_s):
                    self.carry_out(job, job.issue_again(now_s))
                if job.state.ended and self.recovers:  # a process that has one job may use its preflight further
                    job.let_go()
        self._forget()
        if now_s - self._swept_s >= _SWEEP_S:
            self._swept_s = now_s
            self.sweep(now_s - _SWEEP_S)

    def sweep(self, ended_by_s: float = math.inf) -> bool:
        """Free what workers stored for jobs that had ended by then. Whether there is any such job."""
        swept = [job for job in self.jobs if job.state.ended and job.leftovers and job.ended_s <= ended_by_s]
        for job in swept:
            with self.isolated(job):
                self.dispatch.sweep(job)
        late, self._late = self._late, set()
        for name in late:
            if self.jobs.is_past(name) and not self.jobs.is_starting(name):
                self.dispatch.purge(name)
        return bool(swept or late)

    def _forget(self) -> None:
        """Keep no more than the status of all but the newest jobs that have ended, once their histories hold all."""
        for job in self.jobs.ended_but(KEPT_WHOLE):
            with self.isolated(job):
                if not job.leftovers and self.history.holds_all_of(job):
                    self.jobs.remember(without_events(status_of(job, None, self.clock())))
                    self.history.forget(job.name)
                    self._look_s.pop(job.name, None)
                    self._defects.pop(job.name, None)

    def enter(self, job: Job, wanted: JobState, reason: str = "") -> bool:
        """Change a job's state, and tell all workers. False: it was in that state."""
        if not job.enter(wanted, self.clock(), reason):
            return False
        if not wanted.ended:
            failpoint("master.command-entered")
        log.info("job %s: %s%s", job.name, wanted, f": {reason}" if reason else "", extra={"job_id": job.name})
        self.dispatch.command(job, COMMANDS[wanted])
        if wanted.ended:
            self.tracking.ended(job.run.preflight.spec, wanted)
            job.leftovers, job.ended_s = True, self.clock()
            self.dispatch.purge(job.name)
        return True

    def carry_out(self, job: Job, instructions: Sequence[Instruction]) -> None:
        """Carry out what the job's ledger wants."""
        for instruction in instructions:
            match instruction:
                case IssueUnits():  # most are
                    self.dispatch.instruction(job, instruction)
                case CompleteJob():
                    self.enter(job, JobState.COMPLETED)
                case FailJob(reason):
                    self.enter(job, JobState.FAILED, reason)
                case TellOfLoops() | TellOfChanges():
                    self.dispatch.command(job, COMMANDS[job.state])
                case _:
                    self.dispatch.instruction(job, instruction)

    def up(self) -> tuple[Collection[str], float]:
        """The pools with a worker, now."""
        now_s = self.clock()
        return self._worker_registry.pools(now_s), now_s

    # --- what goes wrong ---

    def isolated(self, job: Job) -> _Isolated:
        """What goes wrong within this block is the job's own trouble: it fails, and the others go on."""
        return _Isolated(job, self)

    def met(self, job: Job, error: Exception) -> None:
        """Something has gone wrong with this job alone: it fails. One that has ended says so, once."""
        reason = str(error) if isinstance(error, EsspError) else f"unexpected error: {reason_of(error)}"
        if self._defects.get(job.name) != reason:
            self._defects[job.name] = reason
            if not isinstance(error, EsspError):
                log.error("job %s: unexpected error", job.name, exc_info=error, extra={"job_id": job.name})
            if job.state.ended:
                job.reporter.warn([f"job {job.name}: {reason}"])
        self.fail(job, reason)

    def fail(self, job: Job, reason: str) -> None:
        """End a job, unless it has ended."""
        if not job.state.ended:
            self.enter(job, JobState.FAILED, reason)

    def fail_refused(self) -> None:
        """Fail the jobs of which something can never be published. Takes the lock."""
        with self.lock:
            for name, error in self.outbox.refused():
                if (job := self.jobs.find(name)) is not None:
                    with self.isolated(job):
                        self.fail(job, str(error))

    # --- other masters ---

    def follow(self, feed: ControlFeed) -> None:
        """Leave the jobs of which another master publishes a command."""
        feed.on_change(self._heed)

    def yield_to(self, job: Job, fence: int) -> None:
        """Leave a job to another master if this fence is higher than its own, and was taken: anybody may send one."""
        if fence > job.run.fence and not self._was_taken(job, fence):
            return
        if (error := job.yield_to(fence, self.clock())) is not None:
            log.error("%s", error)
            self.fenced = error

    def _heed(self, control: Control) -> None:
        with self.lock:
            if (job := self.jobs.find(control.job)) is not None:
                self.yield_to(job, control.fence)

    def _was_taken(self, job: Job, fence: int) -> bool:
        """Whether a master has taken this fence of a job; if the store does not answer, it is believed."""
        now_s = self.clock()
        if now_s < self._look_s.get(job.name, now_s):
            return False  # if it was, a message after that tells again, and so does the next segment
        try:
            taken = job.run.history.fences_above(job.run.fence) >= fence
        except TransientError:
            return True
        if not taken:
            self._look_s[job.name] = now_s + _LOOK_S
            log.warning("job %s: a message with fence %d, which no master has taken, is ignored", job.name, fence)
        return taken

    # --- the histories ---

    def _tell_of_lost(self, job: Job, reason: str) -> None:
        """A job fails whose history cannot be written; one that has ended stays as it was."""
        log.error("job %s: %s", job.name, reason, extra={"job_id": job.name})
        if job.state.ended:
            job.reporter.warn([f"job {job.name}: {reason}"])
        else:
            self.fail(job, shortened(reason))

    def write_histories(self, now: bool = False) -> None:
        """Write what was noted if it is time (or `now`); the messages that it accounts for are done afterwards.
        Takes the lock."""
        with self.lock:
            for lost in self.history.lost():
                if (job := self.jobs.find(lost.job)) is None:
                    continue
                if isinstance(lost.error, Fenced):
                    with self.isolated(job):
                        self.yield_to(job, lost.error.fence)
                else:
                    with self.isolated(job):
                        job.lose_history()
                        self._tell_of_lost(job, f"its history cannot be written: {lost.error}; it lacks {lost.part}")
            if self.outbox.empty:
                self.history.write(self.jobs, now)


class _Isolated:
    """What `JobRunner.isolated` gives. One is made for each message, so it is no generator."""

    __slots__ = ("_job", "_runner")

    def __init__(self, job: Job, runner: JobRunner) -> None:
        self._job = job
        self._runner = runner

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception) or isinstance(error, TransientError):
            return False
        self._runner.met(self._job, error)
        return True
