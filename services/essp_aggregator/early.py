"""Messages about jobs, or runs of jobs, that this process does not know yet.

A job is announced before its last checkpoint, but on another topic, so a process may read the two in the opposite
order. Such a message waits, uncommitted, until the job is known. It is dropped only if `essp.control` was read to its
end and contains no announcement: a message may name a job that never existed, and the commands of forgotten jobs are
gone. While the bus does not answer, nothing is dropped.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from essp_common import topics
from essp_common.bus.port import Bus, Record
from essp_common.bus.reading import read_all
from essp_common.errors import EsspError
from essp_common.failures import shortened
from essp_common.messages.control import ControlFeed
from essp_common.messages.parsing import BadMessage, parsed
from essp_common.pb.v1.messages_pb2 import Control

log = logging.getLogger(__name__)

_PATIENCE_S = 10.0
"""How long to wait for an announcement before searching the topic for it."""
_MOST = 100
"""Once this many messages wait, the topic is searched at once."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    record: Record
    job: str
    fence: int
    search_at_s: float
    """Infinite once the job is known to be announced: the feed only has to receive the announcement."""


def command_of(job: str, fence: int, control: ControlFeed) -> Control | None:
    """The last command of a job; None while the job, or its run with this fence, is unknown."""
    command = control.latest(job)
    return command if command is not None and fence <= command.fence else None


class Early:
    """Holds the waiting messages."""

    def __init__(self, bus: Bus, leaving: Callable[[], bool]) -> None:
        self._bus = bus
        self._leaving = leaving
        self._waiting: list[_Waiting] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, record: Record, job: str, fence: int) -> None:
        """Keep this message until the job, in the run with this fence (0: any run), is known."""
        self._waiting.append(_Waiting(record, job, fence, time.monotonic() + _PATIENCE_S))

    def take_known(self, control: ControlFeed) -> list[Record]:
        """Remove and return the messages whose jobs are known by now."""
        known = [one for one in self._waiting if command_of(one.job, one.fence, control) is not None]
        self._waiting = [one for one in self._waiting if one not in known]
        return [one.record for one in known]

    def take_unannounced(self) -> list[Record]:
        """Remove and return the messages that have waited long enough and whose jobs were never announced."""
        unsearched = [one for one in self._waiting if one.search_at_s < math.inf]
        due = len(unsearched) >= _MOST or any(time.monotonic() >= one.search_at_s for one in unsearched)
        return self._searched(unsearched) if due else []

    def _searched(self, unsearched: list[_Waiting]) -> list[Record]:
        fences: dict[str, int] | None = None
        try:
            fences = self._announced()
        except EsspError as error:
            log.warning("whether the jobs of %d checkpoints were announced is not known: %s", len(unsearched), error)
        unannounced: list[Record] = []
        waiting = [one for one in self._waiting if one not in unsearched]
        for one in unsearched:
            job = shortened(one.job)
            if fences is None:
                waiting.append(replace(one, search_at_s=time.monotonic() + _PATIENCE_S))
            elif one.fence <= fences.get(one.job, -1):
                log.error("a checkpoint of job %s waits: its command is in %s, and has not come", job, topics.CONTROL)
                waiting.append(replace(one, search_at_s=math.inf))
            else:
                log.warning("ignored a checkpoint of job %s: %s does not announce it", job, topics.CONTROL)
                unannounced.append(one.record)
        self._waiting = waiting
        return unannounced

    def _announced(self) -> dict[str, int] | None:
        """Job -> the highest fence of its commands; None if this process is leaving. Raises `EsspError`."""
        found: dict[str, int] = {}
        for record in read_all(self._bus, topics.CONTROL, self._leaving, whole=True):
            try:
                control = parsed(Control, record)
            except BadMessage:  # the feed logs it
                continue
            found[control.job] = max(control.fence, found.get(control.job, 0))
        return None if self._leaving() else found
