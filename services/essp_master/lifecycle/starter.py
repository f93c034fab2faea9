"""Starts jobs, and continues runs that another master left.

A job is announced only after its first work units were built, so a job for which that fails is never announced.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from essp_common import topics
from essp_common.errors import PermanentError, TransientError, Unavailable
from essp_common.job.spec import JobSpec, stored_spec
from essp_common.job.status import JobState
from essp_common.messages.control import ends_for_next
from essp_common.pb.v1.messages_pb2 import Control
from essp_common.runtime import ids
from essp_common.runtime.failpoints import failpoint
from essp_common.wiring import Adapters
from essp_engine.preflight.output import ANYBODY, Asked
from essp_engine.preflight.preflight import Preflight, preflight
from essp_engine.registrations import Declared
from essp_master.config import MasterSettings
from essp_master.failover.recovery import under_way
from essp_master.job.events import EventLog
from essp_master.job.handshake import Handshake
from essp_master.job.job import Job
from essp_master.lifecycle.queueing import JobQueue
from essp_master.lifecycle.runner import JobRunner
from essp_master.lifecycle.start_run import Origin, start_run

log = logging.getLogger(__name__)

_PATIENCE_S = 10.0
"""How long a start waits for the history of the previous run."""


class JobStarter:
    """Begins runs of jobs. Takes the runner's lock where needed; `begin` is called under it."""

    def __init__(
        self,
        runner: JobRunner,
        queue: JobQueue,
        adapters: Adapters,
        settings: MasterSettings,
        worker: str,
        declared: Callable[[], Declared],
        draining: threading.Event,
    ) -> None:
        """`declared`: returns what is registered but not installed here. `draining`: the master is leaving."""
        self._runner = runner
        self._queue = queue
        self._bus = adapters.bus
        self._stores = adapters.stores
        self._settings = settings
        self._worker = worker
        self._declared = declared
        self._draining = draining

    def preflight(
        self, spec: JobSpec, fresh: bool = False, continues: bool = False, asked: Asked = ANYBODY
    ) -> Preflight:
        """Check a job and return what it consists of. Raises `ConfigError`, `Forbidden`, `OfAnotherJob`."""
        declared = replace(self._declared(), code=self._settings.code)
        return preflight(spec, self._stores, fresh, declared, continues, asked, self._settings.state)

    def start(self, spec: JobSpec, fresh: bool, checked: Preflight | None, asked: Asked) -> None:
        """Start a job, or restart one that has ended. `checked`: its preflight, if it was already made."""
        with self._reserved(spec, asked) as present:
            events = present.reporter.log if present is not None else EventLog()
            found = checked or self.preflight(spec, fresh, asked=asked)
            state = self._queue.begins(found.spec, asked.team)
            changes = present.changes.made if present is not None and not fresh else ()
            self._start(found, Origin(state=state, team=asked.team, changes=changes), events)

    def take_over(self, spec: JobSpec, command: Control) -> None:
        """Continue the run that has this last command."""
        with self._reserved(spec, Asked(command.team), takes_over=True) as present:
            events = present.reporter.log if present is not None else EventLog()
            found = self.preflight(spec, continues=True)
            goal = None
            if ends_for_next(command):
                goal = self.preflight(stored_spec(command.next_spec_json, f"job {command.job}"))
            self._start(found, Origin.of_command(command), events, command, goal)

    def run_of(self, found: Preflight, origin: Origin, events: EventLog) -> Job:
        """Return a new run of a job, which is not announced yet."""
        streams = {topics.stream_topic(stream.feature) for stream in found.spec.streams.values()}
        self._bus.ensure_topics({topic: topics.partitions(topic, self._bus.partitions) for topic in streams})
        if not origin.since:
            self._begin_groups(found.spec)
        origin = replace(origin, above=self._runner.fence_of(found.spec.name))
        job = start_run(found, self._stores, origin, events, self._worker, self._runner.clock)
        if not self._queue.present:
            job.priority = None
        if self._runner.recovers and self._settings.ready_s:
            job.hold(Handshake(found.spec, self._settings.ranks, self._settings.ready_s))
        return job

    def _begin_groups(self, spec: JobSpec) -> None:
        """Spare the consumers of a new run all that older jobs have left on the topics, which may be a week's clips."""
        groups = {
            ids.consumer_group(consumer, spec.name): topics.stream_topic(spec.streams[stream].feature)
            for consumer, stream in spec.readers().items()
        }
        try:
            self._bus.begin_groups(groups)
        except TransientError as error:
            log.info("job %s: its consumers read what older jobs have left first: %s", spec.name, error)

    def begin(self, job: Job, command: Control | None = None) -> None:
        """Announce a job to all workers, and issue its first work units.

        A job whose first work units cannot be built is not announced. `command`: the last one of another master.
        """
        try:
            self._announce(job, command)
        except (ValueError, TypeError, LookupError) as error:
            reason = f"job {job.name} cannot begin: {type(error).__name__}: {error}; check its catalog"
            raise PermanentError(reason) from error

    @contextmanager
    def _reserved(self, spec: JobSpec, asked: Asked, takes_over: bool = False) -> Iterator[Job | None]:
        """Reserve the job's name within the block. Yields the ended job of that name, if there is one."""
        runner = self._runner
        with runner.lock:
            present = runner.jobs.reserve(spec, asked, takes_over)
        try:
            yield present
        finally:
            with runner.lock:
                self._queue.known(spec.name)
                runner.jobs.release(spec.name)

    def _start(
        self,
        found: Preflight,
        origin: Origin,
        events: EventLog,
        command: Control | None = None,
        goal: Preflight | None = None,
    ) -> None:
        """`goal`: the preflight of the run that follows this one."""
        runner = self._runner
        with self.written_to_the_end(found.spec.output):
            job = self.run_of(found, origin, events)
            if goal is not None:
                job.extend(goal, runner.clock())
            with runner.lock:
                self.begin(job, command)
                self._queue.known(job.name)
                self._queue.plan()
        runner.outbox.send()
        failpoint("master.start-published")
        how = "started" if command is None else "taken over"
        log.info("job %s: %s, fence %d", job.name, how, job.run.fence, extra={"job_id": job.name})

    @contextmanager
    def written_to_the_end(self, output: str) -> Iterator[None]:
        """Ensure that the history in this output contains everything that previous runs recorded, and that they record
        no more within the block, since the next run continues it from there. Raises `Unavailable` if that takes long.
        """
        runner = self._runner
        with runner.lock:
            ended = runner.jobs.ended_in(output)
        until_s = time.monotonic() + _PATIENCE_S
        while not self._hand_on(ended):
            if (left_s := until_s - time.monotonic()) <= 0 or self._draining.is_set():
                raise Unavailable(
                    f"the end of the last run is not in the history in {output} yet; ask again in a moment"
                )
            # Without the lock: this may take long, and the master's own thread continues meanwhile.
            runner.history.wait(left_s)
            runner.outbox.send()
            runner.write_histories(now=True)
        try:
            yield
        except BaseException:
            with runner.lock:
                for job in ended:
                    job.take_back()
            raise

    def _hand_on(self, ended: Sequence[Job]) -> bool:
        """Make these runs stop writing. Returns False if their histories are not complete yet."""
        with self._runner.lock:
            written = all(map(self._runner.history.holds_all_of, ended))
            for job in ended if written else ():
                job.hand_on()
        return written

    def _announce(self, job: Job, command: Control | None) -> None:
        runner, dispatch = self._runner, self._runner.dispatch
        ends = command is not None and command.command in (Control.STOP, Control.FAIL)
        first = () if ends else (*job.look(*runner.up()), *job.start())
        # Build everything first, without any effect: if a seed cannot be made, nothing was announced.
        units = [dispatch.prepared(job, instruction) for instruction in first]
        runner.jobs.add(job)
        runner.note_fence(job.name, job.run.fence)
        job.activity.listener = runner.tracking.follow(job.run.preflight.spec, job.run.epoch_clips, job.run.resumed)
        if job.run.continued is None or (command is not None and command.fence < command.since):
            dispatch.purge(job.name)  # no worker knew the run, so all bytes there are older
        if command is None or under_way(command):
            dispatch.command(job, Control.START if job.state is JobState.RUNNING else Control.PAUSE)
        if job.run.continued is not None:
            # Published after the start: when it comes back, everything that the previous master left unread has been
            # read.
            dispatch.mark(job)
        if command is not None and command.command in (Control.STOP, Control.FAIL):
            ended = JobState.STOPPED if command.command == Control.STOP else JobState.FAILED
            runner.enter(job, ended, command.reason)
        for instruction, effects in zip(first, units, strict=True):
            if effects is None:
                runner.carry_out(job, [instruction])
            else:
                dispatch.carry_out(job, effects)
