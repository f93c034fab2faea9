"""The master: starts jobs, issues their seeds, accounts for what comes back, and says what is to be done.

The thin shell around pure parts (`ledger.py` and what it uses): one thread reads `essp.progress` and carries out the
ledger's instructions; the API's threads start, pause and stop jobs under the same lock. A progress message is `done`
once its effects are durable.

What outlives the process: specification, checkpoints and fences in each job's output, and the last command of every job
in `essp.control`. A master that is started with `adopt` takes up from these the jobs that were under way: it goes on at
the trainers' checkpoints, and trainers that went further tell it so. One such master may run at a time; it reads
`essp.progress` in the group `master`. A master that runs a job of its own process (`essp run`) has a group of its own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from google.protobuf.message import DecodeError

from essp_common import metrics, topics
from essp_common.bus.port import Record
from essp_common.cache.port import CacheUsage, job_prefix
from essp_common.errors import ConfigError, Conflict, EsspError, NotFound, TransientError
from essp_common.pb.v1.messages_pb2 import Control, Progress
from essp_common.spec import JobSpec
from essp_common.wiring import Adapters
from services.master.adoption import jobs_under_way
from services.master.config import MasterSettings
from services.master.events import EventLog
from services.master.instructions import CompleteJob, FailJob, Instruction, IssueUnit, PublishSkip, ReleaseClip
from services.master.jobs import Job
from services.master.launch import launch
from services.master.outbox import Outbox
from services.master.snapshot import status_of, summary_of
from services.master.status import JobEvent, JobState, JobStatus, JobSummary

log = logging.getLogger(__name__)

GROUP = "master"
_POLL_S = 0.1
_TICK_S = 0.5
_SWEEP_S = 2.0
"""How long after the end of a job stray bytes are looked for again."""
_ADOPT_S = 3.0
"""How long a new master listens for the jobs that were under way."""
_LONGEST_STALL_S = 3600.0
_COMMANDS = {
    JobState.PAUSED: Control.PAUSE,
    JobState.RUNNING: Control.RESUME,
    JobState.STOPPED: Control.STOP,
    JobState.COMPLETED: Control.COMPLETE,
    JobState.FAILED: Control.FAIL,
}


class Master:
    """Runs jobs. The methods that people call are thread-safe."""

    name = "master"

    def __init__(
        self,
        adapters: Adapters,
        settings: MasterSettings,
        worker: str,
        adopt: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bus = adapters.bus
        self._cache = adapters.cache
        self._stores = adapters.stores
        self._settings = settings
        self._clock = clock
        self._adopt = adopt
        self._lock = threading.RLock()
        self._jobs: dict[str, Job] = {}
        self._starting: set[str] = set()
        self._draining = threading.Event()
        self._outbox = Outbox(self._bus)
        self._handled: list[Record] = []
        """Accounted for, and their effects not yet durable."""
        self._subscription = self._bus.subscribe([topics.PROGRESS], GROUP if adopt else f"{GROUP}.{worker}")
        self._ticked_s = self._swept_s = clock()

    # --- the service ---

    def run(self) -> None:
        """Account for progress until drained."""
        try:
            if self._adopt:
                self._adopt_jobs()  # before the first message is read, since it may be about one of them
            while not self._draining.is_set():
                try:
                    self.step(_POLL_S)
                except TransientError as error:
                    log.warning("master: %s; trying again", error)
                    self._draining.wait(error.retry_after_s)
        finally:
            self._draining.set()
            self._subscription.close()

    def step(self, timeout_s: float) -> int:
        """Account for what has come, waiting for so long at most; how many messages that were."""
        records = self._subscription.poll(self._settings.poll_records, timeout_s)
        with self._lock:
            for record in records:
                self._receive(record)
            now_s = self._clock()
            if now_s - self._ticked_s >= _TICK_S:
                self._ticked_s = now_s
                self._tick(now_s)
        self._handled += records
        self._outbox.send()
        for record in self._handled:
            self._subscription.done(record)
        self._handled.clear()
        return len(records)

    def drain(self) -> None:
        """Let `run` return. Jobs stay as they are; who starts them again goes on from their checkpoints."""
        self._draining.set()

    @property
    def ready(self) -> bool:
        """Takes jobs."""
        return not self._draining.is_set()

    # --- what people ask for ---

    def start(self, spec: JobSpec, fresh: bool = False) -> JobStatus:
        """Start a job, or start one that has ended again. Raises `ConfigError`, and `Conflict` while it runs."""
        return self._start(spec, fresh)

    def pause(self, name: str) -> JobStatus:
        """Issue nothing more until `resume`. Raises `NotFound`, `Conflict`."""
        return self._change(name, JobState.PAUSED)

    def resume(self, name: str) -> JobStatus:
        """Go on after a pause. Raises `NotFound`, `Conflict`."""
        return self._change(name, JobState.RUNNING)

    def stop(self, name: str) -> JobStatus:
        """End a job; trainers save first. Started again it goes on. Raises `NotFound`, `Conflict`."""
        return self._change(name, JobState.STOPPED)

    def jobs(self) -> list[JobSummary]:
        """All jobs, newest first."""
        with self._lock:
            now_s = self._clock()
            newest = sorted(self._jobs.values(), key=lambda job: job.created, reverse=True)
            return [summary_of(job, now_s) for job in newest]

    def status(self, name: str) -> JobStatus:
        """All there is to know of a job. Raises `NotFound`."""
        usage = self._usage()
        with self._lock:
            return status_of(self._job(name), usage, self._clock())

    def events(self, name: str, after: int = 0, timeout_s: float = 0.0) -> Sequence[JobEvent]:
        """What happened to a job since event `after`; waits for something if told to. Raises `NotFound`."""
        with self._lock:
            events = self._job(name).log
        return events.after(after, timeout_s)

    # --- the state of jobs ---

    def _start(self, spec: JobSpec, fresh: bool, since: int = 0, paused: bool = False) -> JobStatus:
        with self._lock:
            present = self._jobs.get(spec.name)
            if spec.name in self._starting or (present is not None and not present.state.ended):
                state = "starting" if present is None or present.state.ended else present.state
                raise Conflict(f"job {spec.name} is {state}; stop it first, or choose another name")
            self._starting.add(spec.name)
        try:
            launched = launch(spec, self._stores, fresh)
            self._bus.ensure_topics(
                {t: topics.partitions(t) for t in {topics.stream_topic(s.feature) for s in spec.streams.values()}}
            )
            with self._lock:
                events = present.log if present is not None else EventLog()
                job = Job(launched, since or launched.fence, self._clock(), events)
                self._outbox.add(partial(self._cache.purge, job_prefix(job.name)))
                job.enter(JobState.RUNNING, self._clock())
                self._publish_control(job, Control.START)
                self._jobs[job.name] = job
                if paused:
                    job.ledger.pause()
                    self._enter(job, JobState.PAUSED)
                self._carry_out(job, job.ledger.start())
            self._outbox.send()
            log.info("job %s: started, fence %d", job.name, job.fence)
            return self.status(spec.name)
        finally:
            with self._lock:
                self._starting.discard(spec.name)

    def _change(self, name: str, wanted: JobState) -> JobStatus:
        with self._lock:
            job = self._job(name)
            if job.state.ended and wanted is JobState.RUNNING:
                raise Conflict(f"job {name} is {job.state}; start it again in place of resuming it")
            before = job.state
            if self._enter(job, wanted):
                if wanted is JobState.PAUSED:
                    job.ledger.pause()
                elif wanted is JobState.RUNNING and before is JobState.PAUSED:
                    self._carry_out(job, job.ledger.resume())
        self._outbox.send()
        return self.status(name)

    def _enter(self, job: Job, wanted: JobState, reason: str = "") -> bool:
        """Change a job's state, and tell everybody."""
        if not job.enter(wanted, self._clock(), reason):
            return False
        log.info("job %s: %s %s", job.name, wanted, reason)
        self._publish_control(job, _COMMANDS[wanted])
        if wanted.ended:
            job.leftovers = True
            self._swept_s = self._clock()
            self._outbox.add(partial(self._cache.purge, job_prefix(job.name)))
        return True

    def _job(self, name: str) -> Job:
        if name not in self._jobs:
            known = ", ".join(self._jobs) or "none"
            raise NotFound(f"there is no job {name!r}; there are: {known}")
        return self._jobs[name]

    # --- progress in, instructions out ---

    def _receive(self, record: Record) -> None:
        try:
            progress = Progress.FromString(record.value)
        except DecodeError:
            log.warning("record %d of %s is no progress message; ignored", record.offset, record.topic)
            return
        job = self._jobs.get(progress.job)
        if job is None:
            return
        if job.overtaken(progress):
            self._let_go(job)
        else:
            self._carry_out(job, job.handle(progress, self._clock()))

    def _let_go(self, job: Job) -> None:
        if not job.state.ended:
            log.error("job %s: another master has taken it over; it is left to that one", job.name)
            job.enter(JobState.STOPPED, self._clock(), "another master has taken the job over")

    def _carry_out(self, job: Job, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case IssueUnit():
                    key, unit = job.seeds.unit(instruction)
                    self._publish(topics.SEEDS, key, unit.SerializeToString())
                case PublishSkip():
                    for topic, message in job.seeds.skips(instruction):
                        index = message.clip.index
                        partition = index % topics.DATA_PARTITIONS
                        self._publish(topic, str(index).encode(), message.SerializeToString(), partition)
                case ReleaseClip():
                    for cache_key, consumer in job.seeds.releases(instruction):
                        self._outbox.add(partial(self._cache.ack, cache_key, consumer))
                case CompleteJob():
                    self._enter(job, JobState.COMPLETED)
                case FailJob(reason):
                    self._enter(job, JobState.FAILED, reason)

    def _publish_control(self, job: Job, command: Control.Command) -> None:
        self._publish(topics.CONTROL, job.name.encode(), job.control(command).SerializeToString())

    def _publish(self, topic: str, key: bytes, value: bytes, partition: int | None = None) -> None:
        self._outbox.add(partial(self._bus.publish, topic, key, value, partition))

    # --- from time to time ---

    def _tick(self, now_s: float) -> None:
        usage = self._usage()
        if usage is not None:
            metrics.CACHE_BYTES.labels("used").set(usage.used_bytes)
            metrics.CACHE_BYTES.labels("limit").set(usage.limit_bytes)
        for job in list(self._jobs.values()):
            patience_s = min(self._settings.stall_s * 2**job.silences, _LONGEST_STALL_S)
            if job.state is JobState.RUNNING and job.ledger.outstanding and now_s - job.heard_s >= patience_s:
                log.warning("job %s: nothing heard for %.0f s", job.name, now_s - job.heard_s)
                self._carry_out(job, job.stalled(now_s))
        if now_s - self._swept_s >= _SWEEP_S:
            self._swept_s = now_s
            self._sweep()

    def _sweep(self) -> None:
        """Free what workers stored for jobs that had ended: they learn of it a moment later."""
        for job in self._jobs.values():
            if job.state.ended and job.leftovers:
                job.leftovers = False
                self._outbox.add(partial(self._cache.purge, job_prefix(job.name)))

    def _usage(self) -> CacheUsage | None:
        try:
            return self._cache.usage()
        except TransientError as error:
            log.warning("master: %s", error)
            return None

    # --- the jobs of a master before this one ---

    def _adopt_jobs(self) -> None:
        """Take up the jobs that were under way when the master before this one went."""
        for command in jobs_under_way(self._bus, _ADOPT_S, self._draining):
            if command.job in self._jobs or self._draining.is_set():
                continue
            try:
                spec = JobSpec.model_validate_json(command.snapshot.spec_json)
                self._start(spec, False, since=command.fence, paused=command.command == Control.PAUSE)
            except (EsspError, ValueError) as error:
                log.error("job %s was under way and cannot be taken up: %s", command.job, error)
            else:
                log.info("job %s was under way; taken up", command.job)


def build(adapters: Adapters, settings: MasterSettings, worker: str, adopt: bool = False) -> Master:
    """A master over these adapters; with `adopt` it takes up the jobs of one that went before."""
    if settings.bus == "memory://" and adopt:
        raise ConfigError(
            "ESSP_BUS is memory://, which no other process can reach; set it to kafka://host:port, or use `essp run`"
        )
    return Master(adapters, settings, worker, adopt)
