"""The route for what workers do and use: cores, memory, disk, GPUs."""

from __future__ import annotations

from fastapi import APIRouter, Request

from essp_common.job.usage import Usage
from essp_master.api.callers import Caller, OwnJobs, caller_of
from essp_master.api.problems import answers_of
from essp_master.service import Master


def router(master: Master) -> APIRouter:
    """Return the route for usage."""
    own = OwnJobs(master)
    routes = APIRouter(prefix="/v1/usage", tags=["usage"])

    @routes.get("", operation_id="get_usage", responses=answers_of(401, 403))
    def get_usage(request: Request) -> Usage:
        """What each pool does and uses, and each process of workers, by their last heartbeats: cores, memory, disk,
        GPUs. Only those trainer pools that the token gives access to."""
        return visible(master.usage(), own, caller_of(request))

    return routes


def visible(usage: Usage, own: OwnJobs, caller: Caller) -> Usage:
    """Return what this caller may see."""
    if caller.all_teams:
        return usage
    pools = [pool for pool in usage.pools if own.sees_pool(caller, pool.pool)]
    processes = []
    for process in usage.processes:
        if seen := tuple(pool for pool in process.pools if own.sees_pool(caller, pool)):
            processes.append(process.model_copy(update={"pools": seen}))
    return Usage(pools=tuple(pools), processes=tuple(processes))
