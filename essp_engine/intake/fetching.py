"""Clips on their way from the cache: several at a time, although the consumer takes them one by one and in order.

A clip is requested when its turn is near, on a separate thread, and `value` waits for it. So the cache works on the
next clips while the consumer works on this one. A clip that failed ahead of its turn is requested again in its turn, so
errors are the same as without prefetching.

Threads request several clips at once if several have arrived, since passing a clip between threads takes Python as long
as fetching it. At most eight values per thread are held or on the way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from essp_common.errors import EsspError

A = TypeVar("A", bound=Hashable)

_TOGETHER = 4
"""The most clips that a thread requests at once."""


class Fetching(Generic[A]):
    """The values of arrivals, fetched ahead of their turn. Used from one thread."""

    def __init__(
        self,
        read: Callable[[A], Any],
        read_ahead: Callable[[Sequence[A]], list[Any]],
        threads: int,
        name: str,
        set_up_thread: Callable[[], object] | None = None,
    ) -> None:
        """`read`: reads one value from the cache. `read_ahead`: reads several, on any thread, and returns an
        `EsspError` for each value that it cannot read. `threads`: 0 reads when the value is requested, on the same
        thread."""
        self._read = read
        self._read_ahead = read_ahead
        self._threads = threads
        self._window = 2 * _TOGETHER * threads
        """Turns to look ahead: twice what the threads request at once, so that no thread waits for work."""
        self._pool = ThreadPoolExecutor(threads, f"essp-fetch-{name}", set_up_thread) if threads else None
        self._running: dict[A, tuple[Future[list[Any]], int]] = {}
        """Arrival -> the task that fetches it, and its index there."""

    def value(self, arrival: A, next_ones: Callable[[int], Iterable[A]]) -> Any:
        """The value of the arrival whose turn it is. Raises the same errors as `read`.

        `next_ones`: returns the arrivals that are present among this number of turns, beginning with this one.
        """
        if self._pool is None:
            return self._read(arrival)
        # The next request is made when half of the window is taken, not for each clip: threads then get several at
        # once.
        if arrival not in self._running or len(self._running) <= self._window // 2:
            self._ask(self._pool, list(next_ones(self._window)))
        work, place = self._running.pop(arrival)
        value = work.result()[place]
        # The error occurred before the clip's turn: the bytes may have arrived since.
        return self._read(arrival) if isinstance(value, EsspError) else value

    def close(self) -> None:
        """Wait for pending requests."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._running.clear()

    def _ask(self, pool: ThreadPoolExecutor, near: Sequence[A]) -> None:
        """Request what is not requested yet, and forget arrivals that were replaced or dropped."""
        for gone in self._running.keys() - set(near):
            del self._running[gone]
        new = [one for one in near if one not in self._running]
        # If few clips have arrived, each thread gets some: the consumer waits for the first of them.
        together = max(1, min(_TOGETHER, math.ceil(len(new) / self._threads)))
        for begin in range(0, len(new), together):
            some = new[begin : begin + together]
            work = pool.submit(self._read_ahead, some)
            self._running |= {one: (work, place) for place, one in enumerate(some)}
