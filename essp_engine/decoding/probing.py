"""Reading the facts of many videos at once, in child processes.

FFmpeg can crash or hang on a damaged file, so each file is read in a process that may die. A crash, or a file that
exceeds its time limit, is an outcome like any other, and a fresh process continues with the next file. The limit is on
processor time, so that a busy machine does not make sound files unusable. A process that waits forever is ended after
ten times the limit in elapsed time. Memory that one file has damaged may crash the process at a later file, so a crash
is blamed on a file only if it was the first that the process read. Otherwise the file is read again in a fresh process.

Children answer in JSON and not in pickles: a process that has read untrusted bytes must not be able to run code here.
They know no secrets except those of the stores that they read (`essp_common/runtime/confinement.py`). They run
`python -m essp_engine.decoding.probing CONNECTION`, and do not import the script that requests the facts.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import re
import resource
import signal
import sys
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from typing import Any

from essp_common.catalog.unproven import CHECKSUMS
from essp_common.distribution import remedy
from essp_common.errors import ConfigError, EsspError, PermanentError, TransientError, Unavailable
from essp_common.objects.block_sums import BlockSums, head_sums
from essp_common.objects.frames import is_series
from essp_common.objects.port import ObjectStore
from essp_common.objects.ranged import noting
from essp_common.runtime import confinement
from essp_common.runtime.child_process import Channel, ChildProcess, answer_of, ready
from essp_common.runtime.retry import LONGEST_WAIT_S, Outage
from essp_common.wiring import Stores

PROBE = "essp_engine.video.probe:probe"
"""Import string of the function that reads one file, given as a path or a binary file. Not imported here: it loads
FFmpeg."""
SALVAGE = "essp_engine.video.probe:salvage"
"""The same, for builds that use the sound part of files that are truncated or damaged."""
QUICK = "essp_engine.video.quick:quick"
"""A function that finds facts without decoding. It returns None for files that must be decoded."""
_GAVE_UP = re.compile(r"timeout: not read within ([0-9.e+-]+) s of processor time")
_PASSING = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN)
"""Temporary errors of a mounted store."""
BYTES = frozenset({"timestamps", "sums"})
"""Facts that are not text."""
_CHUNK_BYTES = 2**20
_CRASH_S = 5.0  # until a process that has closed its pipe must have ended
_TASK = "reads videos"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of reading a file: facts (fields of `VideoRow`), or an error as `kind: reason`."""

    uri: str
    facts: dict[str, Any]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """How files are read."""

    workers: int = 1
    """Child processes."""
    timeout_s: float = 120.0
    """Limit on the processor time for one file."""
    patience: int = 10
    """The limit on elapsed time, as a multiple of `timeout_s`: the number of processes that may share a core."""
    probe: str = PROBE
    argument: str = ""
    """A second argument for it; empty: it has one."""
    sums: bool = False
    """Whether the facts include checksums of the file's blocks, computed from the bytes that are read anyway."""
    quick: bool = False
    """Whether files that need not be decoded are not (`essp_engine.video.quick`)."""
    store_patience_s: float = 0.0
    """How long a file whose store does not answer is tried again."""
    confined: bool = True
    """Whether children are confined to reading; false for a user's probe that writes."""

    @property
    def hung_s(self) -> float:
        """The elapsed time after which a file counts as hung."""
        return self.patience * self.timeout_s


def gave_up_after_s(error: str | None) -> float:
    """The limit on processor time that reading a file exceeded; 0 for any other outcome."""
    found = _GAVE_UP.match(error or "")
    return float(found.group(1)) if found else 0.0


