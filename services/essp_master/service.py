"""The master: starts jobs, issues their seeds, accounts for what comes back, and publishes what is to be done.

The thin shell around pure parts (`ledger/`, `job/`): one thread reads `essp.progress` and carries out the ledger's
instructions; the API's threads start, pause and stop jobs under the same lock. A progress message is done once its
effects are durable and the job's history holds what became of it (`effects/history_writer.py`).

What outlives the process: specification, history, checkpoints and fences in each job's output, and the last command of
every job in `essp.control`. A master with `recovers` takes over from these the jobs that were under way: it stands
where the newest segment of the history says, the bus delivers the messages after that segment again, and the master
issues again the work units that no worker has done by then, since decoders drop those of an older master.

A defect of one job (a catalog of which no seed can be made, an error in its account) fails that job alone, with the
reason; the other jobs go on. A job is announced only when its first work units are made, and one that cannot be taken
over is announced as failed, so that the next master does not meet it again. A record that holds no message of ours is
dropped and counted.

Only one such master may run at a time; it reads `essp.progress` in the group `master`. Of two, the one that started
later has the higher fence and continues; the other finds a message or a segment of it, lets the job go, and leaves with
an error. A master that runs a job of its own process (`essp run`) has a group of its own, and lets go of the job alone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from essp_common import topics
from essp_common.bus.port import Record
from essp_common.errors import (
    ConfigError,
    Conflict,
    EsspError,
    Fenced,
    NotFound,
    PermanentError,
    TransientError,
    Unavailable,
)
from essp_common.failures import reason_of, shortened
from essp_common.job.changes import EPOCHS, gains, next_run, of_next_run
from essp_common.job.lifecycle import change
from essp_common.job.spec import JobSpec, stored_spec
from essp_common.job.status import (
    JobEvent,
    JobState,
    JobStatus,
    JobSummary,
    QueueStatus,
    StreamPreview,
    TrainerCurve,
)
from essp_common.messages.control import ENDED, ControlFeed, ends_for_next
from essp_common.messages.parsing import BadMessage, parsed, refuse, sound
from essp_common.pb.v1.messages_pb2 import Control, Progress
from essp_common.runtime import conditions, ids
from essp_common.runtime.conditions import Conditions, Subject
from essp_common.runtime.failpoints import failpoint
from essp_common.runtime.retry import Outage
from essp_common.runtime.troubles import Kind
from essp_common.validation import suggested
from essp_common.wiring import Adapters
from essp_common.worker.heartbeat import Heart
from essp_master.cache_watch import CacheWatch
from essp_master.config import MasterSettings
from essp_master.effects.dispatch import Dispatch
from essp_master.effects.history_writer import HistoryWriter
from essp_master.effects.outbox import Outbox
from essp_master.effects.previews import Previews
from essp_master.failover.recovery import as_recorded, last_commands, past, under_way
from essp_master.job.events import EventLog
from essp_master.job.handshake import Handshake
from essp_master.job.job import COMMANDS, Job
from essp_master.job.pool_demand import PoolDemand, demand_of
from essp_master.job.preflight import Preflight, preflight
from essp_master.job.start_run import Origin, start_run
from essp_master.job.status_view import curves_of, status_by_command, status_of, without_events
from essp_master.job_table import JobTable
from essp_master.ledger.instructions import CompleteJob, FailJob, Instruction, IssueUnits, TellOfChanges, TellOfLoops
from essp_master.pools.pool_watch import PoolWatch
from essp_master.pools.worker_registry import WorkerRegistry
from essp_master.queue.admission import Admission
from essp_master.queue.plan import Contender
from essp_master.registrations import Declared
from essp_master.tracking.mlflow import MLflow
from essp_master.tracking.tensorboard import TensorBoard
from essp_master.tracking.tracking import Tracker, Tracking
from essp_master.worker_logs import WorkerLogs

log = logging.getLogger(__name__)

_POLL_S, _TICK_S = 0.1, 0.5
_LOOK_S = 2.0
"""How often the master looks for what keeps ESSP from working."""
_SWEEP_S = 2.0
"""How often stray bytes are looked for after the end of a job."""
_LONGEST_WAIT_S = 5.0
"""Most seconds between two tries to take over what was under way."""
_RECENT = timedelta(hours=1)
"""For how long a job that has ended is among the metrics."""
_KEPT_WHOLE = 100
"""Jobs that have ended of which all is kept; of older ones, after that hour, the last status is."""
_PATIENCE_S = 10.0
"""How long a request waits for the master to know them, and for the next run of a job that gets more."""
_AGAIN_S = 2.0
"""How long after a server did not answer it is tried again to begin that run."""


class _Isolated:
    """What `Master._isolated` gives. One is made for each message, so it is no generator."""

    __slots__ = ("_fail", "_job")

    def __init__(self, job: Job, fail: Callable[[Job, str], None]) -> None:
        self._job = job
        self._fail = fail

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception) or isinstance(error, TransientError):
            return False
        if isinstance(error, EsspError):
            self._fail(self._job, str(error))
        else:
            log.exception("job %s: unexpected error", self._job.name, extra={"job_id": self._job.name})
            self._fail(self._job, f"unexpected error: {type(error).__name__}: {error}")
        return True


class Master:
    """Runs jobs. The methods that people call are thread-safe."""

    name = "master"

    def __init__(
        self,
        adapters: Adapters,
        settings: MasterSettings,
        worker: str,
        recovers: bool = False,
        clock: Callable[[], float] = time.monotonic,
        declared: Callable[[], Declared] = Declared,
        trackers: Sequence[Tracker] = (),
    ) -> None:
        """`recovers`: takes over the jobs that were under way. `declared`: what is registered, and not
        installed here. `trackers`: who gets the figures of trainings."""
        self._bus = adapters.bus
        self._cache_watch = CacheWatch(adapters.cache)
        self._previews = Previews(adapters.cache)
        self._stores = adapters.stores
        self._settings = settings
        self._clock = clock
        self._recovers = recovers
        self._declared = declared
        self._lock = threading.RLock()
        self._jobs = JobTable()
        self._draining = threading.Event()
        self._recovered = threading.Event()
        """It is known what was under way; until then requests wait."""
        self.obstacle = ""
        """What this master waits for before it can take over what was under way; empty: nothing."""
        if not recovers:
            self._recovered.set()
        self._outbox = Outbox(self._bus)
        self._dispatch = Dispatch(adapters.bus, adapters.cache, self._outbox, self._lock)
        self.worker_registry = WorkerRegistry()
        """The workers that are up, of all pools."""
        self.worker_logs = WorkerLogs()
        """What they have logged lately."""
        self.conditions = Conditions(conditions.of(ids.MASTER, adapters.troubles))
        """What keeps ESSP from working."""
        self.conditions.add(self._unsaved)
        self.conditions.add(PoolWatch(self.pool_demands, self.worker_registry, adapters.troubles, clock))
        self._worker = worker
        self._fenced: Fenced | None = None
        group = ids.MASTER if recovers else ids.unshared_master_group(worker)
        self._subscription = self._bus.subscribe([topics.PROGRESS], group)
        self._history = HistoryWriter(self._subscription, settings, worker, clock)
        self._ticked_s = self._swept_s = clock()
        self._tracking = Tracking(trackers)
        queues = recovers or settings.queue_budget is not None
        self._admission = Admission(settings, self._cache_watch) if queues else None
        """Decides which jobs run; None: all of them, as in a process that has one."""
        self._starting: dict[str, Contender] = {}
        """Jobs that begin to run as soon as they are known."""
        self._renewing: dict[str, threading.Thread] = {}
        """Jobs whose next run is being started, with more epochs or trainers."""
        self._renewed = threading.Condition(self._lock)
        """One of these is started, or given up."""
        self._renews_s: dict[str, float] = {}
        """When that is tried again which failed."""

    # --- the service ---

    def run(self) -> None:
        """Account for progress until drained. Raises `Fenced` when another master has taken over."""
        feed: ControlFeed | None = None
        watches = [
            threading.Thread(target=self._watch, name="essp-conditions", daemon=True),
            threading.Thread(target=self._cache_watch.run, args=[self._draining], name="essp-cache-watch", daemon=True),
        ]
        for watch in watches:
            watch.start()
        try:
            if self._recovers:
                self.recover()  # before the first message is read, since it may be about one of these jobs
                feed = ControlFeed(self._bus)
                feed.on_change(self._heed)
            # A master that has nothing to say would not notice that the broker takes no messages.
            with Heart(self._bus, self._worker, ids.MASTER, dict):
                self._work()
        finally:
            self._draining.set()
            self._leave()
            self._subscription.close()
            self._tracking.close()
            if feed is not None:
                feed.close()
            for watch in watches:
                watch.join()

    def _work(self) -> None:
        outage = Outage("master", self._draining.wait)
        while not self._draining.is_set():
            with outage:
                self.step(_POLL_S)
            if self._fenced is not None and self._recovers:
                raise self._fenced

    def step(self, timeout_s: float) -> int:
        """Account for the messages that come within `timeout_s`; how many there were."""
        self._history.hold_back()
        records = self._subscription.poll(self._settings.poll_records, timeout_s)
        with self._lock:
            now_s = self._clock()
            for record in records:
                self._receive(record, now_s)
            self.worker_registry.read(now_s)
            for job in self._jobs:
                if job.state.ended:
                    continue
                with self._isolated(job):
                    if job.held:
                        self._carry_out(job, job.look(*self._up()))
                    self._carry_out(job, job.issue())
            if now_s - self._ticked_s >= _TICK_S:
                self._ticked_s = now_s
                self._tick(now_s)
            self._history.handled(records)
        self._outbox.send()
        self._fail_refused()
        failpoint("master.instructions-published")
        self._write_histories()
        self._renew_closed()
        return len(records)

    def look(self) -> None:
        """See what keeps ESSP from working, and have each job under way tell of it."""
        present = self.conditions.look()
        for job in self._jobs:
            if not job.state.ended:
                job.reporter.hindered(present)

    def drain(self) -> None:
        """Let `run` return. Jobs stay as they are; the next master takes them over."""
        self._draining.set()

    @property
    def ready(self) -> bool:
        """Takes jobs."""
        return self._recovered.is_set() and not self._draining.is_set()

    def _watch(self) -> None:
        """Look again and again, in a thread of its own: that of the master may wait for a server."""
        while not self._draining.wait(_LOOK_S):
            try:
                self.look()
            except Exception:  # whatever it is, the next look is to tell what is over
                log.exception("what keeps ESSP from working could not be told")

    def _unsaved(self) -> dict[Subject, str]:
        """The trainers that cannot save."""
        return {
            (Kind.UNSAVED, ids.trainer_pool(job.name, name)): training.unsaved
            for job in self._jobs
            if not job.state.ended
            for name, training in job.activity.trainers.items()
            if training.unsaved
        }

    # --- requests ---

    def start(self, spec: JobSpec, fresh: bool = False, checked: Preflight | None = None, team: str = "") -> JobStatus:
        """Start a job, or start one that has ended again; it waits in the queue while there is no room for it.

        Raises `ConfigError`, and `Conflict` while it runs, or another job that has not ended has its output. `checked`:
        the preflight of just this, if the caller has made it. `team`: whose job it is.
        """
        self._await_recovery()
        if self._admission is not None:
            self._admission.check(spec, team)
            self._admission.measure()
        self._start(spec, fresh, checked, team=team)
        return self.status(spec.name)

    def validate(self, spec: JobSpec, fresh: bool = False, team: str = "") -> Preflight:
        """What `start` would check, and nothing of what it would do. Raises `ConfigError`, and `Conflict` while another
        job that has not ended has its output."""
        if self._admission is not None:
            self._admission.check(spec, team)
        with self._lock:
            self._jobs.check_output(spec)
        return self._preflight(spec, fresh)

    def pause(self, name: str) -> JobStatus:
        """Issue nothing more until `resume`. Raises `NotFound`, `Conflict`."""
        return self._change(name, JobState.PAUSED)

    def resume(self, name: str) -> JobStatus:
        """Continue after a pause, as soon as there is room. Raises `NotFound`, `Conflict`."""
        return self._change(name, JobState.RUNNING)

    def stop(self, name: str) -> JobStatus:
        """End a job; trainers save first. Started again it resumes. Raises `NotFound`, `Conflict`."""
        return self._change(name, JobState.STOPPED)

    def prioritise(self, name: str, priority: int) -> JobStatus:
        """Give a job another priority in the queue. Raises `NotFound`, `Conflict` when it has ended, and `ConfigError`
        where there is no queue."""
        self._await_recovery()
        if self._admission is None:
            raise ConfigError("there is no queue here: this master runs one job in its own process")
        with self._lock:
            if (ended := self._jobs.past(name)) is not None or self._jobs[name].state.ended:
                state = (ended or self._jobs[name]).state
                raise Conflict(f"job {name} is {state}; its priority counts when it is started, as its file has it")
            job = self._jobs[name]
            if job.prioritise(priority):
                self._dispatch.command(job, COMMANDS[job.state])
                self._plan()
        self._outbox.send()
        return self.status(name)

    def change(self, name: str, fields: Mapping[str, Any]) -> JobStatus:
        """Change fields of a job while it is under way; twice the same is harmless.

        `fields`: dotted field -> value; `essp_common/job/changes.py` says which there are. Raises `NotFound`,
        `ConfigError` for what cannot be changed so, and `Conflict` where it is too late.
        """
        self._await_recovery()
        while not self._change_fields(name, fields):
            pass
        self._outbox.send()
        failpoint("master.change-published")
        return self.status(name)

    def _change_fields(self, name: str, fields: Mapping[str, Any]) -> bool:
        """As `change`. False: somebody else has changed what the job gets, while this was checked."""
        with self._lock:
            job = self._under_way(name, fields)
            spec, present, team = job.spec, job.goal, job.team
        later = of_next_run(spec, fields)
        others = {field: value for field, value in fields.items() if field not in later}
        wanted = next_run(present, {field: fields[field] for field in later}) if later else present
        goal = self.validate(wanted, team=team) if wanted != present else None
        with self._lock:
            if not self._renewed.wait_for(lambda: name not in self._renewing, _PATIENCE_S):
                raise Unavailable(f"job {name} is just going on with more epochs or trainers; ask again in a moment")
            job = self._under_way(name, fields)
            if (job.spec, job.goal) != (spec, present):
                return False
            changed = bool(others) and job.change(others, job.goal if goal is None else goal.spec)
            if goal is not None:
                job.extend(goal, self._clock())
            if changed or goal is not None:
                self._dispatch.command(job, COMMANDS[job.state])
        return True

    def _under_way(self, name: str, fields: Collection[str]) -> Job:
        """A job that has not ended. Raises `NotFound`, and `Conflict`, which says what to do in place of a change."""
        if (ended := self._jobs.past(name)) is None and not self._jobs[name].state.ended:
            return self._jobs[name]
        remedy = "start it again, and change it while it runs"
        if EPOCHS in fields:
            remedy = "start it again with more (--epochs), and it goes on"
        elif any(field.endswith(".stream") for field in fields):
            remedy = "start it again with this trainer in its file, and it goes on"
        raise Conflict(f"job {name} is {(ended or self._jobs[name]).state}; {remedy}")

    def jobs(self) -> list[JobSummary]:
        """All jobs, newest first. Raises `Unavailable` while it is not known what was under way."""
        self._await_recovery()
        with self._lock:
            return self._jobs.summaries(self._clock())

    def status(self, name: str) -> JobStatus:
        """All there is to know of a job. Raises `NotFound`."""
        self._await_recovery()
        with self._lock:
            return self._jobs.past(name) or status_of(self._jobs[name], self._cache_watch.latest, self._clock())

    def state(self, name: str) -> JobState:
        """Where a job stands, without what `status` counts. Raises `NotFound`."""
        self._await_recovery()
        with self._lock:
            past = self._jobs.past(name)
            return self._jobs[name].state if past is None else past.state

    def curves(self, name: str) -> list[TrainerCurve]:
        """The course of a job's trainings; empty if it is past (`job_table.py`). Raises `NotFound`."""
        self._await_recovery()
        with self._lock:
            return [] if self._jobs.past(name) is not None else curves_of(self._jobs[name])

    def preview(self, name: str, stream: str) -> StreamPreview:
        """Pictures of a clip that lies in the cache for the consumers of a stream; it stays there as it is.

        Raises `NotFound`, also where there is nothing to be seen now, and `Unavailable`.
        """
        self._await_recovery()
        with self._lock:
            if self._jobs.past(name) is not None or self._jobs[name].state.ended:
                raise NotFound(f"job {name} has ended, and its clips are gone")
            job = self._jobs[name]
            spec = job.run.preflight.spec
            if stream not in spec.streams:
                raise NotFound(f"job {name} has no stream {stream!r}; {suggested(stream, list(spec.streams))}")
            clips = job.stored.of(stream)
        return self._previews.of(spec, stream, clips)

    def recent(self) -> list[JobStatus]:
        """The jobs that have not ended, and those that ended within the last hour, as far as they are known already."""
        with self._lock:
            usage, now_s, since = self._cache_watch.latest, self._clock(), datetime.now(UTC) - _RECENT
            own = [
                status_of(job, usage, now_s) for job in self._jobs if job.life.ended is None or job.life.ended > since
            ]
            return own + [past for past in self._jobs.all_past() if past.ended is not None and past.ended > since]

    @property
    def recovered(self) -> bool:
        """Whether all jobs are known that were under way before this master."""
        return self._recovered.is_set()

    def pool_demands(self) -> list[PoolDemand]:
        """What the jobs that have not ended want of the pools."""
        with self._lock:
            return [demand_of(job) for job in self._jobs if not job.state.ended]

    def events(self, name: str, after: int = 0, timeout_s: float = 0.0) -> Sequence[JobEvent]:
        """The events of a job after event `after`; waits up to `timeout_s` for one. Raises `NotFound`."""
        self._await_recovery()
        with self._lock:
            if self._jobs.past(name) is not None:
                return ()
            events = self._jobs[name].reporter.log
        return events.after(after, timeout_s)

    # --- the state of jobs ---

    def _preflight(self, spec: JobSpec, fresh: bool = False, continues: bool = False) -> Preflight:
        declared = replace(self._declared(), code=self._settings.code)
        return preflight(spec, self._stores, fresh, declared, continues)

    def _start(
        self, spec: JobSpec, fresh: bool, checked: Preflight | None, command: Control | None = None, team: str = ""
    ) -> None:
        """Start a job; or continue the run of which this is the last command."""
        with self._lock:
            present = self._jobs.reserve(spec, takes_over=command is not None)
        try:
            events = present.reporter.log if present is not None else EventLog()
            found = checked or self._preflight(spec, fresh, continues=command is not None)
            goal = None
            if command is None:
                state = JobState.QUEUED if self._has_to_wait(found.spec, team) else JobState.RUNNING
                changes = present.changes.made if present is not None and not fresh else ()
                origin = Origin(state=state, team=team, changes=changes)
            else:
                origin = Origin.of_command(command)
                if ends_for_next(command):
                    wanted = stored_spec(command.next_spec_json, f"job {command.job}")
                    goal = self._preflight(wanted)
            with self._written_to_the_end(found.spec.output):
                job = self._run_of(found, origin, events)
                if goal is not None:
                    job.extend(goal, self._clock())
                with self._lock:
                    self._begin(job, command)
                    self._starting.pop(spec.name, None)
                    self._plan()
            self._outbox.send()
            failpoint("master.start-published")
            how = "started" if command is None else "taken over"
            log.info("job %s: %s, fence %d", job.name, how, job.run.fence, extra={"job_id": job.name})
        finally:
            with self._lock:
                self._starting.pop(spec.name, None)
                self._jobs.release(spec.name)

    @contextmanager
    def _written_to_the_end(self, output: str) -> Iterator[None]:
        """The history in this output holds all that the runs before noted, and within the block they note no more: the
        next run writes from there on. Raises `Unavailable` if that takes long."""
        with self._lock:
            ended = self._jobs.ended_in(output)
        until_s = time.monotonic() + _PATIENCE_S
        while not self._hand_on(ended):
            if (left_s := until_s - time.monotonic()) <= 0 or self._draining.is_set():
                raise Unavailable(
                    f"the end of the last run is not in the history in {output} yet; ask again in a moment"
                )
            self._history.wait(left_s)
            self._outbox.send()
            self._write_histories(now=True)
        try:
            yield
        except BaseException:
            with self._lock:
                for job in ended:
                    job.handed_on = False
            raise

    def _hand_on(self, ended: Sequence[Job]) -> bool:
        """Have these runs write no more; False: their histories do not hold all of them yet."""
        with self._lock:
            written = all(map(self._history.holds_all_of, ended))
            for job in ended if written else ():
                job.handed_on = True
        return written

    def _run_of(self, found: Preflight, origin: Origin, events: EventLog) -> Job:
        """A run of a job, which nobody knows of yet."""
        streams = {topics.stream_topic(stream.feature) for stream in found.spec.streams.values()}
        self._bus.ensure_topics({topic: topics.partitions(topic) for topic in streams})
        job = start_run(found, self._stores, origin, events, self._worker, self._clock)
        if self._admission is None:
            job.priority = None
        if self._recovers and self._settings.ready_s:
            job.hold(Handshake(found.spec, self._settings.ranks, self._settings.ready_s))
        return job

    def _begin(self, job: Job, command: Control | None) -> None:
        """Tell all workers of a job, and issue what it needs.

        Nobody is told of a job whose first work units cannot be made.
        """
        try:
            self._announce(job, command)
        except (ValueError, TypeError, LookupError) as error:
            reason = f"job {job.name} cannot begin: {type(error).__name__}: {error}; check its catalog"
            raise PermanentError(reason) from error

    def _announce(self, job: Job, command: Control | None) -> None:
        ends = command is not None and command.command in (Control.STOP, Control.FAIL)
        first = () if ends else (*job.look(*self._up()), *job.start())
        units = [self._dispatch.prepared(job, instruction) for instruction in first]
        self._jobs.add(job)
        job.activity.listener = self._tracking.follow(job.run.preflight.spec, job.run.epoch_clips, job.run.resumed)
        if job.run.continued is None or (command is not None and command.fence < command.since):
            self._dispatch.purge(job)  # of a run that nobody was told of, all that is there is older
        if command is None or under_way(command):
            self._dispatch.command(job, Control.START if job.state is JobState.RUNNING else Control.PAUSE)
        if job.run.continued is not None:
            self._dispatch.mark(job)
        if command is not None and command.command in (Control.STOP, Control.FAIL):
            ended = JobState.STOPPED if command.command == Control.STOP else JobState.FAILED
            self._enter(job, ended, command.reason)
        for instruction, effects in zip(first, units, strict=True):
            if effects is None:
                self._carry_out(job, [instruction])
            else:
                self._dispatch.carry_out(job, effects)

    def _change(self, name: str, wanted: JobState) -> JobStatus:
        self._await_recovery()
        if wanted is JobState.RUNNING and self._admission is not None:
            self._admission.measure()
        with self._lock:
            ended = self._jobs.past(name)
            state = (ended or self._jobs[name]).state
            if state.ended and wanted is JobState.RUNNING:
                raise Conflict(f"job {name} is {state}; start it again in place of resuming it")
            if ended is not None:
                change(name, state, wanted)
                return ended
            job = self._jobs[name]
            if wanted is JobState.RUNNING and self._admission is not None:
                if job.state is JobState.PAUSED:
                    self._enter(job, JobState.QUEUED)
                    job.pause(finishes=True)
            elif self._enter(job, wanted):
                if wanted is JobState.PAUSED:
                    job.pause()
                elif wanted is JobState.RUNNING:
                    self._carry_out(job, job.resume())
            self._plan()
        self._outbox.send()
        failpoint("master.command-published")
        return self.status(name)

    def _enter(self, job: Job, wanted: JobState, reason: str = "") -> bool:
        """Change a job's state, and tell all workers."""
        if not job.enter(wanted, self._clock(), reason):
            return False
        if not wanted.ended:
            failpoint("master.command-entered")
        log.info("job %s: %s%s", job.name, wanted, f": {reason}" if reason else "", extra={"job_id": job.name})
        self._dispatch.command(job, COMMANDS[wanted])
        if wanted.ended:
            self._tracking.ended(job.run.preflight.spec, wanted)
            job.leftovers = True
            self._swept_s = self._clock()
            self._dispatch.purge(job)
        return True

    def _up(self) -> tuple[Collection[str], float]:
        """The pools with a worker, now."""
        now_s = self._clock()
        return self.worker_registry.pools(now_s), now_s

    # --- the queue ---

    def _has_to_wait(self, spec: JobSpec, team: str) -> bool:
        """Whether there is no room for a new job now; if there is, it is kept for it."""
        if self._admission is None:
            return False
        with self._lock:
            newcomer = self._admission.newcomer(spec, team, datetime.now(UTC))
            admitted = spec.name in self._admission.plan(self._jobs, [*self._starting.values(), newcomer]).start
            if admitted:
                self._starting[spec.name] = replace(newcomer, running=True, waiting=False)
            return not admitted

    def _plan(self) -> None:
        """Have those jobs run that are to run, and tell the others where they stand."""
        if self._admission is None or not self._recovered.is_set():
            return
        decided = self._admission.plan(self._jobs, self._starting.values())
        for name, other in decided.preempt.items():
            if (job := self._jobs.find(name)) is not None:
                self._enter(job, JobState.QUEUED, f"it made room for {other}")
                job.pause(finishes=True)
        for name in decided.start:
            job = self._jobs[name]
            with self._isolated(job):
                self._enter(job, JobState.RUNNING)
                self._carry_out(job, job.resume())
        for place in decided.waiting:
            if (waiting := self._jobs.find(place.job)) is not None and waiting.state is JobState.QUEUED:
                waiting.wait_at(QueueStatus(position=place.position, reason=place.reason))

    # --- more epochs or trainers ---

    def _renew_closed(self) -> None:
        """Have the next run begin of each job whose run has ended for another one. Its preflight was made, but it reads
        checkpoints, so a thread does it."""
        with self._lock:
            for job in self._jobs if not self._draining.is_set() else ():
                now_s = self._clock()
                if job.extension is None or job.name in self._renewing or now_s < self._renews_s.get(job.name, 0.0):
                    continue
                own = {ids.trainer_pool(job.name, name) for name in job.spec.trainers}
                up = self.worker_registry.pools(now_s) if self._recovers else own
                if not job.has_closed(up, now_s) or self._history.writing:
                    continue
                job.handed_on = True
                self._jobs.hold(job.name)
                thread = threading.Thread(
                    target=self._renew,
                    name="essp-renew",
                    daemon=True,
                    args=[job, job.extension.goal, Origin.of_run(job)],
                )
                self._renewing[job.name] = thread
                thread.start()

    def _renew(self, before: Job, goal: Preflight, origin: Origin) -> None:
        """Begin the next run of a job, which has more. A stop meanwhile holds."""
        name = before.name
        try:
            job = self._run_of(goal, origin, before.reporter.log)
            with self._lock:
                self._begin(job, None)
                self._follow(job, before)
                self._plan()
                self._renews_s.pop(name, None)
            log.info("job %s: goes on, fence %d", name, job.run.fence, extra={"job_id": name})
        except TransientError as error:
            log.warning("job %s: cannot go on with more yet: %s", name, error, extra={"job_id": name})
            self._renews_s[name] = self._clock() + _AGAIN_S
        except Fenced as error:
            before.handed_on = False
            with self._lock:
                self._yield(before, error.fence)
        except Exception as error:
            log.exception("job %s: cannot go on with more", name, extra={"job_id": name})
            with self._lock:
                self._fail(before, f"it could not go on with {gains(before.spec, goal.spec)}: {reason_of(error)}")
        finally:
            with self._lock:
                self._renewing.pop(name)
                self._jobs.release(name)
                self._renewed.notify_all()

    def _follow(self, job: Job, before: Job) -> None:
        """Have the next run of a job go where the one before it has gone meanwhile."""
        job.priority = before.priority
        if before.state is job.state:
            return
        self._enter(job, before.state, before.life.reason)
        if before.state is JobState.RUNNING:
            self._carry_out(job, job.resume())
        elif not before.state.ended:
            job.pause(finishes=before.state is JobState.QUEUED)

    # --- progress in, instructions out ---

    def _receive(self, record: Record, now_s: float) -> None:
        try:
            progress = sound(parsed(Progress, record))
        except BadMessage as error:
            refuse(self.name, record, error)
            return
        kind = progress.WhichOneof("event")
        if kind == "heartbeat":
            if progress.heartbeat.pool != ids.MASTER:
                self.worker_registry.note(progress.worker, progress.heartbeat, now_s)
            return
        if kind == "logs":
            self.worker_logs.note(progress.worker, progress.logs)
            return
        job = self._jobs.find(progress.job)
        if job is None:
            return
        if progress.fence > job.run.fence:
            self._yield(job, progress.fence)
        with self._isolated(job):
            if out := job.handle(progress, now_s):
                self._carry_out(job, out)

    def _isolated(self, job: Job) -> _Isolated:
        """What goes wrong within this block is the job's own trouble: it fails, and the others go on."""
        return _Isolated(job, self._fail)

    def _fail(self, job: Job, reason: str) -> None:
        if not job.state.ended:
            self._enter(job, JobState.FAILED, reason)

    def _fail_refused(self) -> None:
        """Fail the jobs of which something can never be published."""
        with self._lock:
            for name, error in self._outbox.refused():
                if (job := self._jobs.find(name)) is not None:
                    self._fail(job, str(error))

    def _heed(self, control: Control) -> None:
        """A command was published: by another master, if its fence is higher."""
        with self._lock:
            if (job := self._jobs.find(control.job)) is not None:
                self._yield(job, control.fence)

    def _yield(self, job: Job, fence: int) -> None:
        """Leave a job to another master if this fence is higher than its own, and was taken: anybody may send one."""
        if fence > job.run.fence and not self._was_taken(job, fence):
            return
        if (error := job.yield_to(fence, self._clock())) is not None:
            log.error("%s", error)
            self._fenced = error

    def _was_taken(self, job: Job, fence: int) -> bool:
        """Whether a master has taken this fence of a job; if the store does not answer, it is believed."""
        try:
            taken = job.run.history.fences_above(job.run.fence) >= fence
        except TransientError:
            return True
        if not taken:
            log.warning("job %s: a message with fence %d, which nobody has taken, is ignored", job.name, fence)
        return taken

    def _carry_out(self, job: Job, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case IssueUnits():  # most are
                    self._dispatch.instruction(job, instruction)
                case CompleteJob():
                    self._enter(job, JobState.COMPLETED)
                case FailJob(reason):
                    self._enter(job, JobState.FAILED, reason)
                case TellOfLoops() | TellOfChanges():
                    self._dispatch.command(job, COMMANDS[job.state])
                case _:
                    self._dispatch.instruction(job, instruction)

    # --- the histories ---

    def _write_histories(self, now: bool = False) -> None:
        """Write what was noted if it is time (or `now`); the messages that it accounts for are done afterwards."""
        with self._lock:
            for name, error in self._history.lost():
                if (job := self._jobs.find(name)) is None:
                    continue
                if isinstance(error, Fenced):
                    self._yield(job, error.fence)
                else:
                    job.unrecorded = True
                    self._fail(job, f"its history cannot be written: {error}")
            if self._outbox.empty:
                self._history.write(self._jobs, now)

    def _leave(self) -> None:
        """Write what is left to write, as far as the stores answer."""
        for renewal in tuple(self._renewing.values()):
            renewal.join()
        try:
            while not self._recovers and self.step(0.0):
                pass  # no other master will account for these messages
            self._history.finish()
            self._sweep()
            self._outbox.send()
            self._write_histories(now=True)
        except TransientError as error:
            log.warning("master: %s; the next one accounts for the last seconds again", error)
        self._history.finish()

    # --- from time to time ---

    def _tick(self, now_s: float) -> None:
        for job in self._jobs:
            with self._isolated(job):
                self._carry_out(job, job.dismiss_silent(now_s, self._settings.loop_patience_s))
                if job.has_stalled(now_s, self._settings.stall_s):
                    self._carry_out(job, job.issue_again(now_s))
                if job.state.ended and self._recovers:  # a process that has one job may use its preflight further
                    job.let_go()
        self._plan()
        self._forget()
        if now_s - self._swept_s >= _SWEEP_S:
            self._swept_s = now_s
            self._sweep()

    def _forget(self) -> None:
        """Keep no more than the status of jobs that ended long ago, once their histories hold all of them."""
        for job in self._jobs.ended_before(_KEPT_WHOLE, datetime.now(UTC) - _RECENT):
            if not job.leftovers and self._history.holds_all_of(job):
                self._jobs.remember(without_events(status_of(job, None, self._clock())))

    def _sweep(self) -> None:
        for job in self._jobs:
            if job.state.ended and job.leftovers:
                self._dispatch.sweep(job)

    # --- recovery: the jobs of the previous master ---

    def _await_recovery(self) -> None:
        if not self._recovered.wait(_PATIENCE_S):
            obstacle = f" ({self.obstacle})" if self.obstacle else ""
            raise Unavailable(f"this master is still finding out what was under way{obstacle}; ask again in a moment")

    def recover(self) -> None:
        """Take over the jobs that were under way when the previous master left; remember those that had ended.

        A server that does not answer is waited for, as what is said of a job that is not taken over yet would be lost,
        but no longer than `takeover_s`: a single job must not keep the master from all others. Nobody waits for the
        history of a job that has ended; the next master reads it.
        """
        commands: list[Control] | None = None
        began_s = 0.0
        outage = Outage("master", self._draining.wait, _LONGEST_WAIT_S)
        while not self._recovered.is_set() and not self._draining.is_set():
            with outage:
                try:
                    if commands is None:
                        commands = last_commands(self._bus, self._draining)
                        began_s = self._clock()  # a bus that was away takes nothing from the patience with stores
                    self._take_over_all(commands, self._clock() - began_s >= self._settings.takeover_s)
                except TransientError as error:
                    self.obstacle = str(error)
                    raise
                self.obstacle = ""
                self._recovered.set()

    def _take_over_all(self, commands: Sequence[Control], late: bool) -> None:
        """Take over all jobs but those that are known already.

        Raises `TransientError` if one has to be waited for. `late`: such jobs are failed instead.
        """
        tried = ((command, self._take_over(command)) for command in commands)
        awaited = [(command, error) for command, error in tried if error is not None and under_way(command)]
        if awaited and not late:
            raise awaited[0][1]
        for command, error in awaited:
            self._give_up(command, f"{error}; start it again, and it resumes from its last checkpoint")

    def _take_over(self, command: Control) -> TransientError | None:
        """Take over one job. Returns an error if a server does not answer, and None if there is nothing left to do."""
        known = command.job in self._jobs or self._jobs.past(command.job) is not None
        if known or self._draining.is_set():
            return None
        try:
            if (ended := past(command, self._stores)) is not None:  # perhaps by a master that is still there
                self._jobs.remember(ended)
            else:
                command = as_recorded(command, self._stores)
                spec = stored_spec(command.snapshot.spec_json, f"job {command.job}")
                self._start(spec, False, None, command)
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
            self._outbox.add(partial(self._bus.publish, topics.CONTROL, command.job.encode(), last.SerializeToString()))
        with self._lock:
            self._jobs.remember(status_by_command(last))


def build(
    adapters: Adapters,
    settings: MasterSettings,
    worker: str,
    recovers: bool = False,
    declared: Callable[[], Declared] = Declared,
) -> Master:
    """A master over these adapters; with `recovers` it takes over the jobs of the previous one."""
    if settings.bus == "memory://" and recovers:
        raise ConfigError(
            "ESSP_BUS is memory://, which no other process can reach; set it to kafka://host:port, or use `essp run`"
        )
    trackers: list[Tracker] = [TensorBoard(Path(settings.tensorboard))] if settings.tensorboard else []
    trackers += [MLflow(settings.mlflow)] if settings.mlflow else []
    return Master(adapters, settings, worker, recovers, declared=declared, trackers=trackers)
