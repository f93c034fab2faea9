"""Removes jobs that have ended: what they have left in their outputs, and their place in the list.

A job stays while another one that this master knows stands on it: takes weights, a model, videos or records from its
output. Only what ESSP wrote is removed (`essp_common/artifacts/removal.py`). The fences stay, a few bytes: they keep a
process of the removed job that was suspended from writing into the output of a later one.

What past jobs take is recorded in their outputs. It is read there once, and remembered for as long as the specification
there is the same object: otherwise each of thousands of removals would parse the specifications of thousands of jobs.

The last command of the job is published once more, marked as removed, so that the next master does not list the job.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from essp_common.artifacts import layout
from essp_common.artifacts.dependents import Taken, places_of, taken_by
from essp_common.artifacts.removal import Holder, Removal, holder_of, removal_of, remove_job
from essp_common.errors import ConfigError, Conflict, NotFound
from essp_common.job.spec import JobSpec
from essp_common.objects.numbered_log import NumberedLog
from essp_common.objects.port import ObjectStore
from essp_common.pb.v1.messages_pb2 import Control
from essp_common.runtime import ids
from essp_common.wiring import Stores
from essp_engine.preflight.output import Asked
from essp_master.job.job import COMMANDS
from essp_master.lifecycle.job_table import PastJob
from essp_master.lifecycle.runner import JobRunner
from essp_master.lifecycle.starter import JobStarter

_TOGETHER = 16
"""Specifications of other jobs that are read at the same time."""


@dataclass(frozen=True, slots=True)
class RemovedJob:
    """What the removal of a job removes."""

    job: str
    output: str
    """Empty if it is not known, because this release cannot read the job's specification."""
    objects: int
    bytes: int
    kept: tuple[str, ...]
    """Objects in its output that ESSP did not write."""


class JobRemoval:
    """Removes jobs. Takes the runner's lock."""

    def __init__(self, runner: JobRunner, starter: JobStarter, stores: Stores) -> None:
        self._runner = runner
        self._starter = starter
        self._stores = stores

    def look(self, name: str, asked: Asked) -> RemovedJob:
        """What the removal of a job would remove. Raises as `remove` does, except for races."""
        output, _ = self._ended(name)
        if not output:
            return _removed(name, output, None)
        store, holder = self._held(name, output)
        self._check_unused(name, output, asked)
        return _removed(name, output, None if holder is None else removal_of(store))

    def remove(self, name: str, asked: Asked) -> RemovedJob:
        """Remove a job.

        Raises `NotFound`; `Conflict` while it runs, while its trainers save, and while another job stands on it;
        `Unavailable` if a store does not answer, as then that is not known.
        """
        output, team = self._ended(name)
        if not output:
            self._forget(name)
            return _removed(name, output, None)
        store, holder = self._held(name, output)
        if holder is None:  # it was removed by hand, or another job has the output
            self._check_unused(name, output, asked)
            self._forget(name, store)
            return _removed(name, output, None)
        with self._reserved(holder.spec, team), self._starter.written_to_the_end(output):
            self._check_unused(name, output, asked)
            removal = removal_of(store)
            if removal is not None:
                remove_job(store, removal)
            self._forget(name, store)
        return _removed(name, output, removal)

    def _ended(self, name: str) -> tuple[str, str]:
        """Output and team of a job that has ended. Raises `NotFound`, `Conflict`."""
        with self._runner.lock:
            jobs = self._runner.jobs
            if (past := jobs.past(name)) is not None:
                output, team, trainers = past.output, past.team, [trainer.name for trainer in past.trainers]
            else:
                job = jobs[name]
                if not job.state.ended or jobs.is_starting(name):
                    raise Conflict(f"job {name} is {job.state}; stop it first (essp job stop {name})")
                output, team, trainers = job.spec.output, job.team, list(job.spec.trainers)
            up, _ = self._runner.up()
            saving = [trainer for trainer in trainers if ids.trainer_pool(name, trainer) in up]
            if saving:
                raise Conflict(
                    f"a worker of trainer {saving[0]} of job {name} is still up, and may be saving; ask again when it "
                    "has left"
                )
            return output, team

    def _held(self, name: str, output: str) -> tuple[ObjectStore, Holder | None]:
        """The output, and the job in it if it is this one."""
        store = self._stores.under(output)
        holder = holder_of(store)
        return store, holder if holder is not None and holder.spec.name == name else None

    @contextmanager
    def _reserved(self, spec: JobSpec, team: str) -> Iterator[None]:
        """Within the block no job of this name or output starts. Raises `Conflict` if one is being started."""
        with self._runner.lock:
            self._runner.jobs.reserve(spec, Asked(team))
        try:
            yield
        finally:
            with self._runner.lock:
                self._runner.jobs.release(spec.name)

    def _check_unused(self, name: str, output: str, asked: Asked) -> None:
        for other, team, taken in self._taken_from(output, name):
            whose = f"job {other}" if asked.sees(team) else "a job of another team"
            raise Conflict(
                f"{whose} stands on job {name}: its {taken.field} is {taken.uri}; remove that job first, or keep both"
            )

    def _taken_from(self, output: str, name: str) -> Iterator[tuple[str, str, Taken]]:
        """What jobs other than this one take from its output, with their names and teams. Raises `Unavailable`."""
        with self._runner.lock:
            present = [(job.name, job.team, job.spec) for job in self._runner.jobs if job.name != name]
            past = [job for job in self._runner.jobs.past_jobs() if job.summary.name != name]
        folders = places_of(output)
        for other, team, spec in present:
            yield from ((other, team, taken) for taken in taken_by(spec) if taken.is_in(folders))
        with ThreadPoolExecutor(_TOGETHER, "essp-removal") as readers:
            list(readers.map(self._read_takes, past))
        for job in past:
            yield from ((job.summary.name, job.summary.team, taken) for taken in job.takes if taken.is_in(folders))

    def _read_takes(self, job: PastJob) -> None:
        """Read what a job takes, according to its output, unless that was read since the specification there was
        written. Nothing, if there is no job that can be read, or another one."""
        try:
            output = self._stores.under(job.output)
            etag = output.head(layout.SPEC).etag
            if etag == job.spec_etag:
                return
            holder = holder_of(output)
        except (ConfigError, NotFound):
            job.takes, job.spec_etag = (), ""
            return
        job.takes = () if holder is None or holder.spec.name != job.summary.name else taken_by(holder.spec)
        job.spec_etag = etag  # last: another thread may look

    def _forget(self, name: str, output: ObjectStore | None = None) -> None:
        """Forget a job, and have the next master forget it."""
        runner = self._runner
        with runner.lock:
            job = runner.jobs.find(name)
            if job is not None and not job.state.ended:
                raise Conflict(f"job {name} was started again meanwhile; stop it first (essp job stop {name})")
            last = Control()
            if job is not None:
                last.CopyFrom(job.control(COMMANDS[job.state]))
            elif (known := runner.last_command(name)) is not None:
                last.CopyFrom(known)
            else:
                taken = 0 if output is None else NumberedLog(output, layout.FENCES).newest()
                fence = max(taken, runner.fence_of(name))
                last.MergeFrom(Control(job=name, fence=fence, command=Control.STOP))
            last.removed = True
            runner.dispatch.publish_again(last)
            runner.jobs.forget(name)
            runner.history.forget(name)


def _removed(name: str, output: str, removal: Removal | None) -> RemovedJob:
    if removal is None:
        return RemovedJob(name, output, 0, 0, ())
    return RemovedJob(name, output, len(removal.keys), removal.bytes, removal.kept)
