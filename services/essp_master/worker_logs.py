"""What workers have logged lately, of all pools.

Lines of INFO never push out warnings and errors: each kind has a place of its own.
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
"""Lines of each kind."""
_LONGEST_NAME = 200
"""Characters of names: anybody could send such a message."""
_LAST_S = datetime(9000, 1, 1, tzinfo=UTC).timestamp()


class LogLine(BaseModel):
    """A line of a worker's log."""

    model_config = ConfigDict(frozen=True)

    id: int
    """Ascending, in the order in which they were received, also after another master has taken over."""
    time: datetime
    """By the clock of the worker."""
    level: Level
    pool: str
    """`decoder`, `extractor.<feature>`, `trainer.<job>.<trainer>`, `master`, ..."""
    worker: str
    thread: str
    job: str
    """Which job it is about; empty: the worker does not say."""
    event: str
    error: str
    """The traceback of an exception; empty: there was none."""


class WorkerLogs:
    """Their newest lines. Thread-safe: the master's thread notes, others look."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        """`now`: seconds since 1970."""
        self._lines: deque[LogLine] = deque(maxlen=_KEPT)
        self._problems: deque[LogLine] = deque(maxlen=_KEPT)
        self._last = int(now() * 1000)  # whoever has read those of an earlier master goes on with these
        self._lock = threading.Lock()

    def note(self, worker: str, message: LogLines) -> None:
        """A worker has sent what it logged."""
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
        """At most so many lines, the newest, oldest first: those after the id `after`, of this level or worse, of this
        job, pool and worker (empty: of all), and `wanted`.

        A pool is also named by its first parts: `trainer`, `trainer.<job>`. Lines about no job count for none.
        """
        with self._lock:
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
