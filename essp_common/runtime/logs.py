"""Logs: each event is one line of text for users at a terminal, or one JSON object for log collectors.

    ts, level, event                          when, how bad, what
    pool, worker                              which kind of process logged it, and which one
    job_id, seed_id, unit_id, epoch, attempt  what it is about, if known: `bound`, or `extra` of the call
    logger, thread, error                     its source; the traceback of an exception
    more                                      how many similar lines were left out in the last minute

Messages of libraries, warnings, and errors that end a thread are logged the same way. An error that repeats, such as
from a client whose broker is away, is written a few times a minute; then one line says how many more there were.
"""

from __future__ import annotations

import copy
import json
import logging
import re
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

from essp_common.errors import ConfigError
from essp_common.runtime.addresses import without_secrets
from essp_common.runtime.troubles import Kind, Troubles

LogFormat = Literal["auto", "text", "json"]

ABOUT = ("job_id", "seed_id", "unit_id", "epoch", "attempt")
"""Fields for the subject of a line."""

_CHATTY = ("kafka", "kubernetes", "leaderelection", "botocore", "boto3", "urllib3", "httpx", "httpcore", "uvicorn")
"""Libraries whose INFO messages do not help users of ESSP."""

_HALF = re.compile("[\ud800-\udfff]")

_About = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Line:
    """A log line, for followers."""

    time_s: float
    """Seconds since 1970."""
    level: str
    """INFO or worse."""
    event: str
    thread: str
    job: str
    """The job that it is about; empty if none is known."""
    error: str
    """The traceback of an exception; empty if there was none."""


_followers: list[Callable[[Line], None]] = []
_bound: ContextVar[tuple[Callable[[], _About], ...]] = ContextVar("essp_log_about", default=())


@contextmanager
def bound(about: Callable[[], _About]) -> Iterator[None]:
    """Attach these fields to what this thread logs within the block. `about` is called only when something is
    logged."""
    token = _bound.set((*_bound.get(), about))
    try:
        yield
    finally:
        _bound.reset(token)


@contextmanager
def followed(follower: Callable[[Line], None]) -> Iterator[None]:
    """Call `follower` within the block with each line that is written, except DEBUG lines.

    It is called under the log's lock: it must be quick, and must not log.
    """
    _followers.append(follower)
    try:
        yield
    finally:
        _followers.remove(follower)


def set_up(level: str, style: LogFormat, worker: str, pool: str = "", about: _About | None = None) -> None:
    """Configure logging. `about`: fields of all lines of this process.

    Text goes to stderr. JSON goes to stdout if the process is a service (it has a `pool`), and to stderr if stdout is
    for a command's results. `auto` is text at a terminal and JSON elsewhere; for a command, which users run, `auto` is
    text. Raises `ConfigError` for an unknown level.
    """
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ConfigError(
            f"{level!r} is not a level; use DEBUG, INFO, WARNING or ERROR", field="log_level", code="unknown"
        )
    if style == "auto":
        style = "text" if not pool or sys.stderr.isatty() or sys.stdout.isatty() else "json"
    who = {"pool": pool, "worker": worker, **(about or {})}
    handler = _Handler(sys.stdout if style == "json" and pool else sys.stderr, job=str(who.get("job_id", "")))
    handler.setFormatter(_JsonLines(who) if style == "json" else _Text(who))
    logging.basicConfig(level=number, handlers=[handler], force=True)
    if number > logging.DEBUG:
        for library in _CHATTY:
            logging.getLogger(library).setLevel(max(number, logging.WARNING))


@contextmanager
def bridged() -> Iterator[None]:
    """Log warnings, and errors that end a thread, within this block."""
    before = threading.excepthook

    def on_end(dead: threading.ExceptHookArgs) -> None:
        if dead.exc_value is not None:
            name = dead.thread.name if dead.thread else "a thread"
            logging.getLogger(__name__).critical("%s has ended of an error", name, exc_info=dead.exc_value)

    logging.captureWarnings(True)
    threading.excepthook = on_end
    try:
        yield
    finally:
        threading.excepthook = before
        logging.captureWarnings(False)


def troubles() -> Troubles:
    """Report if the last line of this process's log could not be written."""
    lost = next((h.lost for h in logging.getLogger().handlers if isinstance(h, _Handler) and h.lost), "")
    return {Kind.LOGS_LOST: f"log lines cannot be written ({lost}); make room where the logs go"} if lost else {}


