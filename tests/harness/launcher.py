"""Starts `essp ...` processes and children of decoders quickly, by forking a process that has loaded all they import.

    test ──arguments, environment, files──▶ preloaded ──fork──▶ keeper ──fork──▶ essp ...
      ▲                                                           │
      └─────────────────────── pid, exit status ──────────────────┘

Each started process has its own session, environment, folder and output. Its keeper runs outside that session, and only
waits for it to end.

What is imported may not depend on the environment, which a process gets after it was forked. Failpoints do, so they
are armed then. There are preloaded processes of several kinds: with torch, which takes seconds to load and which only
some commands need, without it, with what the children of decoders load and nothing else, with what reads the facts of
videos for catalogs, and with what tests import, for the test workers themselves.

What is started as a command of its own, by a shell or by `subprocess`, takes `python()` for its interpreter: a small
program that asks for a fork, and passes on signals and exit status (`forked_python.py`).

All workers of a run share them. Each imports its modules at the first connection, and forks one process per worker,
which then forks what that worker asks for. A test process without workers starts its own.

When a test process ends, for any reason, all processes started for it end, too.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import runpy
import select
import shlex
import signal
import socket
import struct
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

from essp_common.runtime import failpoints

_MODULES = (
    "anyio._backends._asyncio",
    "av",
    "boto3.s3.inject",
    "botocore.retries.standard",
    "cv2",
    "essp.cli.extractor",
    "essp.cli.main",
    "essp_aggregator.main",
    "essp_common.bus.kafka",
    "essp_common.cache.redis",
    "essp_common.objects.s3",
    "essp_decoder.main",
    "essp_extractor.features.flow",
    "essp_extractor.features.rgb",
    "essp_extractor.main",
    "essp_master.main",
    "essp_trainer.main",
    "fastapi",
    "hiredis",
    "httpx",
    "numpy.ma",
    "pydantic.v1",
    "redis.cluster",
    "typer._adapters",
    "uvicorn.loops.asyncio",
)
"""What a process has imported at its end, or a module that imports it."""
_TORCH = (
    "essp_predictor.main",
    "essp_trainer.distributed.ranks",
    "essp_trainer.service",
    "torch._dynamo",  # torch loads its compiler with the first optimizer
)
_TESTS = (
    "essp.audit.invariants",
    "essp.bench.sources",
    "essp.report.page",
    "essp_engine.aggregation.attention",
    "essp_engine.aggregation.linear",
    "essp_engine.aggregation.pooling",
    "essp_extractor.features.trajectories",
    "fsspec",
    "hypothesis.extra.numpy",
    "kubernetes",
    "matplotlib.axes",
    "moto.core",
    "mpl_toolkits.mplot3d",
    "schemathesis.engine.summary",
    "schemathesis.generation.hypothesis.builder",
    "schemathesis.pytest",
    "schemathesis.reporting.html.model",
    "schemathesis.specs.openapi",
    "scipy.optimize",
    "scipy.stats",
    "sklearn.linear_model",
)
"""What the modules of tests import."""
_PRELOADED = {
    "plain": _MODULES,
    "torch": (*_MODULES, *_TORCH),
    "child": ("essp_engine.decoding.child",),
    "worker": (*_MODULES, *_TORCH, *_TESTS),
    "probe": ("essp_engine.decoding.probing", "essp_engine.video.probe", "essp_common.objects.s3"),
}
_ESSP, RANK = "essp.cli.main:main", "essp_trainer.main:as_process"
_PYTHON = ""
"""The entry of a process that runs Python code."""
_CHILDREN = {"child": "essp_engine.decoding.child:main", "probe": "essp_engine.decoding.probing:main"}
_SHARED = "ESSP_TEST_PRELOADED"
"""The environment variable with the folder in which preloaded processes wait for all workers."""
_TORCH_COMMANDS = frozenset({"trainer", "predictor", RANK})
_ROOT = Path(__file__).parents[2]
_FORKED_PYTHON = Path(__file__).with_name("forked_python.py")
_PR_SET_PDEATHSIG = 1
_LARGEST_REQUEST = 1 << 18
_MOST_FILES = 8
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
            with suppress(ProcessLookupError):  # its keeper knows, and has not said so yet
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


def start(arguments: Sequence[str], environment: Mapping[str, str], log: Path, entry: str = _ESSP) -> Forked:
    """Start `essp ARGUMENTS`, which writes to `log`; or another entry point: `RANK`."""
    torch = not _TORCH_COMMANDS.isdisjoint((entry, arguments[0]))
    with log.open("wb") as output, open(os.devnull, "rb") as nothing:
        streams = [nothing.fileno(), output.fileno(), output.fileno()]
        return _forked("torch" if torch else "plain", entry, arguments, environment, streams)


def python(kind: str = "torch") -> list[str]:
    """The command of a Python that has imported what ESSP does: a fork. Where no workers share it: Python itself."""
    shared = os.environ.get(_SHARED)
    return forked_python(Path(shared), kind) if shared else [sys.executable]


def essp_program(folder: Path) -> Path:
    """A program `essp` in the folder, for whatever starts it by its path."""
    program = folder / "essp"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(python())} -m essp "$@"\n')
    program.chmod(0o755)
    return program


def forked_python(folder: Path, kind: str) -> list[str]:
    """The command of a Python that is forked from the preloaded process of this kind that waits in the folder."""
    return [sys.executable, "-E", "-S", str(_FORKED_PYTHON), str(folder), kind]


def start_child(kind: str, files: Sequence[int], environment: Mapping[str, str]) -> Forked:
    """Start a `child` of a decoder, or a `probe`. It reads and writes where this process does, and gets these files."""
    return _forked(kind, _CHILDREN[kind], (), environment, [0, 1, 2], files)


def _forked(
    preloaded: str,
    entry: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    streams: Sequence[int],
    files: Sequence[int] = (),
) -> Forked:
    """`streams`: stdin, stdout and stderr. The numbers that `files` have in the process are its last arguments."""
    request = json.dumps([entry, list(arguments), dict(environment)]).encode()
    read, write = os.pipe()
    folder = os.open(".", os.O_RDONLY)  # which may have no name any more
    socket.send_fds(_preloaded(preloaded), [request], [write, folder, *streams, *files])
    os.close(write)
    os.close(folder)
    return Forked(read)


@cache
def _preloaded(name: str) -> socket.socket:
    """The way to a process that has loaded everything."""
    from tests.harness.leaks import lasting  # not at the top: the processes that are started import this module

    with lasting():
        if shared := os.environ.get(_SHARED):
            ours = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.connect(os.path.join(shared, name))
            process = None
        else:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                process = _started(theirs, name)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST_REQUEST)

    def end() -> None:
        ours.close()
        if process is not None:
            process.wait()

    atexit.register(end)
    return ours


@contextmanager
def for_all_workers(folder: Path) -> Iterator[None]:
    """Processes that wait in this folder, while the block runs, to load what test workers ask for."""
    waiting = []
    for name in _PRELOADED:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(folder / name))
            listener.listen()
            waiting.append(_started(listener, name))
    try:
        with patch.dict(os.environ, {_SHARED: str(folder)}):
            yield
    finally:
        for process in waiting:
            process.terminate()
            process.wait()


def _started(channel: socket.socket, name: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", __name__, str(channel.fileno()), name]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[channel.fileno()], cwd=_ROOT)


def _one_of_many(listener: socket.socket) -> socket.socket:
    """Fork a process for each test worker; in that process alone, the way to the worker."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        channel, _ = listener.accept()
        if os.fork() == 0:
            _end_with_parent()
            listener.close()
            return channel
        channel.close()


