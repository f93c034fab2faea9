"""The master: starts jobs, issues their seeds, accounts for reports, and publishes the resulting instructions.

It is a thin shell around pure parts (`ledger/`, `job/`, `queue/`). One thread reads `essp.progress` and carries out the
ledger's instructions; the API's threads start, pause and stop jobs under the same lock (`lifecycle/`). A progress
message is done once its effects are durable and the job's history has recorded them (`effects/history_writer.py`). A
record that is not a valid message is dropped and counted.

The following outlives the process: specification, history, checkpoints and fences in each job's output, and the last
command of every job in `essp.control`. With `recovers`, a master uses these to take over the jobs that were under way:
it continues from the newest segment of the history, the bus delivers the messages after that segment again, and the
master reissues the work units that no worker has finished by then, since decoders drop work units of an older master.

Only one such master may run at a time; it reads `essp.progress` in the group `master`. Of two, the one that started
later has the higher fence; the other one lets its jobs go, and leaves with an error. A master that runs a job of its
own process (`essp run`) has a separate group, and lets only that job go.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from essp_common import topics
from essp_common.artifacts import layout
from essp_common.artifacts.timeline import TimelineFile
from essp_common.bus.port import Record
from essp_common.errors import ConfigError, Conflict, NotFound, TransientError, Unavailable
from essp_common.job.changes import EPOCHS, after_all, next_run, of_next_run
from essp_common.job.lifecycle import change
from essp_common.job.spec import JobSpec, stored_spec
from essp_common.job.status import JobEvent, JobState, JobStatus, JobSummary, StreamPreview, TrainerCurve
from essp_common.job.timeline import NO_TIMELINE, JobTimeline, StoredTimeline
from essp_common.job.usage import Usage
from essp_common.messages.control import ControlFeed
from essp_common.messages.parsing import BadMessage, parsed, refuse, sound
from essp_common.objects.uris import place_of
from essp_common.pb.v1.messages_pb2 import Progress
from essp_common.runtime import conditions, ids
from essp_common.runtime.conditions import Conditions, Subject
from essp_common.runtime.failpoints import failpoint
from essp_common.runtime.retry import Outage
from essp_common.runtime.threads import lasting, unexpected
from essp_common.runtime.troubles import MEANINGS, Kind
from essp_common.validation import suggested
from essp_common.wiring import Adapters
from essp_engine.preflight.output import ANYBODY, Asked
from essp_engine.preflight.preflight import Preflight
from essp_engine.registrations import Declared
from essp_engine.worker.heartbeat import Heart
from essp_master.cache_watch import CacheWatch
from essp_master.config import MasterSettings
from essp_master.effects.history_writer import HistoryWriter
from essp_master.effects.previews import Previews
from essp_master.job.events import EventLog
from essp_master.job.job import COMMANDS, Job
from essp_master.lifecycle.defects import Defects
from essp_master.lifecycle.queueing import JobQueue
from essp_master.lifecycle.removal import JobRemoval, RemovedJob
from essp_master.lifecycle.renewals import Renewals
from essp_master.lifecycle.runner import KEPT_WHOLE, RECENT, JobRunner, groups_of
from essp_master.lifecycle.starter import JobStarter
from essp_master.lifecycle.takeover import Takeover
from essp_master.pools.pool_watch import PoolWatch
from essp_master.pools.worker_registry import WorkerRegistry
from essp_master.queue.admission import Admission
from essp_master.status.pool_demand import PoolDemand, demand_of
from essp_master.status.status_view import curves_of, status_of
from essp_master.tracking.mlflow import MLflow
from essp_master.tracking.tensorboard import TensorBoard
from essp_master.tracking.tracking import Tracker, Tracking
from essp_master.tracking.wandb import WandB
from essp_master.worker_logs import WorkerLogs

log = logging.getLogger(__name__)

_POLL_S, _TICK_S = 0.1, 0.5
_NO_EVENTS = EventLog()
"""The events of a past job."""
_LOOK_S = 2.0
"""Interval of the checks for what keeps ESSP from working."""
_LAST_SEARCHES = 3
"""How often a leaving master searches the cache for what workers stored for ended jobs."""
_PATIENCE_S = 10.0
"""How long a change waits for the next run of an extended job."""


class Master:
    """Runs jobs. The methods that users call are thread-safe."""

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
        """`recovers`: take over the jobs that were under way. `declared`: returns what is registered but not installed
        here. `trackers`: receive the metrics of training runs."""
        self._bus = adapters.bus
        self._settings = settings
        self._worker = worker
        self._recovers = recovers
        self._clock = clock
        self._draining = threading.Event()
        self._cache_watch = CacheWatch(adapters.cache)
        self._previews = Previews(adapters.cache)
        self._stores = adapters.stores
        self.worker_registry = WorkerRegistry()
        """The workers of all pools that are up."""
        self.worker_logs = WorkerLogs()
        """Their recent log lines."""
        group = ids.MASTER if recovers else ids.unshared_master_group(worker)
        self._subscription = self._bus.subscribe([topics.PROGRESS], group)
        self._history = HistoryWriter(self._subscription, settings, worker, clock)
        self._tracking = Tracking(trackers)
        self._runner = JobRunner(
            adapters, settings, self._history, self.worker_registry, self._tracking, recovers, clock
        )
        queues = recovers or settings.queue_budget is not None
        admission = Admission(settings, self._cache_watch) if queues else None
        self._queue = JobQueue(self._runner, admission, lambda: self.recovered)
        self._starter = JobStarter(self._runner, self._queue, adapters, settings, worker, declared, self._draining)
        self._renewals = Renewals(self._runner, self._queue, self._starter, self._draining)
        self._removal = JobRemoval(self._runner, self._starter, adapters.stores)
        self._takeover = Takeover(self._runner, self._starter, adapters, settings, self._draining)
        self._lock, self._jobs = self._runner.lock, self._runner.jobs
        self._ticked_s = clock()
        self.conditions = Conditions(conditions.of(ids.MASTER, adapters.troubles))
        """What keeps ESSP from working."""
        self.conditions.add(self._unsaved)
        self.defects = Defects(clock)
        """The parts of its work that failed unexpectedly."""
        self.conditions.add(self.defects.troubles)
        starts, partitions = settings.pools != "none", adapters.bus.partitions
        watch = PoolWatch(self.pool_demands, self.worker_registry, adapters.troubles, clock, starts, partitions)
        self.conditions.add(watch)
        if settings.trial_servers:
            self.conditions.add(lambda: {(Kind.TRIAL_SERVERS, ids.MASTER): MEANINGS[Kind.TRIAL_SERVERS]})

    # --- the service ---

    def run(self) -> None:
        """Account for progress until drained. Raises `Fenced` if another master has taken over."""
        feed: ControlFeed | None = None
        watches = [
            lasting("essp-conditions", self._watch, self._draining),
            lasting("essp-cache-watch", lambda: self._cache_watch.run(self._draining), self._draining),
        ]
        for watch in watches:
            watch.start()
        try:
            if self._recovers:
                self.recover()  # before reading the first message, which may be about one of these jobs
                feed = ControlFeed(self._bus)
                self._runner.follow(feed)
                watches.append(lasting("essp-read-on", self._takeover.read_on, self._draining))
                watches[-1].start()
            # The heartbeat also makes an otherwise quiet master notice that the broker accepts no messages.
            with Heart(self._bus, self._worker, ids.MASTER, dict):
                self._work()
        finally:
            # Stop the watching threads and renewals first. The last step still needs the subscription, so it closes
            # after that.
            self._draining.set()
            self._leave()
            self._subscription.close()
            self._delete_groups()
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
            if self._runner.fenced is not None and self._recovers:
                raise self._runner.fenced

    def step(self, timeout_s: float) -> int:
        """Account for the messages that arrive within `timeout_s`. Returns how many there were."""
        self._history.hold_back()
        records = self._subscription.poll(self._settings.poll_records, timeout_s)
        attempt = self.defects.attempt
        # The API's threads wait for this lock: effects are only queued under it, and carried out below without it.
        with self._lock:
            now_s = self._clock()
            for record in records:
                attempt("a message", partial(self._receive, record, now_s), waits=False)
            attempt("workers", partial(self.worker_registry.read, now_s))
            attempt("issuing", self._runner.issue)
            if now_s - self._ticked_s >= _TICK_S:
                self._ticked_s = now_s
                attempt("silent and ended jobs", partial(self._runner.tick, now_s))
                attempt("queue", self._queue.plan)
            # Only noted here: the records are done when the histories that account for them have been written.
            self._history.handled(records)
        self._runner.outbox.send()
        attempt("refused messages", self._runner.fail_refused)
        failpoint("master.instructions-published")
        attempt("histories", self._runner.write_histories)
        attempt("next runs", self._renewals.begin_closed)
        return len(records)

    def _receive(self, record: Record, now_s: float) -> None:
        try:
            progress = sound(parsed(Progress, record))
        except BadMessage as error:
            refuse(self.name, record, error)
            return
        match progress.WhichOneof("event"):
            case "heartbeat":
                self.worker_registry.note(progress.worker, progress.heartbeat, now_s)
            case "logs":
                self.worker_logs.note(progress.worker, progress.logs)
            case _:
                self._runner.handle(progress, now_s)

    def _leave(self) -> None:
        """Write what is left, as far as the stores answer."""
        self._renewals.join()
        try:
            while not self._recovers and self.step(0.0):
                pass  # no other master will account for these messages
            self._history.finish()
            self.defects.attempt("last search of the cache", self._sweep)
            self.defects.attempt("last histories", partial(self._runner.write_histories, now=True))
            self._history.finish()
            self.defects.attempt("courses", partial(self._history.keep_courses, self._jobs))
        except TransientError as error:
            log.warning("master: %s; the next one accounts for the last seconds again", error)
        self._history.finish()

    def _delete_groups(self) -> None:
        """Have the broker forget the groups of a process that runs a single job: no other master will do so."""
        if self._recovers:
            return
        groups = [group for job in self._jobs if job.state.ended for group in groups_of(job)]
        self._runner.delete_groups([ids.unshared_master_group(self._worker), *groups])

    def _sweep(self) -> None:
        """Search the cache until nothing is found: a search that finds something does not show that nothing is left."""
        for _ in range(_LAST_SEARCHES):
            with self._lock:
                if not self._runner.sweep():
                    return
            self._runner.outbox.send()

    def recover(self) -> None:
        """Take over the jobs that were under way when the previous master left, and remember those that had ended."""
        self._takeover.run()

    def look(self) -> None:
        """Check what keeps ESSP from working, and report it in the events of each job under way."""
        present = self.conditions.look()
        for job in self._jobs:
            if not job.state.ended:
                job.reporter.hindered(present)

    def show(self, past: Sequence[JobStatus]) -> None:
        """Show these jobs, which this master does not run, and no other past ones."""
        with self._lock:
            for known in self._jobs.past_jobs():
                self._jobs.forget(known.summary.name)
            for status in past:
                self._jobs.remember(status)

    def drain(self) -> None:
        """Make `run` return. Jobs keep their state; the next master takes them over."""
        self._draining.set()

    @property
    def ready(self) -> bool:
        """Whether the master accepts jobs."""
        return self.recovered and not self._draining.is_set()

    def _watch(self) -> None:
        """Check periodically, in a separate thread: the master's own thread may be waiting for a server."""
        while not self._draining.wait(_LOOK_S):
            try:
                self.look()
            except Exception as error:  # noqa: BLE001  whatever the error is, the next check must report what is over
                unexpected("essp-conditions", error)

    def _unsaved(self) -> dict[Subject, str]:
        """Return the trainers that cannot save."""
        return {
            (Kind.UNSAVED, ids.trainer_pool(job.name, name)): training.unsaved
            for job in self._jobs
            if not job.state.ended
            for name, training in job.activity.trainers.items()
            if training.unsaved
        }

    # --- requests ---

    def start(
        self, spec: JobSpec, fresh: bool = False, checked: Preflight | None = None, asked: Asked = ANYBODY
    ) -> JobStatus:
        """Start a job, or restart one that has ended; it waits in the queue while there is no room for it.

        `fresh`: remove what a job has left in its output. `checked`: the preflight of exactly this job, if the caller
        has made it. `asked`: the caller.

        Raises `ConfigError`; `Conflict` while the job runs, or while another job that has not ended has its output;
        `OfAnotherJob` if another job's output would be removed; `Forbidden` for an output of another team.
        """
        self._takeover.wait()
        self._check_team(spec, asked.team)
        self._queue.measure()
        self._starter.start(spec, fresh, checked, asked)
        return self.status(spec.name)

    def validate(self, spec: JobSpec, fresh: bool = False, asked: Asked = ANYBODY) -> Preflight:
        """Check what `start` would check, without any effect. Raises as `start` does."""
        self._check_team(spec, asked.team)
        with self._lock:
            self._jobs.check_output(spec, asked)
        return self._starter.preflight(spec, fresh, asked=asked)

    def _check_team(self, spec: JobSpec, team: str) -> None:
        """Raise `ConfigError` for a job that its team may not start: it is too large, or writes to a folder that is not
        allowed."""
        self._queue.check(spec, team)
        folders = self._settings.teams[team].outputs if team in self._settings.teams else ()
        if folders and not any(place_of(spec.output).below(place_of(folder)) for folder in folders):
            raise ConfigError(
                f"jobs of team {team} write below {' or '.join(folders)}; choose an output there, as in "
                f"{folders[0].rstrip('/')}/{spec.name}",
                field="output",
                code="refused",
            )

    def pause(self, name: str) -> JobStatus:
        """Issue nothing more until `resume`. Raises `NotFound`, `Conflict`."""
        return self._change(name, JobState.PAUSED)

    def resume(self, name: str) -> JobStatus:
        """Continue after a pause, as soon as there is room. Raises `NotFound`, `Conflict`."""
        return self._change(name, JobState.RUNNING)

    def stop(self, name: str) -> JobStatus:
        """End a job; trainers save first. If started again, it resumes. Raises `NotFound`, `Conflict`."""
        return self._change(name, JobState.STOPPED)

    def remove(self, name: str, dry_run: bool = False, asked: Asked = ANYBODY) -> RemovedJob:
        """Remove a job that has ended, with everything that ESSP wrote to its output. `dry_run`: only say what that is.

        Raises `NotFound`; `Conflict` if it has not ended, or if another job stands on it; `Unavailable`.
        """
        self._takeover.wait()
        if dry_run:
            return self._removal.look(name, asked)
        found = self._removal.remove(name, asked)
        self._runner.outbox.send()
        return found

    def prioritise(self, name: str, priority: int) -> JobStatus:
        """Give a job another priority in the queue. Raises `NotFound`, `Conflict` if it has ended, and `ConfigError` if
        there is no queue."""
        self._takeover.wait()
        self._queue.require()
        with self._lock:
            if (ended := self._jobs.past(name)) is not None or self._jobs[name].state.ended:
                state = (ended or self._jobs[name]).state
                raise Conflict(f"job {name} is {state}; change the priority in its job file before you start it again")
            job = self._jobs[name]
            if job.prioritise(priority):
                self._runner.dispatch.command(job, COMMANDS[job.state])
                self._queue.plan()
        self._runner.outbox.send()
        return self.status(name)

    def change(self, name: str, fields: Mapping[str, Any]) -> JobStatus:
        """Change fields of a job while it is under way. Idempotent.

        `fields`: dotted field -> value; `essp_common/job/changes.py` lists them. Raises `NotFound`, `ConfigError` for
        fields that cannot be changed, and `Conflict` if it is too late.
        """
        self._takeover.wait()
        while not self._change_fields(name, fields):
            pass
        self._runner.outbox.send()
        failpoint("master.change-published")
        return self.status(name)

    def _change_fields(self, name: str, fields: Mapping[str, Any]) -> bool:
        """As `change`. Returns False if the job was changed by another request while this one was checked."""
        with self._lock:
            job = self._under_way(name, fields)
            spec, present, team = job.spec, job.goal, job.team
        later = of_next_run(spec, fields)
        others = {field: value for field, value in fields.items() if field not in later}
        wanted = next_run(present, {field: fields[field] for field in later}) if later else present
        # Without the lock: the check reads stores, and may take long. Hence the job is compared again below.
        goal = self.validate(wanted, asked=Asked(team)) if wanted != present else None
        with self._lock:
            if not self._renewals.settled(name, _PATIENCE_S):
                raise Unavailable(f"job {name} is just continuing with more epochs or trainers; ask again in a moment")
            job = self._under_way(name, fields)
            if (job.spec, job.goal) != (spec, present):
                return False
            changed = bool(others) and job.change(others, job.goal if goal is None else goal.spec)
            if goal is not None:
                job.extend(goal, self._clock())
            if changed or goal is not None:
                self._runner.dispatch.command(job, COMMANDS[job.state])
        return True

    def _under_way(self, name: str, fields: Collection[str]) -> Job:
        """Return a job that has not ended. Raises `NotFound`, and `Conflict`, which says what to do instead of a
        change."""
        if (ended := self._jobs.past(name)) is None and not self._jobs[name].state.ended:
            return self._jobs[name]
        remedy = "start it again, and change it while it runs"
        if EPOCHS in fields:
            remedy = "start it again with more (--epochs) to continue"
        elif any(field.endswith(".stream") for field in fields):
            remedy = "start it again with this trainer in its file to continue"
        raise Conflict(f"job {name} is {(ended or self._jobs[name]).state}; {remedy}")

    def jobs(self) -> list[JobSummary]:
        """Return all jobs, newest first. Raises `Unavailable` while the jobs under way are not known yet."""
        self._takeover.wait()
        with self._lock:
            return self._jobs.summaries(self._clock())

    def status(self, name: str) -> JobStatus:
        """Return the full status of a job. Raises `NotFound`."""
        self._takeover.wait()
        with self._lock:
            return self._jobs.past(name) or self._status(self._jobs[name])

    def _status(self, job: Job) -> JobStatus:
        now_s = self._clock()
        return status_of(job, self._cache_watch.latest, now_s, self._runner.usage_at_tick(now_s))

    def team_of(self, name: str) -> str | None:
        """Return the owning team of a job; None if there is no such job."""
        self._takeover.wait()
        with self._lock:
            return self._jobs.team_of(name)

    def state(self, name: str) -> JobState:
        """Return the state of a job, without computing its status. Raises `NotFound`."""
        self._takeover.wait()
        with self._lock:
            past = self._jobs.past(name)
            return self._jobs[name].state if past is None else past.state

    def curves(self, name: str) -> list[TrainerCurve]:
        """Return the curves of a job's trainers; for a past job (`lifecycle/job_table.py`), they are read from its
        output. Raises `NotFound`, `Unavailable`."""
        self._takeover.wait()
        with self._lock:
            if not self._jobs.is_past(name):
                return curves_of(self._jobs[name])
        kept = self._kept(name)
        return [] if kept is None else list(kept.curves)

    def timeline(self, name: str) -> JobTimeline:
        """Return the course of a job over its time; for a past job, it is read from its output. Raises `NotFound`,
        `Unavailable`."""
        self._takeover.wait()
        with self._lock:
            if not self._jobs.is_past(name):
                return self._jobs[name].timeline.model()
        kept = self._kept(name)
        return NO_TIMELINE if kept is None else kept.timeline

    def spec(self, name: str) -> JobSpec:
        """Return the specification of a job; for a past job, it is read from its output. Raises `NotFound`,
        `Unavailable`, and `ConfigError` if it cannot be read."""
        self._takeover.wait()
        with self._lock:
            past = self._jobs.past(name)
            if past is None:
                return self._jobs[name].spec
        if not past.output:
            raise NotFound(f"the settings of job {name} are not known")
        output = self._stores.under(past.output)
        return stored_spec(output.get(layout.SPEC).decode("utf-8", "replace"), output.uri(layout.SPEC))

    def present(self, name: str) -> JobSpec:
        """Return a job that has not ended as it is by now, with all changes, and with what its next run adds. Raises
        `NotFound`."""
        self._takeover.wait()
        with self._lock:
            job = self._jobs[name]
            found = after_all(job.goal, job.changes.made)
            return found if job.priority is None else found.model_copy(update={"priority": job.priority})

    def under_way(self) -> list[str]:
        """Return the names of the jobs that have not ended."""
        with self._lock:
            return [job.name for job in self._jobs if not job.state.ended]

    def own_reason(self, name: str) -> str:
        """Return the reason in the status of a job that has not ended, without what the conditions add to it."""
        with self._lock:
            return self._jobs[name].reason

    def _kept(self, name: str) -> StoredTimeline | None:
        """Return what the output of a past job keeps of its course. Without the lock: it asks a store."""
        with self._lock:
            past = self._jobs.past(name)
        return None if past is None or not past.output else TimelineFile(self._stores.under(past.output)).read()

    def usage(self) -> Usage:
        """Return what the workers do and use."""
        with self._lock:
            return self._runner.usage(self._clock())

    def preview(self, name: str, stream: str) -> StreamPreview:
        """Return pictures of a clip that is in the cache for the consumers of a stream; the clip is not changed.

        Raises `NotFound`, also if nothing can be shown now, and `Unavailable`.
        """
        self._takeover.wait()
        with self._lock:
            if self._jobs.is_past(name) or self._jobs[name].state.ended:
                raise NotFound(f"job {name} has ended, and its clips are gone")
            job = self._jobs[name]
            spec, layouts = job.run.preflight.spec, job.run.preflight.layouts
            if stream not in spec.streams:
                raise NotFound(f"job {name} has no stream {stream!r}; {suggested(stream, list(spec.streams))}")
            clips = job.stored.of(stream)
        # Without the lock: it reads the cache.
        return self._previews.of(spec, stream, layouts[stream], clips)

    def recent(self) -> list[JobStatus]:
        """Return the jobs that have not ended, and the newest of those that ended within the last hour, as far as they
        are known already."""
        with self._lock:
            since = datetime.now(UTC) - RECENT
            ended = [job for job in self._jobs if job.life.ended is not None]
            older = set(self._jobs.ended_but(KEPT_WHOLE))
            own = [
                self._status(job)
                for job in self._jobs
                if job.life.ended is None or (job.life.ended > since and job not in older)
            ]
            return own + self._jobs.past_since(since, max(0, KEPT_WHOLE - len(ended)))

    @property
    def recovered(self) -> bool:
        """Whether all jobs that were under way before this master are known."""
        return self._takeover.done.is_set()

    @property
    def obstacle(self) -> str:
        """What this master waits for before it can take over jobs; empty if nothing."""
        return self._takeover.obstacle

    def pool_demands(self) -> list[PoolDemand]:
        """Return the demand of the jobs that have not ended."""
        with self._lock:
            return [demand_of(job) for job in self._jobs if not job.state.ended]

    def events(self, name: str, after: int = 0, timeout_s: float = 0.0) -> Sequence[JobEvent]:
        """Return the events of a job after event `after`; waits up to `timeout_s` for one. Raises `NotFound`."""
        self._takeover.wait()
        with self._lock:
            events = self._events_of(name)
        return events.after(after, timeout_s)

    def watched(self, name: str) -> tuple[JobStatus, EventLog]:
        """Return the status of a job, and its events, from which a watching client continues. Raises `NotFound`."""
        status = self.status(name)
        with self._lock:
            return status, self._events_of(name)

    def _events_of(self, name: str) -> EventLog:
        return _NO_EVENTS if self._jobs.is_past(name) else self._jobs[name].reporter.log

    def _change(self, name: str, wanted: JobState) -> JobStatus:
        self._takeover.wait()
        if wanted is JobState.RUNNING:
            self._queue.measure()
        with self._lock:
            ended = self._jobs.past(name)
            state = (ended or self._jobs[name]).state
            if state.ended and wanted is JobState.RUNNING:
                raise Conflict(f"job {name} is {state}; start it again instead of resuming it")
            if ended is not None:
                change(name, state, wanted)
                return ended
            job = self._jobs[name]
            if wanted is JobState.RUNNING:
                self._queue.resume(job)
            elif self._runner.enter(job, wanted) and wanted is JobState.PAUSED:
                job.pause()
            self._queue.plan()
        # Outside the lock: it may wait for a server.
        self._runner.outbox.send()
        failpoint("master.command-published")
        return self.status(name)


def build(
    adapters: Adapters,
    settings: MasterSettings,
    worker: str,
    recovers: bool = False,
    declared: Callable[[], Declared] = Declared,
) -> Master:
    """Return a master over these adapters; with `recovers` it takes over the jobs of the previous one."""
    if settings.bus == "memory://" and recovers:
        raise ConfigError(
            "is memory://, which no other process can reach; set it to kafka://host:port, or use `essp run`",
            field="ESSP_BUS",
            code="conflict",
        )
    trackers: list[Tracker] = [TensorBoard(Path(settings.tensorboard))] if settings.tensorboard else []
    trackers += [MLflow(settings.mlflow)] if settings.mlflow else []
    trackers += [WandB(settings.wandb)] if settings.wandb else []
    return Master(adapters, settings, worker, recovers, declared=declared, trackers=trackers)
