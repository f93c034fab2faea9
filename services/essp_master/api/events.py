"""What happens to a job, as server-sent events.

The stream carries what happened, each with its id, and about once a second the whole status as an event `status`
without one; it ends when the job has ended. A reader that was cut off resumes after its `Last-Event-ID`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.concurrency import run_in_threadpool

from essp_common.job.status import JobEvent, JobStatus
from essp_master.api.callers import OwnJobs
from essp_master.api.problems import answers_of
from essp_master.service import Master

_STATUS_S = 1.0
MOST = 2**53
"""The largest whole number that every reader of JSON knows."""


def router(master: Master) -> APIRouter:
    """The route of events."""
    routes = APIRouter(prefix="/v1/jobs", tags=["jobs"], dependencies=[Depends(OwnJobs(master))])

    def known_job(name: str) -> None:
        """Refuse an unknown job before the stream begins."""
        master.status(name)

    def look(name: str, seen: int) -> tuple[JobStatus, Sequence[JobEvent]]:
        return master.status(name), master.events(name, seen)

    @routes.get(
        "/{name}/events",
        operation_id="job_events",
        response_class=EventSourceResponse,
        responses=answers_of(401, 403, 404, 422, 503),
        dependencies=[Depends(known_job)],
    )
    async def job_events(
        name: str,
        after: Annotated[int, Query(ge=0, le=MOST, description="Only events after this id.")] = 0,
        last_event_id: Annotated[str | None, Header(pattern=r"^[0-9]{0,15}$")] = None,
    ) -> AsyncIterator[ServerSentEvent]:
        """What happens to a job, as it happens."""
        seen = int(last_event_id) if last_event_id else after
        while master.ready:
            # In a thread, as both wait for the master: the event loop also answers the probes of all.
            status, events = await run_in_threadpool(look, name, seen)
            for event in events:
                seen = event.id
                yield ServerSentEvent(event=event.kind, id=str(event.id), data=event)
            yield ServerSentEvent(event="status", data=status)
            if status.state.ended and seen >= status.last_event:
                return
            await asyncio.sleep(_STATUS_S)

    @routes.get("/{name}/log", operation_id="job_log", responses=answers_of(401, 403, 404, 422, 503))
    def job_log(
        name: str, after: Annotated[int, Query(ge=0, le=MOST, description="Only events after this id.")] = 0
    ) -> list[JobEvent]:
        """What has happened to a job, at once: the same events as of the stream."""
        return list(master.events(name, after))

    return routes
