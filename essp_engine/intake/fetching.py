"""Clips on their way from the cache: several at a time, though they are taken one by one and in order.

A clip is asked for when its turn is near, on a thread of its own, and `value` waits for it. So the cache works on the
next clips while the consumer works on this one. What failed ahead of its turn is asked for again in its turn, so errors
are those that a consumer without this would get.

Threads get several clips at once where several are there, since handing one from thread to thread takes Python as long
as fetching it. At most eight values a thread are held, or on the way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from essp_common.errors import EsspError

A = TypeVar("A", bound=Hashable)

_TOGETHER = 4
"""Clips that a thread gets at once, at most."""


class Fetching(Generic[A]):
    """Values of arrivals, ahead of their turn. Used from one thread."""

    def __init__(
        self,
        read: Callable[[A], Any],
        read_ahead: Callable[[Sequence[A]], list[Any]],
        threads: int,
        name: str,
        set_up_thread: Callable[[], object] | None = None,
    ) -> None:
        """`read`: from the cache. `read_ahead`: several, on any thread; an `EsspError` in place of what it cannot
        read. `threads`: 0 reads when the value is asked for, on the same thread."""
        self._read = read
        self._read_ahead = read_ahead
        self._threads = threads
        self._window = 2 * _TOGETHER * threads
        """Turns that are looked ahead: twice what threads get at once, so that none waits for work."""
        self._pool = ThreadPoolExecutor(threads, f"essp-fetch-{name}", set_up_thread) if threads else None
        self._running: dict[A, tuple[Future[list[Any]], int]] = {}
        """Arrival -> the work that has it, and its place in there."""

    def value(self, arrival: A, next_ones: Callable[[int], Iterable[A]]) -> Any:
        """The value of the arrival whose turn it is; raises what `read` did.

        `next_ones`: the arrivals that are there of so many turns from this one on.
        """
        if self._pool is None:
            return self._read(arrival)
        # More is asked for when half of the window is taken, not for each clip: threads then get several at once.
        if arrival not in self._running or len(self._running) <= self._window // 2:
            self._ask(self._pool, list(next_ones(self._window)))
        work, place = self._running.pop(arrival)
        value = work.result()[place]
        # An error is from before its turn: the bytes may be there by now.
        return self._read(arrival) if isinstance(value, EsspError) else value

    def close(self) -> None:
        """Wait for what is on the way."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._running.clear()

    def _ask(self, pool: ThreadPoolExecutor, near: Sequence[A]) -> None:
        """Have those fetched that are not yet, and forget those that were replaced or dropped."""
        for gone in self._running.keys() - set(near):
            del self._running[gone]
        new = [one for one in near if one not in self._running]
        # Where few clips are there, each thread gets some: the first of them is waited for.
        together = max(1, min(_TOGETHER, math.ceil(len(new) / self._threads)))
        for begin in range(0, len(new), together):
            some = new[begin : begin + together]
            work = pool.submit(self._read_ahead, some)
            self._running |= {one: (work, place) for place, one in enumerate(some)}