class Repetition:
    """Decides which of many similar events get a line. Thread-safe through the handler's lock.

    Events are similar if they have the same logger, level and job, and their texts differ only in numbers.
    """

    def __init__(self, allowed: int = 3, period_s: float = 60.0, kinds: int = 1000) -> None:
        """Admits `allowed` events of each kind within `period_s`; remembers `kinds` kinds."""
        self._allowed = allowed
        self._period_s = period_s
        self._kinds = kinds
        self._seen: OrderedDict[tuple[str, int, str, str], _Kind] = OrderedDict()

    def admits(self, record: logging.LogRecord, now_s: float) -> bool:
        """Whether to write this record. Only warnings and worse are ever left out."""
        if record.levelno < logging.WARNING:
            return True
        job = str(_about(record).get("job_id", ""))
        kind = self._seen.setdefault((record.name, record.levelno, job, _words(record)), _Kind(now_s))
        kind.count += 1
        if kind.count > self._allowed:
            kind.last = record
        return kind.count <= self._allowed

    def due(self, now_s: float) -> list[logging.LogRecord]:
        """Return one record for each kind with left-out events whose period is over: the last one, with how many
        `more`."""
        due = []
        while self._seen:
            kind = next(iter(self._seen.values()))  # the oldest
            if now_s - kind.began_s < self._period_s and len(self._seen) <= self._kinds:
                break
            self._seen.popitem(last=False)
            if kind.last is not None:
                last = copy.copy(kind.last)
                last.more = kind.count - self._allowed - 1
                due.append(last)
        return due


class _Kind:
    __slots__ = ("began_s", "count", "last")

    def __init__(self, began_s: float) -> None:
        self.began_s = began_s
        self.count = 0
        self.last: logging.LogRecord | None = None


def _words(record: logging.LogRecord) -> str:
    return re.sub(r"(0x)?[0-9][0-9a-f.]*", "#", record.getMessage())


class _Handler(logging.StreamHandler[Any]):
    """Writes the lines that `Repetition` admits."""

    def __init__(self, stream: Any, clock: Callable[[], float] = time.monotonic, job: str = "") -> None:
        """`job`: the job of all lines that do not name one."""
        super().__init__(stream)
        self._job = job
        self._clock = clock
        self._repetition = Repetition()
        self.lost = ""
        """Why the last line could not be written; empty if it was."""

    def emit(self, record: logging.LogRecord) -> None:
        now_s = self._clock()
        for last in self._repetition.due(now_s):
            self._write(last)
        if self._repetition.admits(record, now_s):
            self._write(record)

    def _write(self, record: logging.LogRecord) -> None:
        self.lost = ""
        super().emit(record)
        if _followers and record.levelno >= logging.INFO:
            line = _line(record, self._job)
            for follower in _followers:
                follower(line)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  as `logging` calls it
        """Remember that a line is lost; reporting it on the same disk would fail, too."""
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            self.lost = error.strerror or str(error)
        else:
            super().handleError(record)

    def close(self) -> None:
        """Write what was left out and not reported yet."""
        with self.lock or threading.RLock():
            for last in self._repetition.due(float("inf")):
                self._write(last)
        super().close()


def _about(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of a record, from its context and from the call."""
    found: dict[str, Any] = {}
    for about in _bound.get():
        found |= about()
    return found | {name: value for name in ABOUT if (value := getattr(record, name, None)) is not None}


def _event(record: logging.LogRecord) -> str:
    more = getattr(record, "more", 0)
    said = without_secrets(record.getMessage())
    return said + (f" (and {more} more like this in the last minute)" if more else "")


def _error(record: logging.LogRecord) -> str:
    """Return the traceback without secrets: libraries' errors may quote the URL that they were given."""
    return without_secrets(logging.Formatter().formatException(record.exc_info)) if record.exc_info else ""


def _line(record: logging.LogRecord, job: str) -> Line:
    return Line(
        record.created,
        record.levelname,
        _event(record),
        record.threadName or "",
        str(_about(record).get("job_id", job)),
        _error(record),
    )


class _Text(logging.Formatter):
    def __init__(self, who: _About) -> None:
        super().__init__()
        self._worker = who["worker"]

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created)) + f",{int(record.msecs):03d}"
        about = "".join(f" {name}={value}" for name, value in _about(record).items())
        line = f"{at} {record.levelname:<7} {self._worker} {record.threadName}: {_event(record)}{about}"
        return line + ("\n" + _error(record) if record.exc_info else "")


class _JsonLines(logging.Formatter):
    def __init__(self, who: _About) -> None:
        super().__init__()
        self._who = dict(who)

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "ts": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname,
            "event": _event(record),
            **self._who,
            **_about(record),
            "logger": record.name,
            "thread": record.threadName,
        }
        if record.exc_info:
            line["error"] = _error(record)
        if getattr(record, "more", 0):
            line["more"] = record.more  # type: ignore[attr-defined]
        # A file name that is not UTF-8 contains lone surrogates, which stdout, or a reader of the line, may not accept.
        return _HALF.sub(lambda half: f"\\\\u{ord(half[0]):04x}", json.dumps(line, ensure_ascii=False, default=str))
