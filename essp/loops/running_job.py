"""The job of loops: one in this process, which they share, or one in a cluster."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Protocol

from essp.embedded.composition import Embedded, EmbeddedOptions
from essp_common.errors import ConfigError, EsspError
from essp_common.job.spec import JobSpec, stored_spec
from essp_common.job.status import JobState, JobStatus
from essp_common.messages.control import ENDED, ControlFeed, run_of
from essp_common.messages.snapshot import completed
from essp_common.pb.v1.messages_pb2 import Control, PhasePlan
from essp_common.runtime.at_exit import at_exit
from essp_common.runtime.config import Settings
from essp_common.runtime.service import Service
from essp_common.runtime.temporary import TemporaryFolder
from essp_common.validation import suggested
from essp_common.wiring import Adapters
from essp_engine.preflight.preflight import Preflight

_START_S = 60.0
_FIND_S = 5.0
_OUTPUT = "job"


class RunningJob(Protocol):
    """The part of a job that a loop needs."""

    spec: JobSpec
    phases: Sequence[PhasePlan]
    adapters: Adapters
    control: ControlFeed
    cache_url: str

    @property
    def fence(self) -> int:
        """The fence of the master that runs it."""

    @property
    def since(self) -> int:
        """The fence with which its run began."""

    @property
    def over(self) -> bool:
        """Whether every loop of the job has taken all of its clips."""

    def check(self) -> None:
        """Raises the error that stopped the job, or `EsspError` with the reason of its failure."""

    def status(self) -> JobStatus | None:
        """The current status; None: not known here."""

    def close(self) -> None:
        """End one use of the job; the last one releases its resources."""


class OwnJob:
    """A job in this process, with all its services; its output is a temporary folder. It ends with its last loop.

    A job that was not closed ends with its process; child processes end with their parent, also if it is killed.
    """

    def __init__(self, found: Preflight, settings: Settings, decoders: int) -> None:
        """Start the job of `found`, without loops. Raises `EsspError` if it does not start."""
        self.pid = os.getpid()
        self._users = 1
        self._lock = threading.Lock()
        self._ending = threading.Lock()
        with ExitStack() as stack:
            self.folder = os.path.realpath(stack.enter_context(TemporaryFolder("loader")))
            """The folder of its output."""
            root = f"file://{self.folder}"
            self.spec = found.spec.model_copy(update={"output": f"{root}/{_OUTPUT}"})
            self.phases: Sequence[PhasePlan] = found.phases.plans
            self.cache_url = "memory://"
            settings = settings.model_copy(
                update={"bus": "memory://", "cache": self.cache_url, "stores": (*settings.stores, root)}
            )
            options = EmbeddedOptions(decoders=decoders, consumers=_no_services)
            self._embedded = Embedded(replace(found, spec=self.spec), settings, options)
            stack.enter_context(self._embedded)
            self.adapters, self.control = self._embedded.adapters, self._embedded.control
            command = self.control.wait(self.spec.name, _START_S)
            if command is None:
                raise EsspError(f"the job of this loop did not start within {_START_S:.0f} s; see the log")
            self.fence, self.since = command.fence, run_of(command)
            self._resources = stack.pop_all()
        # The threads of a job are daemons, so the process can end without `close`; its folder must be removed then.
        self._stay = at_exit(self._end)

    @property
    def in_use(self) -> bool:
        """Whether it runs, in this process and not in one from which it was forked."""
        return self._users > 0 and self.pid == os.getpid()

    def share(self) -> OwnJob:
        """Begin another use of the job. Raises `EsspError` if it has ended."""
        with self._lock:
            if not self._users:
                raise EsspError("the job of this loop has ended")
            self._users += 1
        return self

    def pause(self) -> None:
        """Issue no clips until `resume`."""
        self._embedded.master.pause(self.spec.name)

    def resume(self) -> None:
        """Continue to issue clips."""
        self._embedded.master.resume(self.spec.name)

    @property
    def over(self) -> bool:
        """Whether every loop of the job has taken all of its clips."""
        return self._embedded.state is JobState.COMPLETED

    def check(self) -> None:
        """Raises the error that stopped the job, or `EsspError` with the reason of its failure."""
        if self._embedded.ended(0.0):
            status = self._embedded.status()
            if status.state is not JobState.COMPLETED:
                raise EsspError(status.reason or f"the job is {status.state}")

    def status(self) -> JobStatus:
        """The current status."""
        return self._embedded.status()

    def close(self) -> None:
        """End one use of the job; the last one ends its threads and processes, and removes its files. Thread-safe."""
        if self.pid != os.getpid():  # a fork has neither the threads nor the child processes
            return
        with self._lock:
            self._users -= 1
            if self._users:
                return
        self._end()

    def _end(self) -> None:
        if self.pid != os.getpid():
            return
        with self._ending:  # at the end of the process, wait for another thread that is closing the job
            self._resources.close()
        self._stay()


class ClusterJob:
    """A job that a master of a cluster runs; it is found by its name on the bus."""

    def __init__(self, name: str, settings: Settings) -> None:
        """Raises `ConfigError` if the job was not started or has no `consumers`, and `EsspError` if it has ended."""
        with ExitStack() as stack:
            self.cache_url = settings.cache
            self.adapters = Adapters.from_settings(settings)
            stack.callback(self.adapters.close)
            self.control = ControlFeed(self.adapters.bus)
            stack.callback(self.control.close)
            command = self.control.wait(name, _FIND_S)
            if command is None:
                others = suggested(name, self.control.jobs(), "jobs of this bus: ")
                raise ConfigError(
                    f"no master has started a job {name!r} on {settings.bus}; {others}", field="job", code="not_found"
                )
            whole = completed(command, self.adapters.stores)
            self.spec = stored_spec(whole.snapshot.spec_json, f"job {name}")
            if not self.spec.consumers:
                raise ConfigError(
                    f"{name} has no `consumers`, so no loop can join it; add them to its file",
                    field="job",
                    code="unsupported",
                )
            self.phases: Sequence[PhasePlan] = tuple(whole.snapshot.phases)
            self.check()
            self._resources = stack.pop_all()

    @property
    def fence(self) -> int:
        """The fence of the master that runs it."""
        command = self.control.latest(self.spec.name)
        return 0 if command is None else command.fence

    @property
    def since(self) -> int:
        """The fence with which its run began."""
        command = self.control.latest(self.spec.name)
        return 0 if command is None else run_of(command)

    @property
    def over(self) -> bool:
        """Whether every loop of the job has taken all of its clips."""
        return self.control.state(self.spec.name) == Control.COMPLETE

    def check(self) -> None:
        """Raises `EsspError` if the job has ended before it was complete."""
        command = self.control.latest(self.spec.name)
        if command is not None and command.command in ENDED and command.command != Control.COMPLETE:
            word = Control.Command.Name(command.command).lower()
            raise EsspError(
                f"job {self.spec.name} has ended ({word}): {command.reason or 'start it again to continue'}"
            )

    def status(self) -> None:
        """None; `essp job get` shows the status."""

    def close(self) -> None:
        """Disconnect from the servers."""
        with suppress(EsspError):
            self._resources.close()


def _no_services(*_: object) -> Sequence[Service]:
    """No services: the consumers are loops of the caller."""
    return ()
