"""Carries out decisions about jobs, and has their histories written.

A defect of one job (a catalog from which no seeds can be made, an error in its ledger) fails that job alone, with the
reason; the other jobs continue.

Only one master may run a job. Of two masters, the one that started it later has the higher fence and continues. The
other one finds a message or a history segment of it, and lets the job go.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from functools import partial

from essp_common.errors import EsspError, Fenced, TransientError
from essp_common.failures import reason_of, shortened
from essp_common.job.past_status import without_events
from essp_common.job.status import JobState
from essp_common.job.usage import Usage
from essp_common.messages.control import ControlFeed
from essp_common.pb.v1.messages_pb2 import Control, Progress
from essp_common.runtime import ids
from essp_common.runtime.failpoints import failpoint
from essp_common.wiring import Adapters
from essp_engine.seeding.instructions import CompleteJob, FailJob, Instruction, IssueUnits, TellOfChanges, TellOfLoops
from essp_master.config import MasterSettings
from essp_master.effects.dispatch import Dispatch
from essp_master.effects.history_writer import HistoryWriter
from essp_master.effects.outbox import Outbox
from essp_master.job.job import COMMANDS, Job
from essp_master.lifecycle.job_table import JobTable
from essp_master.pools.usage import usage_of, work_of
from essp_master.pools.worker_registry import WorkerRegistry
from essp_master.status.sampling import sample
from essp_master.status.status_view import status_of
from essp_master.tracking.tracking import Tracking

log = logging.getLogger(__name__)

RECENT = timedelta(hours=1)
"""How long an ended job stays among the metrics, if it is one of the newest."""
KEPT_WHOLE = 100
"""Number of ended jobs, the newest ones, that are kept in full and appear among the metrics; of older ones only the
last status is kept. So the cost of a master depends on the jobs under way, not on all jobs that it ever had."""
_LOOK_S = 1.0
"""Interval at which the store is asked whether another master has taken a fence."""
_GROUPS_S = 30.0
"""Time from a job's end to the deletion of its consumer groups: until then its trainers save, commit and leave."""
_SWEEP_S = 2.0
"""Interval of the search for stray bytes, and the least time since a job's end before its bytes are searched: workers
learn of the end a moment later."""


