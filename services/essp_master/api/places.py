"""How many requests may be under way at once, by what they are for.

Event streams last as long as a job, so they have places of their own, of which one caller gets no more than half.
Of all others, those that only read leave a share free: a job can be paused and stopped however many look at it.
Used on the event loop alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto


class Use(Enum):
    """What a request is for."""

    STREAM = auto()
    """Reads events for as long as a job runs."""
    READ = auto()
    ACT = auto()


class Places:
    """Counts what is under way."""

    def __init__(self, places: int) -> None:
        """`places`: of all requests together; six at least, or there would be none for some uses."""
        self._streams = places // 3
        self._of_caller = (self._streams + 1) // 2
        self._others = places - self._streams
        self._reads = self._others * 3 // 4
        self._taken: Counter[Use] = Counter()
        self._callers: Counter[str] = Counter()
        """Streams by caller."""

    def lack(self, use: Use, caller: str) -> str:
        """Why there is no place for one more, in words; empty: there is one."""
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
        """A request is under way."""
        self._taken[use] += 1
        self._callers[caller] += use is Use.STREAM
        try:
            yield
        finally:
            self._taken[use] -= 1
            self._callers[caller] -= use is Use.STREAM
            if not self._callers[caller]:
                del self._callers[caller]
