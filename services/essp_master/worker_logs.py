"""The recent log lines of workers in all pools.

INFO lines never displace warnings and errors, which are kept separately.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from heapq import merge
from itertools import islice
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict

from essp_common.pb.v1.messages_pb2 import LogLine as Message
from essp_common.pb.v1.messages_pb2 import LogLines
from essp_engine.worker.log_shipping import LONGEST_ERROR, LONGEST_EVENT, MOST_LINES

Level = Literal["INFO", "WARNING", "ERROR", "CRITICAL"]
LEVELS: tuple[Level, ...] = get_args(Level)

_KEPT = 5_000
"""Number of lines of each kind."""
_LONGEST_NAME = 200
"""Longest name, in characters: any client could send such a message."""
_LAST_S = datetime(9000, 1, 1, tzinfo=UTC).timestamp()


class LogLine(BaseModel):
    """A line of a worker's log."""

    model_config = ConfigDict(frozen=True)

    id: int
    """Ascending in the order of arrival, also after another master has taken over."""
    time: datetime
    """By the worker's clock."""
    level: Level
    pool: str
    """`decoder`, `extractor.<feature>`, `trainer.<job>.<trainer>`, `master`, ..."""
    worker: str
    thread: str
    job: str
    """The job that it is about; empty if the worker does not say."""
    event: str
    error: str
    """The traceback of an exception; empty if there was none."""


class WorkerLogs:
    """The newest lines. Thread-safe: the master's thread writes, others read."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        """`now`: returns seconds since 1970."""
        self._lines: deque[LogLine] = deque(maxlen=_KEPT)
        self._problems: deque[LogLine] = deque(maxlen=_KEPT)
        self._last = int(now() * 1000)  # time-based, so that a reader of an earlier master's lines continues with these
        self._lock = threading.Lock()

    def note(self, worker: str, message: LogLines) -> None:
        """Add the lines that a worker has sent."""
        with self._lock:
            if message.left_out and message.lines:
                words = f"{message.left_out:,} lines before the next one were left out: more than can be sent"
                self._add(worker, message.pool, Message(time=message.lines[0].time, level="WARNING", event=words))
            for line in message.lines[:MOST_LINES]:
                self._add(worker, message.pool, line)

    def _add(self, worker: str, pool: str, line: Message) -> None:
        self._last += 1
        level = next((level for level in LEVELS if level == line.level), "INFO")
        time_s = min(max(line.time, 0.0), _LAST_S) if math.isfinite(line.time) else 0.0
        found = LogLine(
            id=self._last,
            time=datetime.fromtimestamp(time_s, UTC),
            level=level,
            pool=pool[:_LONGEST_NAME],
            worker=worker[:_LONGEST_NAME],
            thread=line.thread[:_LONGEST_NAME],
            job=line.job[:_LONGEST_NAME],
            event=line.event[:LONGEST_EVENT],
            error=line.error[-LONGEST_ERROR:],
        )
        (self._lines if level == "INFO" else self._problems).append(found)

    def newest(
        self,
        most: int,
        after: int = 0,
        level: Level = "INFO",
        job: str = "",
        pool: str = "",
        worker: str = "",
        wanted: Callable[[LogLine], bool] = lambda line: True,
    ) -> list[LogLine]:
        """Return at most the newest `most` lines, oldest first: those after the id `after`, of this level or worse, of
        this job, pool and worker (empty: of all), and `wanted`. All lines come after an id beyond the newest one: it is
        of an earlier master, whose clock was ahead.

        A pool can also be given by its first parts: `trainer`, `trainer.<job>`. Lines about no job match no job.
        """
        with self._lock:
            after = after if after <= self._last else 0
            kept = [self._problems] if level != "INFO" else [self._lines, self._problems]
            newest_first = merge(*(reversed(lines) for lines in kept), key=lambda line: line.id, reverse=True)
            worse = LEVELS[LEVELS.index(level) :]
            found = (
                line
                for line in newest_first
                if line.id > after
                and line.level in worse
                and (not job or line.job == job)
                and (not pool or line.pool == pool or line.pool.startswith(f"{pool}."))
                and (not worker or line.worker == worker)
                and wanted(line)
            )
            return list(islice(found, most))[::-1]
