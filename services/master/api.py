"""The REST API, under /v1; the service is described at /docs and /openapi.json.

    POST /v1/jobs[?fresh=true]       start a job: its specification as JSON or YAML -> 202, Location
    GET  /v1/jobs                    all jobs, newest first
    GET  /v1/jobs/{name}             all there is to know of one
    POST /v1/jobs/{name}:pause       also :resume, :stop; doing it twice is harmless; 409 where it is not possible
    GET  /v1/jobs/{name}/events      server-sent events; goes on after `Last-Event-ID`
    /metrics /livez /readyz          for Prometheus and probes

Errors are problem documents (`problems.py`). The event stream carries what happened, each with its id, and about once a
second the whole status as an event `status` without one; it ends when the job has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, Query, Request, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.concurrency import run_in_threadpool

from essp_common.spec import JobSpec, parse_spec
from services.master import problems
from services.master.config import MasterSettings
from services.master.exposition import exposition
from services.master.guard import Guard
from services.master.service import Master
from services.master.status import JobStatus, JobSummary

_STATUS_S = 1.0
_ACTIONS = ("pause", "resume", "stop")
_PROBLEM: dict[str, Any] = {"content": {problems.MEDIA_TYPE: {}}}
_ERRORS: dict[int | str, dict[str, Any]] = {
    401: {"description": "No or wrong token", **_PROBLEM},
    404: {"description": "No such job", **_PROBLEM},
    409: {"description": "The state does not allow it; the answer names it", **_PROBLEM},
    422: {"description": "Not valid; the answer names the fields", **_PROBLEM},
    503: {"description": "A server does not answer", **_PROBLEM},
}
_SPEC = {"schema": {"$ref": "#/components/schemas/JobSpec"}}
_BODY = {"requestBody": {"required": True, "content": {"application/json": _SPEC, "application/yaml": _SPEC}}}


def create_app(master: Master, settings: MasterSettings) -> FastAPI:
    """The API over a master. Without a token in the settings it is open to whoever reaches it."""
    app = FastAPI(title="ESSP", version=version("essp"), summary="Train video classifiers straight from video.")
    app.add_middleware(Guard, token=settings.api_token.get_secret_value(), body_bytes=settings.api_body_bytes)
    problems.install(app)
    _job_routes(app, master)
    _event_route(app, master)
    _health_routes(app, master)
    _describe_jobs(app)
    return app


def _describe_jobs(app: FastAPI) -> None:
    """Add the job specification to the description of the API: its body is read as it is, since it may be YAML."""
    schema = JobSpec.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas = {**schema.pop("$defs", {}), "JobSpec": schema}
    described = app.openapi

    def openapi() -> dict[str, Any]:
        document = described()
        document.setdefault("components", {}).setdefault("schemas", {}).update(schemas)
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _job_routes(app: FastAPI, master: Master) -> None:
    @app.post("/v1/jobs", status_code=202, operation_id="start_job", responses=_ERRORS, openapi_extra=_BODY)
    async def start_job(
        request: Request,
        response: Response,
        fresh: Annotated[bool, Query(description="Remove what an earlier run of the job left.")] = False,
    ) -> JobStatus:
        """Start a job; one that has ended goes on from its checkpoints."""
        job = parse_spec((await request.body()).decode("utf-8", "replace"))
        status = await run_in_threadpool(master.start, job, fresh)
        response.headers["Location"] = f"/v1/jobs/{job.name}"
        return status

    @app.get("/v1/jobs", operation_id="list_jobs", responses={401: _ERRORS[401]})
    def list_jobs() -> list[JobSummary]:
        """All jobs this master knows, newest first."""
        return master.jobs()

    @app.get("/v1/jobs/{name}", operation_id="get_job", responses=_ERRORS)
    def get_job(name: str) -> JobStatus:
        """All there is to know of a job."""
        return master.status(name)

    for action in _ACTIONS:
        app.post(
            f"/v1/jobs/{{name}}:{action}", operation_id=f"{action}_job", summary=action.title(), responses=_ERRORS
        )(_action(master, action))


def _action(master: Master, action: str) -> Any:
    method = {"pause": master.pause, "resume": master.resume, "stop": master.stop}[action]

    def act(name: str) -> JobStatus:
        return method(name)

    act.__doc__ = f"{action.title()} a job. Harmless twice."
    return act


def _event_route(app: FastAPI, master: Master) -> None:
    def known_job(name: str) -> None:
        """Refuse an unknown job before the stream begins."""
        master.status(name)

    @app.get(
        "/v1/jobs/{name}/events",
        operation_id="job_events",
        response_class=EventSourceResponse,
        responses=_ERRORS,
        dependencies=[Depends(known_job)],
    )
    async def job_events(
        name: str,
        after: Annotated[int, Query(ge=0, description="Only events after this id.")] = 0,
        last_event_id: Annotated[str | None, Header()] = None,
    ) -> AsyncIterator[ServerSentEvent]:
        """What happens to a job, as it happens."""
        seen = int(last_event_id) if last_event_id and last_event_id.isdigit() else after
        while master.ready:
            status = await run_in_threadpool(master.status, name)
            for event in master.events(name, seen):
                seen = event.id
                yield ServerSentEvent(event=event.kind, id=str(event.id), data=event)
            yield ServerSentEvent(event="status", data=status)
            if status.state.ended and seen >= status.last_event:
                return
            await asyncio.sleep(_STATUS_S)


def _health_routes(app: FastAPI, master: Master) -> None:
    @app.get("/livez", include_in_schema=False)
    def livez() -> Response:
        return Response("ok\n", media_type="text/plain")

    @app.get("/readyz", include_in_schema=False)
    def readyz() -> Response:
        ready = master.ready
        return Response("ready\n" if ready else "leaving\n", 200 if ready else 503, media_type="text/plain")

    @app.get("/metrics", include_in_schema=False)
    def metrics() -> Response:
        return Response(exposition(running), media_type=CONTENT_TYPE_LATEST)

    def running() -> list[JobStatus]:
        return [master.status(job.name) for job in master.jobs() if not job.state.ended]
