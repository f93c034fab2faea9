"""Runs ESSP as it is deployed: each service is a process, started by its command and configured by its environment.

If a process ends with an error, the test that waits fails with the end of the log. Each process has its own session, so
that all processes it has started can be ended with it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import httpx

from essp_common.job.status import JobStatus
from tests.harness import launcher
from tests.harness.waiting import LONGEST_S

T = TypeVar("T")

_ESSP = ["-m", "essp"]
_LOOK_S = 0.05
_YAML = {"Content-Type": "application/yaml"}
_LOG_LINES = 40


class Process:
    """One `essp ...` process."""

    def __init__(self, arguments: list[str], environment: Mapping[str, str], log: Path) -> None:
        self.arguments = arguments
        self.log = log
        self.popen = launcher.start(arguments, environment, log) if fast(environment) else self._execute(environment)

    def _execute(self, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with self.log.open("wb") as output:
            return subprocess.Popen(
                [sys.executable, *_ESSP, *self.arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def check(self) -> None:
        """Fails if it has ended with an error."""
        assert self.popen.poll() in (None, 0), self.story()

    def story(self) -> str:
        """What it was, how it ended, and what it said last."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES:]
        return "\n".join([f"`essp {' '.join(self.arguments)}` has status {self.popen.poll()}; its log ends:", *lines])

    def members(self) -> list[int]:
        """It and all that it started, as far as they are there: a session is left by nobody by accident."""
        return launcher.members(self.popen.pid)

    def signal_group(self, number: int) -> bool:
        """Signal it and all that it started; False when there is nothing of it left. Signal 0 only asks."""
        members = self.members()
        for pid in members:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return bool(members)

    def exited(self, timeout_s: float) -> int | None:
        """Its exit status; None if it is there for longer than that."""
        try:
            return self.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        """Kill it and all that it started."""
        self.signal_group(signal.SIGKILL)
        self.popen.wait()


class Fleet:
    """The processes of one deployment. Leaving the block ends all of them."""

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        """`environment`: where the servers are. `folder` takes a log of each process."""
        self._environment = {**os.environ, "ESSP_DRAIN_S": f"{LONGEST_S:g}", **environment}
        self._folder = folder
        self._processes: list[Process] = []
        self._started = 0

    def start(self, *arguments: str, **environment: str) -> Process:
        """Start `essp ARGUMENTS`."""
        self._started += 1
        log = self._folder / f"{self._started:02}-{arguments[0]}.log"
        process = Process(list(arguments), {**self._environment, **environment}, log)
        self._processes.append(process)
        return process

    def run(self, *arguments: str, status: int = 0) -> str:
        """What `essp ARGUMENTS` prints to stdout; it has to end with this status."""
        python = launcher.python() if fast(self._environment) else [sys.executable]
        done = subprocess.run(
            [*python, *_ESSP, *arguments], env=self._environment, capture_output=True, text=True, timeout=LONGEST_S
        )
        assert done.returncode == status, (
            f"`essp {' '.join(arguments)}` ended with {done.returncode}: {done.stdout}{done.stderr}"
        )
        return done.stdout

    def kill(self, process: Process) -> None:
        """End one process, and it alone, as if its machine had lost power."""
        self._processes.remove(process)
        process.popen.kill()
        process.popen.wait()
        self.until("what it had started is gone", lambda: not process.signal_group(0) or None)

    def gone(self, process: Process, status: int) -> None:
        """Wait until a process has ended with this status (a signal's number, negated)."""
        self._processes.remove(process)
        self.until(f"{process.arguments} has ended", lambda: process.popen.poll() is not None or None)
        assert process.popen.returncode == status, process.story()

    def ended(self, process: Process) -> None:
        """Wait until a process has ended by itself, which it has to do without an error."""
        self.until(f"{process.arguments} has ended", lambda: process.popen.poll() == 0 or None)
        self._processes.remove(process)

    def until(self, what: str, look: Callable[[], T | None], timeout_s: float = LONGEST_S) -> T:
        """The first thing but None that `look` finds. Fails when time is up, or when a process has failed."""
        deadline = time.monotonic() + timeout_s
        while (found := look()) is None:
            stories = "\n\n".join(process.story() for process in self._processes)
            assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}\n\n{stories}"
            self._watch()
        return found

    def close(self) -> None:
        """Drain all processes; fails if one does not leave in time, or with an error. Nothing of them is left."""
        try:
            for process in self._processes:
                process.popen.terminate()
            deadline = time.monotonic() + LONGEST_S
            for process in self._processes:
                try:
                    process.popen.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    raise AssertionError(f"not drained within {LONGEST_S:g} s: {process.story()}") from None
                # One that was not yet up had nothing in hand to drain.
                assert process.popen.returncode in (0, -signal.SIGTERM), process.story()
        finally:
            for process in self._processes:
                process.end()
            self._processes.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _watch(self) -> None:
        """For a moment, see whether a process fails."""
        for process in self._processes:
            process.check()
        time.sleep(_LOOK_S)


class Api:
    """The REST API of the fleet's master, as a program sees it."""

    def __init__(self, fleet: Fleet, master: Process, token: str) -> None:
        """Wait until it answers."""
        self._fleet = fleet
        self.url = fleet.until("the API listens", lambda: _address(master.log))
        headers = {"Authorization": f"Bearer {token}"}
        # Not verified, since reading the certificates takes long, and this is no TLS.
        self._client = httpx.Client(base_url=self.url, headers=headers, timeout=LONGEST_S, verify=False)
        fleet.until("the master is ready", self._ready)

    def close(self) -> None:
        """Close connections."""
        self._client.close()

    def status(self, job: str) -> JobStatus:
        """The job as it stands."""
        response = self._client.get(f"/v1/jobs/{job}")
        assert response.status_code == 200, response.text
        return JobStatus.model_validate_json(response.content)

    def knows(self, job: str) -> bool:
        """Whether there is such a job."""
        return self._client.get(f"/v1/jobs/{job}").status_code == 200

    def start(self, text: str) -> int:
        """Ask for a job to be started; the status code."""
        return self._client.post("/v1/jobs", content=text, headers=_YAML).status_code

    def ask(self, job: str, action: str) -> int:
        """Ask for `pause`, `resume` or `stop`; the status code."""
        return self._client.post(f"/v1/jobs/{job}:{action}").status_code

    def until(self, job: str, what: str, condition: Callable[[JobStatus], bool]) -> JobStatus:
        """The job's status, once the condition holds. Fails when the job fails, or when time is up."""

        def look() -> JobStatus | None:
            status = self.status(job)
            assert status.state != "failed", status.reason
            return status if condition(status) else None

        try:
            return self._fleet.until(f"job {job}: {what}", look)
        except AssertionError as error:
            with suppress(httpx.TransportError):  # the master may be gone
                error.add_note(f"the job's status: {self._client.get(f'/v1/jobs/{job}').text}")
            raise

    def _ready(self) -> bool | None:
        try:
            return self._client.get("/readyz").status_code == 200 or None
        except httpx.TransportError:
            return None


def fast(environment: Mapping[str, str]) -> bool:
    """Whether a process needs no interpreter of its own: nothing is there that one runs when it starts."""
    folders = environment.get("PYTHONPATH", "").split(os.pathsep)
    return not any(Path(folder, "sitecustomize.py").exists() for folder in filter(None, folders))


def _address(log: Path) -> str | None:
    found = re.search(r"listening on (http://\S+)", log.read_text(encoding="utf-8"))
    return found and found[1]
