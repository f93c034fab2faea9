"""Limits how many requests may be under way at once, by purpose.

Event streams last as long as a job, so they have a separate limit, and one caller gets at most half of it. Of the other
requests, those that only read leave a share free: a job can be paused and stopped however many callers read. Used only
on the event loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto


class Use(Enum):
    """The purpose of a request."""

    STREAM = auto()
    """Reads events for as long as a job runs."""
    READ = auto()
    ACT = auto()


class Places:
    """Counts requests under way."""

    def __init__(self, places: int) -> None:
        """`places`: the limit for all requests together; at least six, or some uses would get none."""
        self._streams = places // 3
        self._of_caller = (self._streams + 1) // 2
        self._others = places - self._streams
        self._reads = self._others * 3 // 4
        self._taken: Counter[Use] = Counter()
        self._callers: Counter[str] = Counter()
        """Open streams by caller."""

    def lack(self, use: Use, caller: str) -> str:
        """Return in words why one more request is not possible; empty if it is."""
        streams, reads = self._taken[Use.STREAM], self._taken[Use.READ]
        others = reads + self._taken[Use.ACT]
        if use is Use.STREAM and streams >= self._streams:
            return f"{streams} event streams are open"
        if use is Use.STREAM and self._callers[caller] >= self._of_caller:
            return f"{self._callers[caller]} event streams of this caller are open"
        if use is not Use.STREAM and others >= self._others:
            return f"{others} requests are under way"
        if use is Use.READ and reads >= self._reads:
            return f"{reads} requests that read are under way"
        return ""

    @contextmanager
    def taken(self, use: Use, caller: str) -> Iterator[None]:
        """Count a request as under way within the block."""
        self._taken[use] += 1
        self._callers[caller] += use is Use.STREAM
        try:
            yield
        finally:
            self._taken[use] -= 1
            self._callers[caller] -= use is Use.STREAM
            if not self._callers[caller]:
                del self._callers[caller]
