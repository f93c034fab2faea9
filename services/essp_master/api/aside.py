"""Threads of their own for requests that may wait for a store.

All other requests share one set of threads. A store that does not answer keeps whoever asks it for more than a minute;
were they of that set, a page that looks at its pools every two seconds would soon have taken them all, and nobody could
stop a job any more.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

P = ParamSpec("P")
T = TypeVar("T")

_THREADS = 16


class Aside:
    """Threads for one kind of request. What waits for one of them waits in the event loop, and keeps nobody."""

    def __init__(self) -> None:
        self._threads = CapacityLimiter(_THREADS)

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `call` returns."""
        return await run_sync(functools.partial(call, *args, **kwargs), limiter=self._threads)

    def route(self, call: Callable[P, T]) -> Callable[P, Awaitable[T]]:
        """The same as a function of a route."""

        @functools.wraps(call)
        async def answer(*args: P.args, **kwargs: P.kwargs) -> T:
            return await self.run(call, *args, **kwargs)

        return answer
