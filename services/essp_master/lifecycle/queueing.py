"""Carries out the decisions of the queue (`queue/`): which jobs run and which wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from essp_common.errors import ConfigError
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobState, QueueStatus
from essp_master.job.job import Job
from essp_master.lifecycle.runner import JobRunner
from essp_master.queue.admission import Admission
from essp_master.queue.plan import Contender


class JobQueue:
    """The queue of a master, if it has one. Methods are called under the runner's lock unless stated otherwise. Without
    a queue all jobs run, as in a process that runs a single job.
    """

    def __init__(self, runner: JobRunner, admission: Admission | None, ready: Callable[[], bool]) -> None:
        """`admission`: None for no queue. `ready`: whether all jobs are known."""
        self._runner = runner
        self._admission = admission
        self._ready = ready
        self._starting: dict[str, Contender] = {}
        """Jobs that will start running as soon as they are known."""

    @property
    def present(self) -> bool:
        """Whether there is a queue."""
        return self._admission is not None

    def require(self) -> None:
        """Raise `ConfigError` if there is no queue."""
        if self._admission is None:
            raise ConfigError("there is no queue here: this master runs one job in its own process", code="unsupported")

    def check(self, spec: JobSpec, team: str) -> None:
        """Raise `ConfigError` for a job that its team's quota would never allow to run. Needs no lock."""
        if self._admission is not None:
            self._admission.check(spec, team)

    def measure(self) -> None:
        """Measure the available resources if they are unknown; blocks for the answer. Needs no lock."""
        if self._admission is not None:
            self._admission.measure()

    def begins(self, spec: JobSpec, team: str) -> JobState:
        """Decide whether a new job starts running or queued. If there is room now, it is reserved for the job. Takes
        the lock."""
        if self._admission is None:
            return JobState.RUNNING
        with self._runner.lock:
            newcomer = self._admission.newcomer(spec, team, datetime.now(UTC))
            admitted = spec.name in self._admission.plan([*self._contenders(self._admission), newcomer]).start
            if admitted:
                self._starting[spec.name] = replace(newcomer, running=True, waiting=False)
            return JobState.RUNNING if admitted else JobState.QUEUED

    def known(self, name: str) -> None:
        """The job of that name is known now, or was refused: cancel its reservation."""
        self._starting.pop(name, None)

    def resume(self, job: Job) -> None:
        """Let a paused job run again as soon as there is room."""
        if self._admission is None:
            if self._runner.enter(job, JobState.RUNNING):
                self._runner.carry_out(job, job.resume())
        elif job.state is JobState.PAUSED:
            self._runner.enter(job, JobState.QUEUED)
            job.pause(finishes=True)

    def plan(self) -> None:
        """Start the jobs that fit, preempt those that must make room, and update the queue position of the rest."""
        if self._admission is None or not self._ready():
            return
        jobs, runner = self._runner.jobs, self._runner
        decided = self._admission.plan(self._contenders(self._admission))
        # Preempted jobs first: their room goes to those that start.
        for name, other in decided.preempt.items():
            if (job := jobs.find(name)) is not None:
                with runner.isolated(job):
                    runner.enter(job, JobState.QUEUED, f"it made room for {other}")
                    job.pause(finishes=True)
        for name in decided.start:
            job = jobs[name]
            with runner.isolated(job):
                runner.enter(job, JobState.RUNNING)
                runner.carry_out(job, job.resume())
        for place in decided.waiting:
            if (waiting := jobs.find(place.job)) is not None and waiting.state is JobState.QUEUED:
                with runner.isolated(waiting):
                    waiting.wait_at(QueueStatus(position=place.position, reason=place.reason))

    def _contenders(self, admission: Admission) -> list[Contender]:
        """Return the jobs that have not ended, and those that are about to run. A job whose needs cannot be determined
        fails."""
        seen = []
        for job in self._runner.jobs:
            if not job.state.ended:
                with self._runner.isolated(job):
                    seen.append(admission.contender(job))
        return [*seen, *self._starting.values()]