class JobRunner:
    """Everything that a master does about its jobs. Methods are called under `lock` unless stated otherwise."""

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
        """`recovers`: the master takes over jobs of others, and outlives its own jobs."""
        self.lock = threading.RLock()
        """Guards all state about jobs."""
        self._bus = adapters.bus
        self.jobs = JobTable()
        self.outbox = Outbox(adapters.bus)
        self.dispatch = Dispatch(adapters.bus, adapters.cache, self.outbox, self.lock)
        self.history = history
        self.tracking = tracking
        self.recovers = recovers
        self.clock = clock
        self.fenced: Fenced | None = None
        """Set when another master runs a job that this one had."""
        self._feed: ControlFeed | None = None
        self._fences: dict[str, int] = {}
        """The highest fence with which each job was announced, also of removed ones. A job's output holds only the
        fences of its runs there, and its name may have had another output before."""
        self._settings = settings
        self._worker_registry = worker_registry
        self._swept_s = clock()
        self._measured: Usage | None = None
        """What the workers use at this tick; the same for all jobs."""
        self._look_s: dict[str, float] = {}
        """By job: when to ask again whether a higher fence was taken, after it was not. The store is asked under the
        lock, and any client may send messages with such fences."""
        self._late: set[str] = set()
        """Past jobs for which a worker has stored bytes since: the worker was suspended while the job ended."""
        self._defects: dict[str, str] = {}
        """The last defect of each job."""

    def handle(self, progress: Progress, now_s: float) -> None:
        """Account for a message about a job."""
        job = self.jobs.find(progress.job)
        # A late report of a past job: what the worker has stored must be freed.
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
        up: tuple[Collection[str], float] | None = None
        for job in self.jobs:
            if job.state.ended:
                continue
            with self.isolated(job):
                if job.held:
                    up = up or self.up()  # once for all of them: it costs as much as there are workers
                    self.carry_out(job, job.look(*up))
                self.carry_out(job, job.issue())

    def tick(self, now_s: float) -> None:
        """Handle stalled and finished jobs."""
        for job in self.jobs:
            with self.isolated(job):
                self.carry_out(job, job.dismiss_silent(now_s, self._settings.loop_patience_s))
                if job.has_stalled(now_s, self._settings.stall_s):
                    self.carry_out(job, job.issue_again(now_s))
                job.tell_rescored()
                if not job.state.ended and job.timeline.due(now_s):
                    sample(job, self.usage_at_tick(now_s).pools, now_s)
                if job.state.ended and self.recovers:  # a process with a single job may still use its preflight
                    job.let_go()
        self._measured = None
        self._forget()
        self._delete_groups(now_s - _GROUPS_S)
        if now_s - self._swept_s >= _SWEEP_S:
            self._swept_s = now_s
            self.sweep(now_s - _SWEEP_S)

    def usage(self, now_s: float) -> Usage:
        """Return what the workers do and use."""
        states = self._worker_registry.everybody(now_s)
        return usage_of(states, work_of(self.jobs, states, now_s))

    def usage_at_tick(self, now_s: float) -> Usage:
        """Return what the workers use, at most one tick old."""
        if self._measured is None:
            self._measured = usage_of(self._worker_registry.everybody(now_s), {})
        return self._measured

    def sweep(self, ended_by_s: float = math.inf) -> bool:
        """Free what workers stored for jobs that had ended by this time. Returns whether there was any such job."""
        swept = [job for job in self.jobs if job.state.ended and job.leftovers and job.ended_s <= ended_by_s]
        for job in swept:
            with self.isolated(job):
                self.dispatch.sweep(job)
        late, self._late = self._late, set()
        for name in late:
            if self.jobs.is_past(name) and not self.jobs.is_starting(name):
                self.dispatch.purge(name)
        return bool(swept or late)

    def _delete_groups(self, ended_by_s: float) -> None:
        """Have the broker forget the consumer groups of jobs that ended by this time: each job has its own."""
        due = [job for job in self.jobs if job.state.ended and job.grouped and job.ended_s <= ended_by_s]
        for job in due:
            job.grouped = False
        if groups := [group for job in due for group in groups_of(job)]:
            self.outbox.add(partial(self.delete_groups, groups))

    def delete_groups(self, groups: Collection[str]) -> None:
        """Have the broker forget groups, if it can be done now: nothing waits for it. Does not need the lock."""
        try:
            self._bus.delete_groups(groups)
        except TransientError as error:
            log.info("groups of ended jobs stay until the broker forgets them: %s", error)

    def _forget(self) -> None:
        """Reduce all but the newest ended jobs to their status, once their histories are complete."""
        for job in self.jobs.ended_but(KEPT_WHOLE):
            with self.isolated(job):
                if not (job.leftovers or job.grouped) and self.history.holds_all_of(job):
                    self.jobs.remember(without_events(status_of(job, None, self.clock())))
                    self.history.forget(job.name)
                    self._look_s.pop(job.name, None)
                    self._defects.pop(job.name, None)

    def enter(self, job: Job, wanted: JobState, reason: str = "") -> bool:
        """Change a job's state and announce it to all workers. Returns False if it was already in that state."""
        if not job.enter(wanted, self.clock(), reason):
            return False
        if wanted.ended:
            sample(job, self.usage_at_tick(self.clock()).pools, self.clock())  # a short job may have no other
        else:
            failpoint("master.command-entered")
        log.info("job %s: %s%s", job.name, wanted, f": {reason}" if reason else "", extra={"job_id": job.name})
        self.dispatch.command(job, COMMANDS[wanted])
        if wanted.ended:
            self.tracking.ended(job.run.preflight.spec, wanted)
            job.leftovers, job.grouped, job.ended_s = True, True, self.clock()
            self.dispatch.purge(job.name)
        return True

    def carry_out(self, job: Job, instructions: Sequence[Instruction]) -> None:
        """Carry out the instructions of the job's ledger."""
        for instruction in instructions:
            match instruction:
                case IssueUnits():  # by far the most frequent
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
        """Return the pools that have a worker, and the present time."""
        now_s = self.clock()
        return self._worker_registry.pools(now_s), now_s

    # --- errors ---

    def isolated(self, job: Job) -> _Isolated:
        """Errors within this block belong to the job: it fails, and the others continue."""
        return _Isolated(job, self)

    def met(self, job: Job, error: Exception) -> None:
        """Handle an error of this job alone: the job fails. A job that has already ended reports the error, once."""
        reason = str(error) if isinstance(error, EsspError) else f"unexpected error: {reason_of(error)}"
        if self._defects.get(job.name) != reason:
            self._defects[job.name] = reason
            if not isinstance(error, EsspError):
                log.error("job %s: unexpected error", job.name, exc_info=error, extra={"job_id": job.name})
            if job.state.ended:
                job.reporter.warn([f"job {job.name}: {reason}"])
        self.fail(job, reason)

    def fail(self, job: Job, reason: str) -> None:
        """End a job as failed, unless it has ended."""
        if not job.state.ended:
            self.enter(job, JobState.FAILED, reason)

    def fail_refused(self) -> None:
        """Fail the jobs that have a message which can never be published. Takes the lock."""
        with self.lock:
            for name, error in self.outbox.refused():
                if (job := self.jobs.find(name)) is not None:
                    with self.isolated(job):
                        self.fail(job, str(error))

    # --- other masters ---

    def follow(self, feed: ControlFeed) -> None:
        """Watch for commands of another master, and leave its jobs."""
        self._feed = feed
        feed.on_change(self._heed)

    def last_command(self, name: str) -> Control | None:
        """The last command of a job, as other processes know it; None if this master follows no commands."""
        return None if self._feed is None else self._feed.latest(name)

    def note_fence(self, name: str, fence: int) -> None:
        """Remember that a job of this name was announced with this fence."""
        self._fences[name] = max(fence, self.fence_of(name))

    def fence_of(self, name: str) -> int:
        """The highest fence with which a job of this name was announced; 0 if none was."""
        return self._fences.get(name, 0)

    def yield_to(self, job: Job, fence: int) -> None:
        """Leave a job to another master if this fence is higher than its own and was really taken: any client may send
        one."""
        if fence > job.run.fence and not self._was_taken(job, fence):
            return
        if (error := job.yield_to(fence, self.clock())) is not None:
            log.error("%s", error)
            self.fenced = error

    def _heed(self, control: Control) -> None:
        with self.lock:
            self.note_fence(control.job, control.fence)
            if (job := self.jobs.find(control.job)) is not None:
                self.yield_to(job, control.fence)

    def _was_taken(self, job: Job, fence: int) -> bool:
        """Whether a master has taken this fence of a job. If the store does not answer, assume that it has."""
        now_s = self.clock()
        if now_s < self._look_s.get(job.name, now_s):
            return False  # if it was taken, a later message shows it again, and so does the next segment
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
        """Fail a job whose history cannot be written; a job that has ended keeps its state and reports it."""
        log.error("job %s: %s", job.name, reason, extra={"job_id": job.name})
        if job.state.ended:
            job.reporter.warn([f"job {job.name}: {reason}"])
        else:
            self.fail(job, shortened(reason))

    def write_histories(self, now: bool = False) -> None:
        """Write what was recorded, if a write is due (or `now`); the messages that it covers are done afterwards. Takes
        the lock."""
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
            # Only when the outbox is empty: a message may count as done only after its effects were carried out.
            if self.outbox.empty:
                self.history.write(self.jobs, now)


def groups_of(job: Job) -> list[str]:
    """Return the consumer groups that only this job has."""
    return [ids.consumer_group(consumer, job.name) for consumer in job.spec.readers()]


class _Isolated:
    """Returned by `JobRunner.isolated`. Created for every message, so it is a class and not a slower generator."""

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
