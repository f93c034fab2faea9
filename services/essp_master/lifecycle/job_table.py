"""The jobs that a master knows: those it runs, those being started, and those that are past.

Past are jobs that had ended before the master began, or after whose end many others have ended: a master may run for
months. Of these it knows the last status, and no events or curves any more. There may be thousands, and the status of a
job with hundreds of epochs is most of a megabyte of objects, so they are kept packed.

Not thread-safe; `runner.py` has the lock that guards it.
"""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from essp_common.errors import Conflict, NotFound
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobStatus, JobSummary
from essp_common.validation import suggested
from essp_engine.preflight.output import ANYBODY, Asked
from essp_master.job.job import Job
from essp_master.status.status_view import summary_of, summary_of_past


@dataclass(frozen=True, slots=True)
class _Past:
    """A job that is past."""

    summary: JobSummary
    ended: datetime | None
    packed: bytes
    """Its last status."""

    @classmethod
    def of(cls, status: JobStatus) -> Self:
        return cls(summary_of_past(status), status.ended, zlib.compress(status.model_dump_json().encode()))

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
        self._past: dict[str, _Past] = {}
        self._starting: dict[str, _Starting] = {}

    def __iter__(self) -> Iterator[Job]:
        """The jobs of this master, in the order of their starts."""
        return iter(tuple(self._jobs.values()))

    def __contains__(self, name: str) -> bool:
        return name in self._jobs

    def __getitem__(self, name: str) -> Job:
        """A job of this master. Raises `NotFound`."""
        if name not in self._jobs:
            raise NotFound(f"there is no job {name!r}; {suggested(name, [*self._jobs, *self._past])}")
        return self._jobs[name]

    def team_of(self, name: str) -> str | None:
        """Whose job it is; None: there is no such job."""
        if name in self._jobs:
            return self._jobs[name].team
        return self._past[name].summary.team if name in self._past else None

    def find(self, name: str) -> Job | None:
        """A job of this master, if there is one of that name."""
        return self._jobs.get(name)

    def add(self, job: Job) -> None:
        """Know a job, in place of one of that name which has ended."""
        self._jobs[job.name] = job

    def reserve(self, spec: JobSpec, asked: Asked = ANYBODY, takes_over: bool = False) -> Job | None:
        """Keep name and output for a job that is being started; the job of that name that has ended, if there is one.

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
        """Raises `Conflict` while another job writes to the output of this one, within it or around it. `asked`: who is
        told; nobody of the jobs of other teams."""
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
            whose = f"that of job {name}"
            where = (
                f"is {whose}" if spec.output == other.output else f"and {whose} ({other.output}) are one in the other"
            )
            raise Conflict(
                f"output: {spec.output} {where}, and job {name} is {state}; choose another output, or wait until that "
                "job has ended"
            )

    def ended_but(self, kept: int) -> list[Job]:
        """The jobs that have ended, oldest first, but for the newest `kept` of them."""
        ended = [(job.life.ended, job) for job in self._jobs.values() if job.life.ended is not None]
        if len(ended) <= kept:
            return []
        return [job for _, job in sorted(ended, key=lambda each: each[0])[: len(ended) - kept]]

    def ended_in(self, output: str) -> list[Job]:
        """The jobs with this output that have ended."""
        return [job for job in self._jobs.values() if job.state.ended and job.spec.output == output]

    def hold(self, name: str) -> None:
        """Keep the name of a job whose next run is being started."""
        self._starting[name] = _Starting(self._jobs[name].spec, self._jobs[name].team)

    def release(self, name: str) -> None:
        """The job of that name was started, or refused."""
        self._starting.pop(name, None)

    def remember(self, past: JobStatus) -> None:
        """Know of a job that is past, and nothing but this."""
        self._jobs.pop(past.name, None)
        self._past[past.name] = _Past.of(past)

    def past(self, name: str) -> JobStatus | None:
        """What became of a job that is past, unless it was started again."""
        return self._past[name].status if self.is_past(name) else None

    def is_past(self, name: str) -> bool:
        """Whether there is a job of that name that is past, and it was not started again."""
        return name in self._past and name not in self._jobs

    def is_starting(self, name: str) -> bool:
        """Whether a job of that name is being started."""
        return name in self._starting

    def past_since(self, since: datetime, most: int) -> list[JobStatus]:
        """The newest jobs, at most so many, that ended after this moment and are past, and were not started again."""
        found = (
            (past.ended, past)
            for name, past in self._past.items()
            if past.ended is not None and past.ended > since and name not in self._jobs
        )
        return [past.status for _, past in heapq.nlargest(most, found, key=lambda each: each[0])]

    def summaries(self, now_s: float) -> list[JobSummary]:
        """All jobs, newest first."""
        found = [summary_of(job, now_s) for job in self._jobs.values()]
        found += [past.summary for name, past in self._past.items() if name not in self._jobs]
        return sorted(found, key=lambda job: job.created, reverse=True)


def _share(one: str, other: str) -> bool:
    """Whether one of two outputs is the other, or lies in it."""
    one, other = f"{one.removesuffix('/')}/", f"{other.removesuffix('/')}/"
    return one.startswith(other) or other.startswith(one)
