"""Pools: their sizes, with reasons, and their bounds."""

from __future__ import annotations

from fastapi import APIRouter, Request

from essp_common.errors import ConfigError
from essp_master.api.aside import Aside
from essp_master.api.callers import OwnJobs, caller_of
from essp_master.api.problems import answers_of
from essp_master.pools.pool_events import PoolEvent
from essp_master.pools.reconciler import PoolView, Reconciler
from essp_master.pools.rules import PoolRule


def router(reconciler: Reconciler | None, own: OwnJobs) -> APIRouter:
    """Return the routes for pools."""
    routes, aside = APIRouter(prefix="/v1/pools", tags=["pools"]), Aside()

    def keeper() -> Reconciler:
        if reconciler is None:
            raise ConfigError("this master has no pools: it runs a job in its own process", code="unsupported")
        return reconciler

    @routes.get("", operation_id="list_pools", responses=answers_of(401, 403, 422, 503))
    @aside.route
    def list_pools(request: Request) -> list[PoolView]:
        """All pools with the autoscaler's classification; only those trainer pools that the token gives access to."""
        return [pool for pool in keeper().pools() if own.sees_pool(caller_of(request), pool.name)]

    @routes.get("/events", operation_id="pool_events", responses=answers_of(401, 403, 422))
    def pool_events(request: Request) -> list[PoolEvent]:
        """Changes of pools with their reasons, newest last; of trainers only those that the token gives access to."""
        caller = caller_of(request)
        # one without a pool may name any training
        own_events = (event for event in keeper().events() if event.pool or caller.all_teams)
        return [event for event in own_events if own.sees_pool(caller, event.pool)]

    @routes.put("/{name}", operation_id="set_pool", responses=answers_of(401, 403, 404, 413, 415, 422, 502, 503))
    @aside.route
    def set_pool(name: str, rule: PoolRule, request: Request) -> PoolRule:
        """Keep a pool within these bounds, or at this size. This survives a takeover by another master."""
        return keeper().set(name, rule, caller_of(request).name)

    @routes.post("/{name}:pause", operation_id="pause_pool", responses=answers_of(401, 403, 404, 415, 422, 502, 503))
    @aside.route
    def pause_pool(name: str, request: Request) -> PoolRule:
        """Let the workers of a pool finish what they have, and take nothing new. They stay. This survives a takeover by
        another master."""
        return keeper().pause(name, caller_of(request).name)

    @routes.post("/{name}:resume", operation_id="resume_pool", responses=answers_of(401, 403, 404, 415, 422, 502, 503))
    @aside.route
    def resume_pool(name: str, request: Request) -> PoolRule:
        """Let the workers of a paused pool work again."""
        return keeper().resume(name, caller_of(request).name)

    @routes.delete(
        "/{name}", operation_id="reset_pool", status_code=204, responses=answers_of(401, 403, 404, 422, 502, 503)
    )
    @aside.route
    def reset_pool(name: str, request: Request) -> None:
        """Remove the bounds that were set; the pool gets its initial bounds again."""
        keeper().reset(name, caller_of(request).name)

    return routes
