"""Probes and metrics: open to all, as far as they reveal no data.

A master that something keeps from working answers `/readyz` with 503 and the kind of trouble; it still serves
requests. `/metrics` includes the metrics of jobs and pools for callers with a token: their team's jobs, or all. The
event loop answers probes itself, so that they never wait for the threads that answer users.
"""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from essp_common.runtime.conditions import summary
from essp_master.api.callers import caller_of
from essp_master.api.exposition import JobCollector, PoolCollector, UsageCollector, exposition
from essp_master.pools.reconciler import Reconciler
from essp_master.service import Master


def router(master: Master, reconciler: Reconciler | None) -> APIRouter:
    """Return the routes for Prometheus and probes; they are not part of the described API."""
    routes = APIRouter(include_in_schema=False)

    @routes.get("/livez")
    async def livez() -> Response:
        return Response("ok\n", media_type="text/plain")

    @routes.get("/readyz")
    async def readyz() -> Response:
        if master.ready:
            why = summary(master.conditions.present)
            return Response(why or "ready\n", 503 if why else 200, media_type="text/plain")
        # Without details, since not every caller may see them; API requests get them in the error.
        waits = "waits for a server that does not answer, to take over what was under way"
        return Response(f"{waits if master.obstacle else 'starts, or leaves'}\n", 503, media_type="text/plain")

    @routes.get("/metrics")
    def metrics(request: Request) -> Response:
        caller = caller_of(request)
        if not (caller.all_teams or caller.scopes):
            return Response(exposition(), media_type=CONTENT_TYPE_LATEST)
        jobs = [job for job in master.recent() if caller.owns(job.team)]
        collectors: list[Collector] = [JobCollector(lambda: jobs)]
        if caller.all_teams:
            collectors.append(UsageCollector(master.usage()))
        if caller.all_teams and reconciler is not None:
            collectors.append(PoolCollector(reconciler.last_seen, reconciler.ranks))
        return Response(exposition(*collectors), media_type=CONTENT_TYPE_LATEST)

    return routes
