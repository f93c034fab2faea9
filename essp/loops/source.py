"""Where the clips of loaders come from: a job of this process, which several of them may share, or one of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol
from weakref import WeakValueDictionary, finalize

from essp.loops.membership import Membership
from essp.loops.running_job import ClusterJob, OwnJob, RunningJob
from essp_common.errors import ConfigError, EsspError
from essp_common.job.position import Position
from essp_common.job.spec import JobSpec
from essp_common.records.rows import open_data
from essp_common.runtime import ids
from essp_common.runtime.config import Settings
from essp_common.runtime.forks import Mutex
from essp_common.runtime.threads import guarded
from essp_common.validation import suggested
from essp_engine.planning.phases import Phases
from essp_engine.preflight.preflight import Preflight

_CLIPS_A_DECODER = 4
"""Clips that the default budget holds at least, for each of them: one in the making, and some on the way."""


class Loop(Protocol):
    """A loader, as its source sees it."""

    def position(self) -> Position | None:
        """Where its next batch begins; None: with the next pass."""


class Source(Protocol):
    """What a loader needs of its job, whether it runs already or not."""

    @property
    def spec(self) -> JobSpec: ...

    @property
    def classes(self) -> Sequence[str]: ...

    @property
    def phases(self) -> Phases: ...

    def join(self, consumer: str, start: Position | None) -> tuple[RunningJob, Membership]:
        """Take part in the job, which is started if it does not run; the caller closes both."""

    def leave(self, consumer: str) -> None:
        """A loop that has not joined will not do so."""


class OwnSource:
    """A job of this process. It starts with its first loop, and ends with its last one. Thread-safe.

    The loops that are there when it starts begin together, so that none has to catch up with another.
    """

    def __init__(
        self, spec: JobSpec, check: Callable[[JobSpec], Preflight], settings: Settings, decoders: int, bounded: bool
    ) -> None:
        """`check` may be asked again, for more epochs. `bounded`: the budget is the user's."""
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
        """Of loops that have not asked for a batch yet."""
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
        """Remember a loop; the name that it has. Raises `ConfigError` if there are as many as there may be."""
        with self._lock.held:
            free = next((name for name in self.spec.consumers if name not in self._loops), None)
            if free is None:
                raise ConfigError(
                    f"{len(self.spec.consumers)} share the clips already, and no more may; give the first one "
                    f"loops={len(self.spec.consumers) + 1} or more",
                    field="loops",
                    code="range",
                )
            self._loops[free] = loop
            finalize(loop, _in_a_thread, self.leave, free).atexit = False
            return free

    def join(self, consumer: str, start: Position | None) -> tuple[OwnJob, Membership]:
        """Take part in the job, which is started if it does not run; the caller closes both."""
        with self._lock.held:
            job = self._job
            if job is None or not job.in_use:
                return self._start(consumer, start)
            if start is not None and start.phase_index >= self.spec.epochs:
                raise EsspError(f"{self.spec.epochs} epochs are the most that loops can share; close the others first")
            early = self._early.pop(consumer, None)
            if early is not None and early.start == start:
                return job, early
            if early is not None:
                early.leave()
            else:
                job.share()
            return job, _member(job, consumer, start)

    def leave(self, consumer: str) -> None:
        """A loop that has not joined will not do so."""
        with self._lock.held:
            early, job = self._early.pop(consumer, None), self._job
        if early is not None and job is not None and job.in_use:
            early.leave()
            job.close()

    def reach(self, start: Position) -> None:
        """Have as many epochs as it takes to begin there."""
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
        """A copy, for another process, has a job of its own."""
        return {"spec": self.spec, "check": self._check, "settings": self._settings} | {
            "decoders": self._decoders,
            "bounded": self._bounded,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def _member(job: OwnJob, consumer: str, start: Position | None) -> Membership:
    """A loop in a job, of which it takes over one use."""
    try:
        return Membership(job, ids.loop_consumer(consumer), start)
    except BaseException:
        job.close()
        raise


def _in_a_thread(leave: Callable[[str], None], consumer: str) -> None:
    """The garbage collector may run in a thread that has the lock."""
    guarded("essp-loop-leave", partial(leave, consumer)).start()


class ClusterSource:
    """A job that a master elsewhere runs."""

    def __init__(self, name: str, settings: Settings) -> None:
        """Raises `ConfigError` for a job that nobody has started or that has no `consumers`, and `EsspError` for one
        that has ended."""
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
        """The consumer that is meant. Raises `ConfigError` if there is no such one."""
        names = self.spec.consumers
        if consumer is None and len(names) == 1:
            [consumer] = names
        if consumer not in names:
            raise ConfigError(
                f"{self._name} has no consumer {consumer!r}; {suggested(consumer or '', names)}",
                field="consumer",
                code="unknown",
            )
        return consumer

    def join(self, consumer: str, start: Position | None) -> tuple[RunningJob, Membership]:
        """Take part in the job; the caller closes both."""
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
        """A loop takes part only while it has batches."""

    def __getstate__(self) -> dict[str, Any]:
        return {"name": self._name, "settings": self._settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]
