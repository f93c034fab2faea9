"""The sources of the clips of loaders: a job in this process, which several loaders may share, or one in a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol
from weakref import WeakValueDictionary, finalize

from essp.loops.membership import Membership
from essp.loops.running_job import ClusterJob, OwnJob, RunningJob
from essp_common.errors import ConfigCode, ConfigError, EsspError
from essp_common.job.position import Position
from essp_common.job.spec import JobSpec
from essp_common.quantities import counted
from essp_common.records.rows import open_data
from essp_common.runtime import ids
from essp_common.runtime.config import Settings
from essp_common.runtime.forks import Mutex
from essp_common.runtime.threads import guarded
from essp_common.validation import suggested
from essp_engine.planning.phases import Phases
from essp_engine.preflight.preflight import Preflight

_CLIPS_A_DECODER = 4
"""The least number of clips of the default budget for each decoder: one being decoded, and some in transit."""


class Loop(Protocol):
    """The part of a loader that its source needs."""

    def position(self) -> Position | None:
        """The position of its next batch; None: the beginning of the next pass."""


class Source(Protocol):
    """The job of a loader, whether it already runs or not."""

    @property
    def spec(self) -> JobSpec: ...

    @property
    def classes(self) -> Sequence[str]: ...

    @property
    def phases(self) -> Phases: ...

    def join(self, consumer: str, start: Position | None) -> tuple[RunningJob, Membership]:
        """Join the job, and start it if it does not run. The caller closes both results."""

    def leave(self, consumer: str) -> None:
        """Give up the membership of a loop that has not joined yet."""


class OwnSource:
    """A job in this process. It starts with its first loop, and ends with its last one. Thread-safe.

    The loops that exist when it starts begin together, so that none has to catch up with another.
    """

    def __init__(
        self, spec: JobSpec, check: Callable[[JobSpec], Preflight], settings: Settings, decoders: int, bounded: bool
    ) -> None:
        """`check` may be called again, for more epochs. `bounded`: the user has set the budget."""
        self._check = check
        self._settings = settings
        self._decoders = decoders
        self._bounded = bounded
        self._found = check(spec)
        self._reset()

    def _reset(self) -> None:
        self._lock = Mutex(reentrant=True)
        self._job: OwnJob | None = None
        self._early: dict[str, Membership] = {}
        """The memberships of loops that have not yet asked for a batch."""
        self._loops: WeakValueDictionary[str, Loop] = WeakValueDictionary()

    @property
    def spec(self) -> JobSpec:
        """The job."""
        return self._found.spec

    @property
    def classes(self) -> Sequence[str]:
        """Class names, by class id."""
        return self._found.classes

    @property
    def phases(self) -> Phases:
        """Its epochs."""
        return self._found.phases

    def add(self, loop: Loop) -> str:
        """Add a loop; returns its name. Raises `ConfigError` if there are already as many as the limit."""
        with self._lock.held:
            free = next((name for name in self.spec.consumers if name not in self._loops), None)
            if free is None:
                count = len(self.spec.consumers)
                raise ConfigError(
                    f"{counted(count, 'loop')} at most may share these clips; make the loader with "
                    f"limits=essp.Limits(loops={count + 1})",
                    field="limits.loops",
                    code="range",
                )
            self._loops[free] = loop
            finalize(loop, _in_a_thread, self.leave, free).atexit = False
            return free

    def join(self, consumer: str, start: Position | None) -> tuple[OwnJob, Membership]:
        """Join the job, and start it if it does not run. The caller closes both results."""
        with self._lock.held:
            job = self._job
            if job is None or not job.in_use:
                return self._start(consumer, start)
            if start is not None and start.phase_index >= self.spec.epochs:
                raise EsspError(
                    f"loops can share at most {self.spec.epochs} epochs; close the other loops, or raise limits.epochs"
                )
            early = self._early.pop(consumer, None)
            if early is not None and early.start == start:
                return job, early
            if early is not None:
                early.leave()
            else:
                job.share()
            return job, _member(job, consumer, start)

    def leave(self, consumer: str) -> None:
        """Give up the membership of a loop that has not joined yet."""
        with self._lock.held:
            early, job = self._early.pop(consumer, None), self._job
        if early is not None and job is not None and job.in_use:
            early.leave()
            job.close()

    def reach(self, start: Position) -> None:
        """Give the job enough epochs to begin at `start`."""
        with self._lock.held:
            if start.phase_index >= self.spec.epochs:
                epochs = (start.phase_index // self.spec.epochs + 1) * self.spec.epochs
                self._found = self._check(self.spec.model_copy(update={"epochs": epochs}))

    def _start(self, consumer: str, start: Position | None) -> tuple[OwnJob, Membership]:
        if start is not None:
            self.reach(start)
        found = self._found if self._bounded else self._found.with_budget(_CLIPS_A_DECODER * self._decoders)
        self._job = job = OwnJob(found, self._settings, self._decoders)
        others = {name: loop for name, loop in self._loops.items() if name != consumer}
        mine: Membership | None = None
        try:
            if others:
                job.pause()
            for name, loop in others.items():
                self._early[name] = _member(job.share(), name, loop.position())
            mine = Membership(job, ids.loop_consumer(consumer), start)
            if others:
                for membership in (mine, *self._early.values()):
                    membership.began()
                job.resume()
        except BaseException:
            for name in others:
                self.leave(name)
            if mine is not None:
                mine.leave()
            job.close()
            raise
        return job, mine

    def __getstate__(self) -> dict[str, Any]:
        """A copy in another process runs its own job."""
        return {"spec": self.spec, "check": self._check, "settings": self._settings} | {
            "decoders": self._decoders,
            "bounded": self._bounded,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def _member(job: OwnJob, consumer: str, start: Position | None) -> Membership:
    """The membership of a loop. Takes ownership of one use of `job`, and gives it back if the loop cannot join."""
    try:
        return Membership(job, ids.loop_consumer(consumer), start)
    except BaseException:
        job.close()
        raise


def _in_a_thread(leave: Callable[[str], None], consumer: str) -> None:
    """In a new thread, since the garbage collector may run in a thread that holds the lock."""
    guarded("essp-loop-leave", partial(leave, consumer)).start()


class ClusterSource:
    """A job that a master of a cluster runs."""

    def __init__(self, name: str, settings: Settings) -> None:
        """Raises `ConfigError` if the job was not started or has no `consumers`, and `EsspError` if it has ended."""
        self._name = name
        self._settings = settings
        job = ClusterJob(name, settings)
        try:
            self.spec = job.spec
            catalog = open_data(job.spec, job.adapters.stores)
            self.classes: Sequence[str] = tuple(catalog.classes)
            self.phases = Phases(job.spec, catalog)
        finally:
            job.close()

    def name_of(self, consumer: str | None) -> str:
        """The consumer to join; None: the only one. Raises `ConfigError` if the job has no such consumer."""
        names = self.spec.consumers
        if consumer is None and len(names) == 1:
            [consumer] = names
        if consumer not in names:
            code: ConfigCode = "missing" if consumer is None else "unknown"
            raise ConfigError(
                f"job {self._name} has no consumer {consumer or ''!r}; {suggested(consumer or '', names)}",
                field="consumer",
                code=code,
            )
        return consumer

    def join(self, consumer: str, start: Position | None) -> tuple[RunningJob, Membership]:
        """Join the job. The caller closes both results."""
        if start is not None and start.phase_index >= self.spec.epochs:
            raise EsspError(
                f"job {self._name} has {self.spec.epochs} epochs, and all of them are over; start it with more"
            )
        job = ClusterJob(self._name, self._settings)
        try:
            return job, Membership(job, ids.loop_consumer(consumer), start)
        except BaseException:
            job.close()
            raise

    def leave(self, consumer: str) -> None:
        """Nothing to do: a loop joins a job of a cluster only when it asks for its first batch."""

    def __getstate__(self) -> dict[str, Any]:
        return {"name": self._name, "settings": self._settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]
