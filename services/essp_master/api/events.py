"""Events of a job as server-sent events.

The stream carries each event with its id, and about once a second an event `status`, without an id, with the whole
status. It ends when the job has ended. A reader that was cut off resumes after its `Last-Event-ID`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query
from fastapi.sse import format_sse_event
from starlette.responses import StreamingResponse

from essp_common.job.status import JobEvent
from essp_master.api.callers import OwnJobs
from essp_master.api.problems import answers_of
from essp_master.api.status_feed import STATUS_S, StatusFeed, Watched
from essp_master.service import Master

MOST = 2**53
"""The largest integer that every JSON reader represents exactly."""
_EVENT = {"type": "object", "properties": {name: {"type": "string"} for name in ("data", "event", "id")}}


class EventStream(StreamingResponse):
    """Server-sent events that are already encoded. FastAPI's own class would encode them again for each reader."""

    media_type = "text/event-stream"


def router(master: Master) -> APIRouter:
    """Return the routes for events."""
    routes = APIRouter(prefix="/v1/jobs", tags=["jobs"], dependencies=[Depends(OwnJobs(master))])
    feed = StatusFeed(master)

    async def stream(name: str, seen: int, job: Watched) -> AsyncIterator[bytes]:
        while master.ready:
            for event in job.events.after(seen):
                seen = event.id
                yield format_sse_event(data_str=event.model_dump_json(), event=event.kind, id=str(event.id))
            yield job.status
            if job.ended and seen >= job.last_event:
                return
            await asyncio.sleep(STATUS_S)
            job = await feed.of(name)

    @routes.get(
        "/{name}/events",
        operation_id="job_events",
        response_class=EventStream,
        responses={
            **answers_of(401, 403, 404, 422, 503),
            200: {"content": {"text/event-stream": {"itemSchema": _EVENT}}},
        },
    )
    async def job_events(
        name: str,
        after: Annotated[int, Query(ge=0, le=MOST, description="Only events after this id.")] = 0,
        last_event_id: Annotated[str | None, Header(pattern=r"^[0-9]{0,15}$")] = None,
    ) -> EventStream:
        """The events of a job, as they happen."""
        known = await feed.of(name)  # refuses an unknown job before the stream begins
        seen = int(last_event_id) if last_event_id else after
        return EventStream(stream(name, seen, known), headers={"Cache-Control": "no-cache"})

    @routes.get("/{name}/log", operation_id="job_log", responses=answers_of(401, 403, 404, 422, 503))
    def job_log(
        name: str, after: Annotated[int, Query(ge=0, le=MOST, description="Only events after this id.")] = 0
    ) -> list[JobEvent]:
        """All events of a job so far, at once: the same events as in the stream."""
        return list(master.events(name, after))

    return routes
