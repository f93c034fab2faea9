"""Starts `essp ...` processes and the child processes of ESSP quickly, by forking one that has loaded all they import.

    test ──arguments, environment, files──▶ preloaded ──fork──▶ keeper ──fork──▶ essp ...
      ▲                                                           │
      └─────────────────────── pid, exit status ──────────────────┘

Each started process has its own session, environment, folder and output. Its keeper runs outside that session, and only
waits for it to end. What it starts in turn, such as the children of a decoder, is forked, too, has a name that says
whose it is, and so belongs to the `members` of that session. With `STARTED` in the environment, children are started by
their commands, which takes each half a second.

What is imported may not depend on the environment, which a process gets after it was forked. Failpoints do, so they
are armed then. There are preloaded processes of several kinds: with torch, which takes seconds to load and which only
some commands need, without it, with what the children of decoders load and nothing else, with what reads the facts of
videos for catalogs, and with the tests themselves and what they import, for the test workers.

What is started as a command of its own, by a shell or by `subprocess`, takes `python()` for its interpreter: a small
program that asks for a fork, and passes on signals and exit status (`forked_python.py`).

All workers of a run share them. Each imports its modules at the first connection, and forks one process per worker,
which then forks what that worker asks for. Where a kind needs all that another one does, its process is forked from
that one's (`_STAGES`). A test process without workers starts its own.

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
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    contextmanager,
    nullcontext,
    redirect_stderr,
    redirect_stdout,
    suppress,
)
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

from essp_common.runtime import child_process, failpoints

_MODULES = (
    "anyio._backends._asyncio",
    "av",
    "boto3.s3.inject",
    "botocore.retries.standard",
    "cv2",
    "essp.cli.extractor",
    "essp.cli.main",
    "essp_aggregator.main",
    "essp_aggregator.search_child",
    "essp_common.bus.kafka",
    "essp_common.cache.redis",
    "essp_common.objects.s3",
    "essp_decoder.main",
    "essp_engine.intake.fetch_child",
    "essp_extractor.features.flow",
    "essp_extractor.features.rgb",
    "essp_extractor.main",
    "essp_master.main",
    "essp_trainer.checkpoints.packing_child",
    "essp_trainer.main",
    "essp_trainer.model.fit_child",
    "fastapi",
    "hiredis",
    "httpx",
    "numpy.ma",
    "pandas",  # pyarrow loads it with the first column of a catalog
    "pydantic.v1",
    "redis.cluster",
    "scipy.optimize",
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
    "kubernetes.client.api.apps_v1_api",  # loaded when they are used, by several test modules
    "kubernetes.client.api.batch_v1_api",
    "kubernetes.client.api.core_v1_api",
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
_STAGES = (("plain", "torch", "worker"), ("child",), ("probe",))
"""The kinds that workers share, a process each: those in a row import what they need one after another."""
_ESSP, RANK = "essp.cli.main:main", "essp_trainer.main:as_process"
_PYTHON = ""
"""The entry of a process that runs Python code."""
_CHILDREN = {
    "essp_aggregator.search_child": "torch",
    "essp_engine.decoding.child": "child",
    "essp_engine.decoding.probing": "probe",
    "essp_engine.intake.fetch_child": "plain",
    "essp_trainer.checkpoints.packing_child": "plain",
    "essp_trainer.model.fit_child": "plain",
}
"""The modules that run as child processes, and which kind of process they are forked from. One of a loop's clips is not
among them: it ends when its parent is another one than it was told."""
_TAKE_ARGUMENTS = frozenset({"child", "probe"})
"""The others look for their arguments themselves."""
STARTED = "ESSP_TEST_STARTED"
"""The environment variable with which child processes are started by their commands."""
_SHARED = "ESSP_TEST_PRELOADED"
"""The environment variable with the folder in which preloaded processes wait for all workers."""
_COLLECTED = "ESSP_TEST_COLLECTED"
"""Likewise with the arguments of the pytest that collects the tests of all workers."""
_TORCH_COMMANDS = frozenset({"trainer", "predictor", RANK})
_ROOT = Path(__file__).parents[2]
_FORKED_PYTHON = Path(__file__).with_name("forked_python.py")
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_NAME = "of {}"
"""The name of a child process that belongs to a session."""
_LARGEST_REQUEST = 1 << 18
_MOST_FILES = 64
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
        """A keeper ends before its child only if both are killed, at the end of those that they belong to."""
        data = os.read(self._status, _NUMBER.size)
        self.returncode = int(_NUMBER.unpack(data)[0]) if data else -signal.SIGKILL
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


def forks_children() -> AbstractContextManager[Any]:
    """While the block runs, this process forks the children that it would start by their commands."""
    stand_in = SimpleNamespace(Popen=_popen, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired)
    return patch.object(child_process, "subprocess", stand_in)


def _popen(command: Sequence[str], **options: Any) -> Forked | subprocess.Popen[bytes]:
    module, _, *words = command[command.index("-m") + 1 :]
    if module not in _CHILDREN or os.environ.get(STARTED):
        return subprocess.Popen(command, **options)
    files = options["pass_fds"]
    return start_child(module, files, options["env"], words[: len(words) + 1 - len(files)])


def start_child(
    module: str, files: Sequence[int], environment: Mapping[str, str] | None = None, words: Sequence[str] = ()
) -> Forked:
    """Start a module of `_CHILDREN`. It reads and writes where this process does, and gets these files."""
    given = os.environ if environment is None else environment
    return _forked(_CHILDREN[module], f"{module}:main", words, given, [0, 1, 2], files)


def members(session: int) -> list[int]:
    """The processes of a session that have not ended: whoever began it, and all that it started, in whatever group."""
    found = []
    for facts in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            head, _, rest = facts.read_text().rpartition(")")
            state, _, _, its, *_ = rest.split()
            if state != "Z" and (int(its) == session or head.endswith(f"({_NAME.format(session)}")):
                found.append(int(facts.parent.name))
    return found


def _forked(
    preloaded: str,
    entry: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    streams: Sequence[int],
    files: Sequence[int] = (),
) -> Forked:
    """`streams`: stdin, stdout and stderr. The number that the first of `files` has in the process is its first
    argument; those of the others are its last."""
    request = json.dumps([entry, list(arguments), dict(environment), os.getsid(0) if files else 0]).encode()
    read, write = os.pipe()
    folder = os.open(".", os.O_RDONLY)  # which may have no name any more
    socket.send_fds(_preloaded(preloaded), [request], [write, folder, *streams, *files])
    os.close(write)
    os.close(folder)
    return Forked(read)


def _preloaded(name: str) -> socket.socket:
    """The way to a process that has loaded everything."""
    with _CONNECTING:
        return _ways.get(name) or _ways.setdefault(name, _way(name))


_CONNECTING = threading.Lock()
_ways: dict[str, socket.socket] = {}


def _way(name: str) -> socket.socket:
    leaks = sys.modules.get("tests.harness.leaks")  # the processes that are started have none of it
    with leaks.lasting() if leaks else nullcontext():
        if shared := os.environ.get(_SHARED):
            ours = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.connect(os.path.join(shared, name))
            process = None
        else:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                process = _started([theirs], [name])
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST_REQUEST)

    def end() -> None:
        ours.close()
        if process is not None:
            process.wait()

    atexit.register(end)
    return ours


@contextmanager
def for_all_workers(folder: Path, tests: Sequence[str] = ()) -> Iterator[None]:
    """Processes that wait in this folder, while the block runs, to load what test workers ask for.

    `tests`: the arguments with which pytest collects what the workers run. They find the modules loaded.
    """
    waiting = []
    with patch.dict(os.environ, {_COLLECTED: json.dumps(tests)}):
        for names in _STAGES:
            with ExitStack() as stack:
                listeners = [stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) for _ in names]
                for name, listener in zip(names, listeners, strict=True):
                    listener.bind(str(folder / name))
                    listener.listen()
                waiting.append(_started(listeners, names))
    try:
        with patch.dict(os.environ, {_SHARED: str(folder)}):
            yield
    finally:
        for process in waiting:
            process.terminate()
            process.wait()


def _started(channels: Sequence[socket.socket], names: Sequence[str]) -> subprocess.Popen[bytes]:
    files = [channel.fileno() for channel in channels]
    words = [word for file, name in zip(files, names, strict=True) for word in (str(file), name)]
    command = [sys.executable, "-m", __name__, *words]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=files, cwd=_ROOT)


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
            entry, arguments, environment, session = json.loads(request)
            _keep(session, *descriptors)
            os.environ.clear()
            os.environ.update(environment)
            sys.path[1:1] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
            failpoints.PROCESS.arm(environment.get(failpoints.VARIABLE, ""))
            files = list(map(str, descriptors[5:]))
            return entry, [*files[:1], *arguments, *files[1:]]
        for descriptor in descriptors:
            os.close(descriptor)


def _keep(session: int, status: int, folder: int, stdin: int, stdout: int, stderr: int, *files: int) -> None:
    """Fork, and return in the child alone, in this folder and with these streams: in a session of its own, or as a
    member of another one."""
    pid = os.fork()
    if pid:
        for file in (folder, stdin, stdout, stderr, *files):
            os.close(file)
        with suppress(BrokenPipeError):  # whoever asked may be gone
            os.write(status, _NUMBER.pack(pid))
            os.write(status, _NUMBER.pack(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
        os._exit(0)
    _end_with_parent()
    if session:
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(_PR_SET_NAME, _NAME.format(session).encode())
    else:
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


def _load(name: str) -> None:
    gc.disable()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in _PRELOADED[name]:
            import_module(module)
    if name == "worker" and (tests := json.loads(os.environ.get(_COLLECTED, "[]"))):
        _load_tests(tests)
    gc.freeze()
    gc.enable()


def _load_tests(arguments: Sequence[str]) -> None:
    """Import test modules as pytest does, so that their assertions tell values. What cannot be imported, nobody hears
    of here: the workers try again, and report it."""
    import pytest

    with open(os.devnull, "w") as nothing, redirect_stdout(nothing), redirect_stderr(nothing):
        pytest.main(["--collect-only", "-p", "no:cacheprovider", *arguments])


def _main() -> None:
    channels = [socket.socket(fileno=int(number)) for number in sys.argv[1::2]]
    shared = bool(channels[0].getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    if shared:
        select.select(channels, [], [])  # do not import anything unless somebody connects
    *stages, (channel, name) = zip(channels, sys.argv[2::2], strict=True)
    for earlier, kind in stages:
        _load(kind)
        if os.fork() == 0:
            _end_with_parent()
            channel = earlier
            break
    else:
        _load(name)
    for other in channels:
        if other is not channel:
            other.close()
    request = _serve(_one_of_many(channel) if shared else channel)
    if request is None:
        return
    entry, arguments = request
    with forks_children() if _SHARED in os.environ else nullcontext():
        _run(entry, arguments)


def _run(entry: str, arguments: list[str]) -> None:
    if entry == _PYTHON:
        _run_python(arguments)
        return
    module, _, function = entry.partition(":")
    sys.argv = [module, *arguments]
    # A master starts its workers likewise.
    sys.orig_argv = [sys.executable, "-m", "essp" if entry == _ESSP else module, *arguments]
    main = getattr(import_module(module), function)
    main(arguments) if _CHILDREN.get(module) in _TAKE_ARGUMENTS else main()


if __name__ == "__main__":
    _main()