class Prober:
    """Child processes that read files. A context manager; used from one thread."""

    def __init__(self, roots: Sequence[str], options: ProbeOptions, *, keep: bool = False) -> None:
        """`roots`: the stores that contain the files. `keep`: children wait for the next `read` when one is over."""
        self._roots = tuple(roots)
        self._options = options
        self._keep = keep
        self._idle: list[_Child] = []
        self._children: list[_Child] = []

    def __enter__(self) -> Prober:
        return self

    def __exit__(self, *_: object) -> None:
        """End the children, whatever state they are in."""
        self._end_children()

    def _end_children(self) -> None:
        for child in (*self._children, *self._idle):
            child.end()
        self._children.clear()
        self._idle.clear()

    def read(self, uris: Iterable[str]) -> Iterator[Outcome]:
        """The outcome of each file, in order of completion.

        Raises `Unavailable` when a store does not answer for `store_patience_s`, `ConfigError` when the children lack a
        package. After `Unavailable`, other files can still be read by another call.
        """
        waiting = iter(uris)
        for _ in range(self._options.workers):
            self._start(next(waiting, None))
        while self._children:
            overdue = min(child.deadline for child in self._children)
            timeout_s = None if math.isinf(overdue) else max(0.0, overdue - time.monotonic())
            answering = ready([child.channel for child in self._children], timeout_s)
            for child in tuple(self._children):
                if child.channel in answering:
                    yield from self._receive(child, waiting)
                elif time.monotonic() < child.deadline or child.channel.poll():
                    continue
                elif child.waits:
                    child.ask_again()
                else:
                    self._replace(child, next(waiting, None))
                    yield Outcome(child.uri, {}, f"hung: not read within {self._options.hung_s:g} s")

    def _receive(self, child: _Child, waiting: Iterator[str]) -> Iterator[Outcome]:
        try:
            message = answer_of(child.channel.receive(self._options.hung_s))
        except (EOFError, OSError):
            yield from self._crashed(child, waiting)
            return
        if not child.ready:
            if "missing" in message:
                absent = ModuleNotFoundError(name=message["missing"])
                raise ConfigError(f"reading videos needs the package {absent.name!r}; run: {remedy(absent)}")
            child.begin()
            return
        if "unavailable" in message:
            try:
                child.postpone(Unavailable(message["unavailable"]))
            except Unavailable:
                self._end_children()
                raise
            return
        done, uri = child.uri, next(waiting, None)
        if uri is None and self._keep:
            self._children.remove(child)
            self._idle.append(child)
        elif uri is None:
            self._replace(child, None)
        else:
            child.ask(uri)
        facts = message["facts"]
        for name in BYTES & facts.keys():
            facts[name] = b64decode(facts[name])
        yield Outcome(done, facts, message["error"])

    def _crashed(self, child: _Child, waiting: Iterator[str]) -> Iterator[Outcome]:
        fate = child.end(_CRASH_S)
        if child.out_of_time:
            self._replace(child, next(waiting, None))
            limit = f"{self._options.timeout_s:g} s of processor time"
            yield Outcome(child.uri, {}, f"timeout: not read within {limit}; --timeout-s allows more")
            return
        if not child.ready:
            raise EsspError(f"a process that {_TASK} {fate} before it was ready; see its message above")
        if not child.fresh:
            self._replace(child, child.uri)
            return
        self._replace(child, next(waiting, None))
        yield Outcome(child.uri, {}, f"crashed: the process reading it {fate}")

    def _start(self, uri: str | None) -> None:
        if uri is not None and self._idle:
            self._children.append(child := self._idle.pop())
            child.ask(uri)
        elif uri is not None:
            self._children.append(_Child(self._roots, self._options, uri))

    def _replace(self, child: _Child, uri: str | None) -> None:
        child.end()
        self._children.remove(child)
        self._start(uri)


class _Child(ChildProcess):
    """One child process and the file it is reading."""

    def __init__(self, roots: tuple[str, ...], options: ProbeOptions, uri: str) -> None:
        super().__init__("essp_engine.decoding.probing", _TASK, environment=confinement.environment())
        wanted = {"path": sys.path, "roots": roots, "options": asdict(options)}
        wanted["environment"] = confinement.of_stores(roots)
        self.tell(json.dumps(wanted).encode())
        self._options = options
        self.uri = uri
        self._outage = self._no_outage()
        self.ready = False
        self.fresh = True
        """Whether this is the first file that the process reads."""
        self.waits = False
        """Whether the store of this file does not answer, and the file is read again at `deadline`."""
        self.deadline = math.inf
        """When the time for this file, or for waiting, is over, on the monotonic clock."""

    @property
    def out_of_time(self) -> bool:
        """Whether the limit on processor time ended it."""
        return self.process.returncode == -signal.SIGPROF

    def begin(self) -> None:
        """The process reports that it is ready: send its first file."""
        self.ready = True
        self._read()

    def ask(self, uri: str) -> None:
        """Send another file."""
        self.uri, self.fresh = uri, False
        self._outage = self._no_outage()
        self._read()

    def postpone(self, error: Unavailable) -> None:
        """The store of the file does not answer: have it read again later. Raises `Unavailable` after
        `store_patience_s`."""
        with self._outage:
            raise error

    def ask_again(self) -> None:
        """Send the same file."""
        self.fresh = False
        self._read()

    def _read(self) -> None:
        self.waits = False
        self.deadline = time.monotonic() + self._options.hung_s
        self.tell(self.uri.encode())

    def _no_outage(self) -> Outage:
        return Outage("reading videos", self._wait, LONGEST_WAIT_S, self._options.store_patience_s)

    def _wait(self, wait_s: float) -> None:
        self.waits = True
        self.deadline = time.monotonic() + wait_s


