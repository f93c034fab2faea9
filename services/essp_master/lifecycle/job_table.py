"""The jobs that a master knows: those it runs, those being started, and past ones.

A job is past if it had ended before the master began, or if many others have ended after it: a master may run for
months. Of past jobs the master keeps only the last status, no events or curves. There may be thousands, and the status
of a job with hundreds of epochs takes up to a megabyte as objects, so statuses are compressed.

Not thread-safe; guarded by the lock of `runner.py`.
"""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from essp_common.artifacts.dependents import Taken
from essp_common.errors import Conflict, NotFound
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobStatus, JobSummary
from essp_common.validation import suggested
from essp_engine.preflight.output import ANYBODY, Asked
from essp_master.job.job import Job
from essp_master.status.status_view import summary_of, summary_of_past


@dataclass(slots=True)
class PastJob:
    """A past job."""

    summary: JobSummary
    ended: datetime | None
    packed: bytes
    """Its last status, compressed."""
    output: str
    takes: Collection[Taken] = ()
    """What it takes from elsewhere, by the specification in its output (`removal.py`)."""
    spec_etag: str = ""
    """The ETag of that specification; empty if it was not read."""

    @classmethod
    def of(cls, status: JobStatus) -> Self:
        return cls(
            summary_of_past(status), status.ended, zlib.compress(status.model_dump_json().encode()), status.output
        )

    @property
    def status(self) -> JobStatus:
        return JobStatus.model_validate_json(zlib.decompress(self.packed))


@dataclass(frozen=True, slots=True)
class _Starting:
    """A job that is being started, or whose next run is."""

    spec: JobSpec
    team: str


class JobTable:
    """Jobs by name."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._past: dict[str, PastJob] = {}
        self._starting: dict[str, _Starting] = {}

    def __iter__(self) -> Iterator[Job]:
        """Iterate over the jobs of this master, in the order of their starts."""
        return iter(tuple(self._jobs.values()))

    def __contains__(self, name: str) -> bool:
        return name in self._jobs

    def __getitem__(self, name: str) -> Job:
        """Return a job of this master. Raises `NotFound`."""
        if name not in self._jobs:
            raise NotFound(f"there is no job {name!r}; {suggested(name, [*self._jobs, *self._past])}")
        return self._jobs[name]

    def team_of(self, name: str) -> str | None:
        """Return the owning team of a job; None if the job is unknown."""
        if name in self._jobs:
            return self._jobs[name].team
        return self._past[name].summary.team if name in self._past else None

    def find(self, name: str) -> Job | None:
        """Return the job of this master with that name, if there is one."""
        return self._jobs.get(name)

    def add(self, job: Job) -> None:
        """Add a job. It replaces an ended one of the same name."""
        self._jobs[job.name] = job

    def reserve(self, spec: JobSpec, asked: Asked = ANYBODY, takes_over: bool = False) -> Job | None:
        """Reserve name and output for a job that is being started. Returns the ended job of that name, if there is one.

        Raises `Conflict` while a job of that name runs or is being started, and, unless a run is taken over, while
        another job has the output.
        """
        name = spec.name
        present = self._jobs.get(name)
        if name in self._starting or (present is not None and not present.state.ended):
            team = self._starting[name].team if name in self._starting else self._jobs[name].team
            if not asked.sees(team):
                raise Conflict(f"name: {name} is taken; choose another name")
            state = "starting" if present is None or present.state.ended else present.state
            raise Conflict(f"job {name} is {state}; stop it first, or choose another name")
        if not takes_over:
            self.check_output(spec, asked)
        self._starting[name] = _Starting(spec, asked.team)
        return present

    def check_output(self, spec: JobSpec, asked: Asked = ANYBODY) -> None:
        """Raise `Conflict` while another job writes to this job's output, within it or around it. `asked`: the caller,
        who must not learn about jobs of other teams."""
        under_way = {
            job.name: (job.spec, job.team, str(job.state)) for job in self._jobs.values() if not job.state.ended
        }
        under_way |= {name: (found.spec, found.team, "starting") for name, found in self._starting.items()}
        for name, (other, team, state) in under_way.items():
            if name == spec.name or not _share(spec.output, other.output):
                continue
            if not asked.sees(team):
                raise Conflict(
                    f"output: {spec.output} is in use by a job of another team; choose another output, or wait until "
                    "that job has ended"
                )
            whose = f"the output of job {name}"
            where = (
                f"is {whose}" if spec.output == other.output else f"and {whose} ({other.output}) are one in the other"
            )
            raise Conflict(
                f"output: {spec.output} {where}, and job {name} is {state}; choose another output, or wait until that "
                "job has ended"
            )

    def ended_but(self, kept: int) -> list[Job]:
        """Return the ended jobs, oldest first, except for the newest `kept`."""
        ended = [(job.life.ended, job) for job in self._jobs.values() if job.life.ended is not None]
        if len(ended) <= kept:
            return []
        return [job for _, job in sorted(ended, key=lambda each: each[0])[: len(ended) - kept]]

    def ended_in(self, output: str) -> list[Job]:
        """Return the ended jobs with this output."""
        return [job for job in self._jobs.values() if job.state.ended and job.spec.output == output]

    def hold(self, name: str) -> None:
        """Reserve the name of a job whose next run is being started."""
        self._starting[name] = _Starting(self._jobs[name].spec, self._jobs[name].team)

    def release(self, name: str) -> None:
        """The job of that name was started or refused: release its reservation."""
        self._starting.pop(name, None)

    def remember(self, past: JobStatus) -> None:
        """Keep a past job, by its last status alone."""
        self._jobs.pop(past.name, None)
        self._past[past.name] = PastJob.of(past)

    def past(self, name: str) -> JobStatus | None:
        """Return the last status of a past job, unless it was started again."""
        return self._past[name].status if self.is_past(name) else None

    def past_jobs(self) -> list[PastJob]:
        """Return the past jobs that were not started again."""
        return [past for name, past in self._past.items() if name not in self._jobs]

    def forget(self, name: str) -> None:
        """Forget a job that has ended."""
        self._jobs.pop(name, None)
        self._past.pop(name, None)

    def is_past(self, name: str) -> bool:
        """Whether a past job has that name and was not started again."""
        return name in self._past and name not in self._jobs

    def is_starting(self, name: str) -> bool:
        """Whether a job of that name is being started."""
        return name in self._starting

    def past_since(self, since: datetime, most: int) -> list[JobStatus]:
        """Return up to `most` of the newest past jobs that ended after this moment and were not started again."""
        found = (
            (past.ended, past)
            for name, past in self._past.items()
            if past.ended is not None and past.ended > since and name not in self._jobs
        )
        return [past.status for _, past in heapq.nlargest(most, found, key=lambda each: each[0])]

    def summaries(self, now_s: float) -> list[JobSummary]:
        """Return all jobs, newest first."""
        found = [summary_of(job, now_s) for job in self._jobs.values()]
        found += [past.summary for past in self.past_jobs()]
        return sorted(found, key=lambda job: job.created, reverse=True)


def _share(one: str, other: str) -> bool:
    """Whether two outputs are equal, or one lies within the other."""
    one, other = f"{one.removesuffix('/')}/", f"{other.removesuffix('/')}/"
    return one.startswith(other) or other.startswith(one)
