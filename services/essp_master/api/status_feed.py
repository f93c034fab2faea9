"""The status of each watched job, computed once a second however many clients watch it.

The status of a job with thousands of epochs is megabytes of JSON. Each event stream sends it about once a second, so it
is computed and encoded once, and all streams of the job send the same bytes. Used only on the event loop.
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
    """The current state of a job for its event streams."""

    status: bytes
    """The encoded event `status`."""
    ended: bool
    last_event: int
    events: EventLog


class StatusFeed:
    """Gives all streams of a job the same status."""

    def __init__(self, master: Master, clock: Callable[[], float] = time.monotonic) -> None:
        self._master = master
        self._clock = clock
        self._made: dict[str, tuple[float, asyncio.Task[Watched]]] = {}
        """By job: when the task was started, and the task."""

    async def of(self, job: str) -> Watched:
        """Return the state of a job, at most `STATUS_S` old. Raises `NotFound`, `Unavailable`."""
        now_s = self._clock()
        for name, (begun_s, task) in list(self._made.items()):
            if task.done() and now_s - begun_s >= STATUS_S:
                del self._made[name]
        if job not in self._made:
            # In a thread, since it waits for the master: the event loop also answers all probes.
            self._made[job] = now_s, asyncio.ensure_future(run_in_threadpool(self._make, job))
        # shielded: a reader that leaves does not cancel the task for the others
        return await asyncio.shield(self._made[job][1])

    def _make(self, job: str) -> Watched:
        status, events = self._master.watched(job)
        text = status.model_dump_json()
        return Watched(format_sse_event(data_str=text, event="status"), status.state.ended, status.last_event, events)
