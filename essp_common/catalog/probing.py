"""Reading the facts of many videos at once, in child processes.

FFmpeg can crash or hang on a damaged file, so each file is read in a process that may die: a crash, or a file that
takes longer than its limit, is an outcome like any other, and a fresh process goes on with the next file. Memory
that one file has damaged may bring the process down at a later one, so a crash is held against a file only when it
was the first that a process read; otherwise the file gets a process of its own.

Children answer in JSON and not in pickles: what has read untrusted bytes must not be able to run code here.
"""

from __future__ import annotations

import json
import logging
import math
import multiprocessing
import resource
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from multiprocessing.connection import Connection, wait
from typing import Any

from essp_common.errors import ConfigError, EsspError, PermanentError, TransientError, Unavailable
from essp_common.wiring import Stores

PROBE = "essp_common.video.probe:probe"
"""Import string of what reads one file, given as a path or a binary file. Not imported here: it loads FFmpeg."""

_TRIES = 3  # of a file whose store does not answer
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What reading a file came to: facts (fields of `VideoRow`), or an error as `kind: reason`."""

    uri: str
    facts: dict[str, Any]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """How files are read."""

    workers: int = 1
    """Child processes."""
    timeout_s: float = 120.0
    """Wall clock for one file."""
    probe: str = PROBE


class Prober:
    """Child processes that read files. A context manager; used from one thread."""

    def __init__(self, roots: Sequence[str], options: ProbeOptions) -> None:
        """`roots`: of the stores in which the files lie."""
        self._roots = tuple(roots)
        self._options = options
        self._children: list[_Child] = []

    def __enter__(self) -> Prober:
        return self

    def __exit__(self, *_: object) -> None:
        """End the children, whatever they are at."""
        for child in self._children:
            child.end()
        self._children.clear()

    def read(self, uris: Iterable[str]) -> Iterator[Outcome]:
        """The outcome of each file, in the order in which they are done.

        Raises `Unavailable` when a store does not answer, `ConfigError` when the children lack a package.
        """
        waiting = iter(uris)
        for _ in range(self._options.workers):
            self._start(next(waiting, None))
        while self._children:
            overdue = min(child.deadline for child in self._children)
            timeout_s = None if math.isinf(overdue) else max(0.0, overdue - time.monotonic())
            ready = wait([child.connection for child in self._children], timeout_s)
            for child in tuple(self._children):
                if child.connection in ready:
                    yield from self._receive(child, waiting)
                elif time.monotonic() >= child.deadline:
                    self._replace(child, next(waiting, None))
                    yield Outcome(child.uri, {}, f"timeout: not read within {self._options.timeout_s:g} s")

    def _receive(self, child: _Child, waiting: Iterator[str]) -> Iterator[Outcome]:
        try:
            message = json.loads(child.connection.recv_bytes())
        except (EOFError, ConnectionResetError, ValueError):
            yield from self._crashed(child, waiting)
            return
        if not child.ready:
            if "missing" in message:
                raise ConfigError(
                    f"reading videos needs the package {message['missing']!r}: pip install 'essp[decoder]'"
                )
            child.begin(self._options.timeout_s)
            return
        if "unavailable" in message:
            raise Unavailable(message["unavailable"])
        done, uri = child.uri, next(waiting, None)
        if uri is None or not child.ask(uri, self._options.timeout_s):
            self._replace(child, uri)
        yield Outcome(done, message["facts"], message["error"])

    def _crashed(self, child: _Child, waiting: Iterator[str]) -> Iterator[Outcome]:
        status = child.end()
        if not child.ready:
            raise EsspError(f"a process that reads videos could not start ({status}); its message is above")
        if not child.fresh:
            self._replace(child, child.uri)
            return
        self._replace(child, next(waiting, None))
        yield Outcome(child.uri, {}, f"crashed: the process reading it died ({status})")

    def _start(self, uri: str | None) -> None:
        if uri is not None:
            self._children.append(_Child(self._roots, self._options.probe, uri))

    def _replace(self, child: _Child, uri: str | None) -> None:
        child.end()
        self._children.remove(child)
        self._start(uri)


class _Child:
    """One child process and the file it is reading."""

    def __init__(self, roots: tuple[str, ...], probe: str, uri: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, probe, roots), name="catalog-probe", daemon=True)
        self._process.start()
        theirs.close()  # else its end would go unnoticed
        self.uri = uri
        self.ready = False
        self.fresh = True
        """Has read no other file before this one."""
        self.deadline = math.inf
        """When this file has had its time, on the monotonic clock."""

    def begin(self, timeout_s: float) -> None:
        """The process says that it is there: give it its first file."""
        self.ready = True
        self._send(timeout_s)

    def ask(self, uri: str, timeout_s: float) -> bool:
        """Give it another file. False when the process is gone."""
        self.uri, self.fresh = uri, False
        try:
            self._send(timeout_s)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def end(self) -> str:
        """Make sure that the process is gone; how it ended."""
        self.connection.close()
        self._process.join(timeout=0.2)  # one that has crashed is about to tell its own status
        self._process.kill()
        self._process.join()
        code = self._process.exitcode or 0
        return signal.Signals(-code).name if code < 0 else f"exit status {code}"

    def _send(self, timeout_s: float) -> None:
        self.deadline = time.monotonic() + timeout_s
        self.connection.send_bytes(self.uri.encode())


def _serve(connection: Connection, probe: str, roots: tuple[str, ...]) -> None:
    """The child: answer one file after the other until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    module, _, name = probe.partition(":")
    try:
        function = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        connection.send_bytes(json.dumps({"missing": error.name}).encode())
        return
    stores = Stores(roots)
    connection.send_bytes(b"{}")
    while True:
        try:
            uri = connection.recv_bytes().decode()
            connection.send_bytes(json.dumps(_facts(uri, stores, function)).encode())
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return


def _facts(uri: str, stores: Stores, function: Callable[[Any], Any]) -> dict[str, Any]:
    """The child's answer for one file."""
    problem = ""
    for attempt in range(_TRIES):
        try:
            store, key = stores.resolve(uri)
            path = store.local_path(key)
            if path is not None:
                return {"facts": asdict(function(path)), "error": None}
            with store.open(key) as file:
                return {"facts": asdict(function(file)), "error": None}
        except PermanentError as error:
            return {"facts": {}, "error": f"{error.kind}: {error}"}
        except TransientError as error:
            problem = str(error)
            time.sleep(error.retry_after_s * 2**attempt)
        except Exception as error:  # noqa: BLE001  (a fault that one file brings out must not end the build)
            _log.exception("unexpected error while reading %s", uri)
            return {"facts": {}, "error": f"error: {type(error).__name__}: {error}"}
    return {"unavailable": problem}
