"""Keeps the processes of a deployment running, as an orchestrator would, while somebody hits them.

A process that was hit is started again as soon as it is gone. One that has a twin may leave, since only one of the two
can own the training; the other one takes its place. A process that ends in any other way, or does not drain when it is
asked to, is a finding: `unasked` has its story. All from one thread: `tend` is called often.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from essp.cli.main import EXIT_CODES
from essp_common.errors import Conflict
from tests.integration.fleet import Process
from tests.soak.killer import Fault

_DRAIN_S = 150.0
"""ESSP_DRAIN_S is 120: a process that is still there then does not keep its own limit."""
_REPLACED = dict(EXIT_CODES)[Conflict]
"""Exit status of a process that another one has taken over from."""


@dataclass(slots=True)
class _Member:
    """One process that is to be there."""

    arguments: tuple[str, ...]
    process: Process
    ends: bool
    """It ends by itself when its work is done."""
    hit: bool = False
    """It was killed or asked to leave."""
    leaves_by: float | None = None
    wakes_at: float | None = None


class Supervisor:
    """The processes, by name. Leaving the block kills what is left of them."""

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        """`folder` takes a log of each process."""
        self._environment = environment
        self._folder = folder
        self._members: dict[str, _Member] = {}
        self._older: dict[str, Process] = {}
        """Of two processes of one name, the one that was there before."""
        self._all: list[Process] = []
        self.faults: dict[str, Counter[str]] = {}
        """Kind -> pool, cache or topic -> how often it was hit so."""
        self.restarts = 0
        self.unasked: list[str] = []

    def start(self, name: str, *arguments: str, ends: bool = False) -> None:
        """Have a process `essp ARGUMENTS` from now on. `ends`: until it has ended by itself without an error."""
        self._members[name] = _Member(arguments, self._process(name, arguments), ends)

    def log(self, name: str) -> Path:
        """The log of the process of this name that was started last."""
        return self._members[name].process.log

    def processes(self) -> dict[str, Process]:
        """Those that are to be there now."""
        return {name: member.process for name, member in self._members.items()}

    def hit(self, fault: Fault) -> bool:
        """Do it. False: its victim is not there at this moment, or is dealing with another fault."""
        member = self._members.get(fault.victim)
        if member is None or member.hit or member.wakes_at is not None or member.process.popen.poll() is not None:
            return False
        popen = member.process.popen
        if fault.kind == "twin":
            if fault.victim in self._older:
                return False
            self._older[fault.victim] = member.process
            member.process = self._process(fault.victim, member.arguments)
        elif fault.kind == "kill":
            popen.kill()
            member.hit = True
        elif fault.kind == "term":
            popen.terminate()
            member.hit, member.leaves_by = True, time.monotonic() + _DRAIN_S
        else:
            popen.send_signal(signal.SIGSTOP)
            member.wakes_at = time.monotonic() + fault.frozen_s
        self.count(fault)
        return True

    def count(self, fault: Fault) -> None:
        """Note that it was made."""
        name = fault.victim if fault.kind == "poison" else fault.victim.partition(".")[0]
        self.faults.setdefault(fault.kind, Counter())[name] += 1

    def tend(self) -> None:
        """Start again what is gone, and wake up what has slept for long enough."""
        now = time.monotonic()
        for name, member in list(self._members.items()):
            if member.wakes_at is not None and now >= member.wakes_at:
                member.process.popen.send_signal(signal.SIGCONT)
                member.wakes_at = None
            status = member.process.popen.poll()
            if status is None:
                if member.leaves_by is not None and now >= member.leaves_by:
                    self.unasked.append(f"not drained within {_DRAIN_S:g} s: {member.process.story()}")
                    member.process.popen.kill()
                    member.leaves_by = None
                continue
            if status == _REPLACED and name in self._older:
                member.process = self._older.pop(name)
                continue
            if not member.hit and not (member.ends and status == 0):
                self.unasked.append(member.process.story())
            if member.hit and status not in (0, -signal.SIGKILL, -signal.SIGTERM):
                self.unasked.append(member.process.story())
            if member.hit or status != 0:
                self._members[name] = _Member(member.arguments, self._process(name, member.arguments), member.ends)
                self.restarts += 1
            elif member.ends:
                del self._members[name]

        for name, process in list(self._older.items()):
            status = process.popen.poll()
            if status is not None:
                del self._older[name]
                if status not in (0, _REPLACED):
                    self.unasked.append(process.story())

    def twins(self) -> list[str]:
        """Names of which there are two processes."""
        return list(self._older)

    def wake(self) -> None:
        """End every `stop` now."""
        for member in self._members.values():
            if member.wakes_at is not None:
                member.wakes_at = 0.0
        self.tend()

    def forget(self, prefix: str) -> None:
        """Have the processes whose names begin so no more."""
        for name in [name for name in self._members if name.startswith(prefix)]:
            member = self._members.pop(name)
            member.process.end()
        for name in [name for name in self._older if name.startswith(prefix)]:
            older = self._older.pop(name)
            self.unasked.append(f"two processes of one name until the end: {older.story()}")
            older.end()

    def drain(self, timeout_s: float = _DRAIN_S) -> None:
        """Ask all to leave, and wait until they have."""
        self.wake()
        for member in self._members.values():
            member.process.popen.terminate()
        deadline = time.monotonic() + timeout_s
        for member in self._members.values():
            if member.process.exited(max(0.0, deadline - time.monotonic())) is None:
                self.unasked.append(f"not drained at the end: {member.process.story()}")
        self._members.clear()

    def left(self) -> int:
        """Processes that are still there, of all that were ever started and of what these had started."""
        return sum(len(process.members()) for process in self._all)

    def close(self) -> None:
        """Nothing is left."""
        for process in self._all:
            process.end()

    def _process(self, name: str, arguments: tuple[str, ...]) -> Process:
        number = sum(1 for process in self._all if process.log.name.startswith(f"{name}-"))
        process = Process(list(arguments), self._environment, self._folder / f"{name}-{number:03}.log")
        self._all.append(process)
        return process
