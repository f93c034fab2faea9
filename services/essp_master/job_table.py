"""The jobs that a master knows: those it runs, those being started, and those that had ended before it began.

Not thread-safe; `service.py` guards it.
"""

from __future__ import annotations

from collections.abc import Iterator

from essp_common.errors import Conflict, NotFound
from essp_common.job.status import JobStatus, JobSummary
from essp_common.validation import suggested
from essp_master.job.job import Job
from essp_master.job.status_view import summary_of, summary_of_past


class JobTable:
    """Jobs by name."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._past: dict[str, JobStatus] = {}
        self._starting: set[str] = set()

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

    def find(self, name: str) -> Job | None:
        """A job of this master, if there is one of that name."""
        return self._jobs.get(name)

    def add(self, job: Job) -> None:
        """Know a job, in place of one of that name which has ended."""
        self._jobs[job.name] = job

    def reserve(self, name: str) -> Job | None:
        """Keep a name for a job that is being started; the job of that name that has ended, if there is one.

        Raises `Conflict` while a job of that name runs or is being started.
        """
        present = self._jobs.get(name)
        if name in self._starting or (present is not None and not present.state.ended):
            state = "starting" if present is None or present.state.ended else present.state
            raise Conflict(f"job {name} is {state}; stop it first, or choose another name")
        self._starting.add(name)
        return present

    def hold(self, name: str) -> None:
        """Keep the name of a job whose next run is being started."""
        self._starting.add(name)

    def release(self, name: str) -> None:
        """The job of that name was started, or refused."""
        self._starting.discard(name)

    def remember(self, past: JobStatus) -> None:
        """Know of a job that had ended before this master began."""
        self._past[past.name] = past

    def past(self, name: str) -> JobStatus | None:
        """What became of a job that had ended before this master began, unless it was started again."""
        return None if name in self._jobs else self._past.get(name)

    def all_past(self) -> list[JobStatus]:
        """The jobs that had ended before this master began, and were not started again."""
        return [past for name, past in self._past.items() if name not in self._jobs]

    def summaries(self, now_s: float) -> list[JobSummary]:
        """All jobs, newest first."""
        found = [summary_of(job, now_s) for job in self._jobs.values()]
        found += [summary_of_past(past) for past in self.all_past()]
        return sorted(found, key=lambda job: job.created, reverse=True)
