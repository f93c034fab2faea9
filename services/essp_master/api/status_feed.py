"""The status of each job that is watched, made once a second however many watch it.

The status of a job with thousands of epochs is megabytes of JSON. Each event stream sends it about once a second, so
it is made and written as an event once, and all streams of the job send the same bytes. Used on the event loop alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from fastapi.sse import format_sse_event
from starlette.concurrency import run_in_threadpool

from essp_master.job.events import EventLog
from essp_master.service import Master

STATUS_S = 1.0


@dataclass(frozen=True, slots=True)
class Watched:
    """A job as those who watch it see it now."""

    status: bytes
    """The event `status`."""
    ended: bool
    last_event: int
    events: EventLog


class StatusFeed:
    """Gives all streams of a job the same status."""

    def __init__(self, master: Master, clock: Callable[[], float] = time.monotonic) -> None:
        self._master = master
        self._clock = clock
        self._made: dict[str, tuple[float, asyncio.Task[Watched]]] = {}
        """By job: when it was begun."""

    async def of(self, job: str) -> Watched:
        """A job as it was at most `STATUS_S` ago. Raises `NotFound`, `Unavailable`."""
        now_s = self._clock()
        for name, (begun_s, task) in list(self._made.items()):
            if task.done() and now_s - begun_s >= STATUS_S:
                del self._made[name]
        if job not in self._made:
            # In a thread, as it waits for the master: the event loop also answers the probes of all.
            self._made[job] = now_s, asyncio.ensure_future(run_in_threadpool(self._make, job))
        return await asyncio.shield(self._made[job][1])  # one reader that leaves takes it from no other

    def _make(self, job: str) -> Watched:
        status, events = self._master.watched(job)
        text = status.model_dump_json()
        return Watched(format_sse_event(data_str=text, event="status"), status.state.ended, status.last_event, events)