def _serve(channel: socket.socket) -> tuple[str, list[str]] | None:
    """Fork a process for each request until nobody can ask any more; its entry and arguments, in that process alone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for keepers
    while True:
        request, descriptors, _, _ = socket.recv_fds(channel, _LARGEST_REQUEST, _MOST_FILES)
        if not request:
            return None
        if os.fork() == 0:
            _end_with_parent()
            channel.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _keep(*descriptors)
            entry, arguments, environment = json.loads(request)
            os.environ.clear()
            os.environ.update(environment)
            sys.path[1:1] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
            failpoints.PROCESS.arm(environment.get(failpoints.VARIABLE, ""))
            return entry, [*arguments, *map(str, descriptors[5:])]
        for descriptor in descriptors:
            os.close(descriptor)


def _keep(status: int, folder: int, stdin: int, stdout: int, stderr: int, *files: int) -> None:
    """Fork, and return in the child alone: in a session of its own, in this folder and with these streams."""
    pid = os.fork()
    if pid:
        for file in (folder, stdin, stdout, stderr, *files):
            os.close(file)
        os.write(status, _NUMBER.pack(pid))
        os.write(status, _NUMBER.pack(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
        os._exit(0)
    _end_with_parent()
    os.setsid()
    os.fchdir(folder)
    for number, stream in enumerate((stdin, stdout, stderr)):
        os.dup2(stream, number)
        os.close(stream)
    os.close(folder)
    os.close(status)


def _run_python(arguments: list[str]) -> None:
    """Do what Python does with these arguments: `-c CODE`, `-m MODULE` or a file, after options that change nothing."""
    sys.orig_argv = [sys.executable, *arguments]
    main = sys.modules["__main__"] = ModuleType("__main__")  # stays until the interpreter ends
    while (first := arguments.pop(0)) in ("-u", "-B"):
        sys.dont_write_bytecode |= first == "-B"
    if first == "-m":
        sys.path[0], sys.argv = os.getcwd(), arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        return
    if first == "-c":
        sys.path[0], code = "", compile(arguments.pop(0), "<string>", "exec")
    else:
        main.__file__, source = first, Path(first).read_text(encoding="utf-8")
        sys.path[0], code = str(Path(first).parent), compile(source, first, "exec")
    sys.argv = [first, *arguments]
    exec(code, vars(main))


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    shared = bool(channel.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    if shared:
        select.select([channel], [], [])  # do not import anything unless somebody connects
    gc.disable()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in _PRELOADED[sys.argv[2]]:
            import_module(module)
    gc.freeze()
    gc.enable()
    request = _serve(_one_of_many(channel) if shared else channel)
    if request is None:
        return
    entry, arguments = request
    if entry == _PYTHON:
        _run_python(arguments)
        return
    module, _, function = entry.partition(":")
    sys.argv = [module, *arguments]
    # A master starts its workers likewise.
    sys.orig_argv = [sys.executable, "-m", "essp" if entry == _ESSP else module, *arguments]
    main = getattr(import_module(module), function)
    main(arguments) if entry in _CHILDREN.values() else main()


if __name__ == "__main__":
    _main()
