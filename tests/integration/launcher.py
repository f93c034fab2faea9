"""Starts `essp ...` processes quickly, by forking a process that has loaded the libraries but no module of ESSP.

    test ──arguments, environment, log──▶ preloaded ──fork──▶ keeper ──fork──▶ essp ...
      ▲                                                         │
      └────────────────────── pid, exit status ─────────────────┘

Each started process has its own session, environment and log. Its keeper runs outside that session, and only waits for
it to end.

Modules of ESSP are imported after the environment is set, because they read failpoints on import. There are two
preloaded processes, with and without torch, because loading torch takes seconds and only some commands need it.

When a test process ends, for any reason, all processes started for it end, too.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path

_LIBRARIES = (
    "av",
    "boto3.session",
    "botocore.retries.standard",
    "cv2",
    "fastapi",
    "hiredis",
    "httpx",
    "kafka",
    "numpy",
    "prometheus_client",
    "pyarrow.parquet",
    "pydantic_settings",
    "redis.cluster",
    "rich.console",
    "typer",
    "uvicorn",
    "yaml",
)
_WITH_TORCH = ("torch", "torch.distributed", "essp_common.learning.torchvision_compat", "safetensors.torch")
_TORCH_COMMANDS = frozenset({"trainer", "aggregator", "predictor"})
_ROOT = Path(__file__).parents[2]
_PR_SET_PDEATHSIG = 1
_LARGEST_REQUEST = 1 << 18
_NUMBER = struct.Struct("i")


class Forked:
    """A process, with the part of `subprocess.Popen` that tests use."""

    def __init__(self, status: int) -> None:
        """`status`: where the keeper writes pid and exit status."""
        self.returncode: int | None = None
        self._status = status
        self.pid = self._read()

    def poll(self) -> int | None:
        """Its exit status (a signal's number, negated); None while it runs."""
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self._end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended. Raises `subprocess.TimeoutExpired`."""
        if self.returncode is None and not select.select([self._status], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("essp", timeout or 0.0)
        return self._end() if self.returncode is None else self.returncode

    def send_signal(self, number: int) -> None:
        """Signal it, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _end(self) -> int:
        self.returncode = self._read()
        os.close(self._status)
        return self.returncode

    def _read(self) -> int:
        data = os.read(self._status, _NUMBER.size)
        if len(data) < _NUMBER.size:
            raise RuntimeError("the process that starts others has died")
        return int(_NUMBER.unpack(data)[0])


def start(arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> Forked:
    """Start `essp ARGUMENTS`, which writes to `log`."""
    channel = _preloaded(arguments[0] in _TORCH_COMMANDS)
    request = json.dumps([list(arguments), dict(environment)]).encode()
    read, write = os.pipe()
    with log.open("wb") as output:
        socket.send_fds(channel, [request], [output.fileno(), write])
    os.close(write)
    return Forked(read)


@cache
def _preloaded(torch: bool) -> socket.socket:
    """The way to a process that has loaded everything."""
    from tests.harness.leaks import lasting  # not at the top: the processes that are started import this module

    with lasting():
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST_REQUEST)
        command = [sys.executable, "-m", __name__, str(theirs.fileno()), *(["torch"] if torch else [])]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], cwd=_ROOT)
        theirs.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _serve(channel: socket.socket) -> list[str] | None:
    """Fork one process for each request until nobody can ask any more; its arguments, in that process alone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for keepers
    while True:
        request, descriptors, _, _ = socket.recv_fds(channel, _LARGEST_REQUEST, 2)
        if not request:
            return None
        if os.fork() == 0:
            _end_with_parent()
            channel.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _keep(*descriptors)
            arguments, environment = json.loads(request)
            os.environ.clear()
            os.environ.update(environment)
            sys.path[1:1] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
            return list(arguments)
        for descriptor in descriptors:
            os.close(descriptor)


def _keep(log: int, status: int) -> None:
    """Fork, and return in the child alone: in a session of its own, with nothing to read, and its output in the log."""
    pid = os.fork()
    if pid:
        os.write(status, _NUMBER.pack(pid))
        os.write(status, _NUMBER.pack(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
        os._exit(0)
    _end_with_parent()
    os.setsid()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.close(status)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for library in (*_LIBRARIES, *(_WITH_TORCH if sys.argv[2:] else ())):
            import_module(library)
    gc.freeze()
    arguments = _serve(channel)
    if arguments is None:
        return
    sys.argv = ["essp", *arguments]
    sys.orig_argv = [sys.executable, "-m", "essp.cli.main", *arguments]  # a master starts its workers likewise
    from essp.cli.main import main

    main()


if __name__ == "__main__":
    _main()
