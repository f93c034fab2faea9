"""Separate threads for requests that may wait for a store.

All other requests share one thread pool. A request to a store that does not answer can block for more than a minute. If
such requests used the shared pool, a page that polls its pools every two seconds would soon occupy all of it, and no
one could stop a job any more.
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
    """A thread pool for one kind of request. A request that waits for a free thread waits in the event loop and blocks
    no one else."""

    def __init__(self) -> None:
        self._threads = CapacityLimiter(_THREADS)

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `call` in one of these threads and return its result."""
        return await run_sync(functools.partial(call, *args, **kwargs), limiter=self._threads)

    def route(self, call: Callable[P, T]) -> Callable[P, Awaitable[T]]:
        """Wrap a route function so that it runs in these threads."""

        @functools.wraps(call)
        async def answer(*args: P.args, **kwargs: P.kwargs) -> T:
            return await self.run(call, *args, **kwargs)

        return answer
