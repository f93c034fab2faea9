"""The route for conditions: what currently keeps ESSP from working."""

from __future__ import annotations

from fastapi import APIRouter, Request

from essp_common.runtime.conditions import Condition
from essp_master.api.callers import OwnJobs, caller_of
from essp_master.api.problems import answers_of
from essp_master.service import Master


def router(master: Master) -> APIRouter:
    """Return the route for conditions."""
    own = OwnJobs(master)
    routes = APIRouter(prefix="/v1/conditions", tags=["conditions"])

    @routes.get("", operation_id="list_conditions", responses=answers_of(401, 403))
    def list_conditions(request: Request) -> list[Condition]:
        """What keeps pools, trainers or the master from working now, oldest first. Empty if nothing does."""
        return [it for it in master.conditions.present if own.sees_pool(caller_of(request), it.subject)]

    return routes
