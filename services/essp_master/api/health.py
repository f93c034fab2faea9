"""Probes and metrics: open to all, since they reveal no data."""

from __future__ import annotations

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST

from essp_common.job.status import JobStatus
from essp_master.api.exposition import exposition
from essp_master.service import Master


def router(master: Master) -> APIRouter:
    """The routes for Prometheus and probes; not part of the described API."""
    routes = APIRouter(include_in_schema=False)

    @routes.get("/livez")
    def livez() -> Response:
        return Response("ok\n", media_type="text/plain")

    @routes.get("/readyz")
    def readyz() -> Response:
        ready = master.ready
        return Response("ready\n" if ready else "leaving\n", 200 if ready else 503, media_type="text/plain")

    @routes.get("/metrics")
    def metrics() -> Response:
        return Response(exposition(running), media_type=CONTENT_TYPE_LATEST)

    def running() -> list[JobStatus]:
        return [master.status(job.name) for job in master.jobs() if not job.state.ended]

    return routes