def _serve(parent: Channel) -> None:
    """The child: answers one file after the other until the parent closes the connection."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        wanted = json.loads(parent.receive())
    except (EOFError, ConnectionResetError):
        return
    sys.path[:] = wanted["path"]
    os.environ.update(wanted["environment"])
    options = ProbeOptions(**wanted["options"])
    if options.confined and confinement.are_local(wanted["roots"]):  # otherwise a client may store its credentials
        confinement.confine()
    module, _, name = options.probe.partition(":")
    try:
        function = getattr(import_module(module), name)
        if options.argument:
            function = partial(function, folder=options.argument)
        quick = None
        if options.quick:
            module, _, name = QUICK.partition(":")
            quick = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        parent.send(json.dumps({"missing": error.name}).encode())
        return
    stores = Stores(tuple(wanted["roots"]))
    parent.send(b"{}")
    while True:
        try:
            uri = parent.receive().decode()
            # The kernel ends a process that has used up its processor time. The parent checks elapsed time; if it is
            # gone, the alarm ends a hanging reader.
            signal.setitimer(signal.ITIMER_PROF, options.timeout_s)
            signal.setitimer(signal.ITIMER_REAL, 2 * options.hung_s)
            answer = json.dumps(_facts(uri, stores, function, options.sums, quick), default=_in_text).encode()
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
            parent.send(answer)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return


def _facts(
    uri: str,
    stores: Stores,
    function: Callable[[Any], Any],
    sums: bool = False,
    quick: Callable[[Any], Any] | None = None,
    again: bool = True,
) -> dict[str, Any]:
    """The child's answer for one file. A temporary error of the store does not make a file unusable.

    `quick`: is tried first, and returns None for a file that `function` must read. `again`: read the file once more
    before it is blamed for what a store may have damaged.
    """
    path = None
    try:
        store, key = stores.resolve(uri, video=True)
        path = store.local_path(key)
        return _answer(store, key, path, function, sums, quick)
    except PermanentError as error:
        passing = getattr(error.__cause__, "errno", None) in _PASSING
        if path is not None and passing and (problem := _unreadable(path)):
            return {"unavailable": problem}
        if again and (path is None or passing):
            return _facts(uri, stores, function, sums, quick, again=False)
        return {"facts": {}, "error": f"{error.kind}: {error}"}
    except TransientError as error:
        return {"unavailable": str(error)}
    except Exception as error:  # noqa: BLE001  (a fault with one file must not end the build)
        _log.exception("unexpected error while reading %s", uri)
        return {"facts": {}, "error": f"error: {type(error).__name__}: {error}"}


def _answer(
    store: ObjectStore,
    key: str,
    path: str | None,
    function: Callable[[Any], Any],
    sums: bool,
    quick: Callable[[Any], Any] | None,
) -> dict[str, Any]:
    if path is not None:
        found = (quick(path) if quick is not None else None) or function(path)
        return {"facts": asdict(found) | ({"sums": _packed(head_sums(path))} if sums else {}), "error": None}
    with store.open(key) as file:
        if quick is not None and (found := quick(file)) is not None:
            facts = asdict(found)
            facts["unproven"] += f" {CHECKSUMS}" if sums else ""  # they need all bytes of the file
            return {"facts": facts, "error": None}
        noted = noting(file) if sums else None
        facts = asdict(function(file))
        if sums:
            facts["sums"] = _packed(noted.noted() if noted is not None else None)
        if is_series(key) and "container" in facts:  # not for the measures of a check
            facts["container"] = "frames"
        return {"facts": facts, "error": None}


def _packed(sums: BlockSums | None) -> bytes:
    return sums.packed() if sums is not None else b""


def _unreadable(path: str) -> str:
    """Why the system cannot read a file of a mounted store; empty: it can.

    FFmpeg reports the same error for a file that ends early.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            while file.read(_CHUNK_BYTES):
                pass
    except OSError as error:
        return f"{path}: {error.strerror}"
    return ""


def _in_text(value: bytes) -> str:
    """Encodes values that JSON cannot represent."""
    return b64encode(value).decode("ascii")


def main(arguments: Sequence[str]) -> None:
    """The child. Its argument is the number of the connection."""
    _serve(Channel(int(arguments[0])))


if __name__ == "__main__":
    main(sys.argv[1:])
