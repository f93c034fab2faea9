"""The recent log lines of workers."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from essp_master.api.callers import OwnJobs, caller_of
from essp_master.api.events import MOST
from essp_master.api.problems import answers_of
from essp_master.service import Master
from essp_master.worker_logs import Level, LogLine

_Name = Annotated[str, Query(max_length=200)]


def router(master: Master) -> APIRouter:
    """Return the route for logs."""
    own = OwnJobs(master)
    routes = APIRouter(prefix="/v1/logs", tags=["logs"])

    @routes.get("", operation_id="list_logs", responses=answers_of(401, 403, 422))
    def list_logs(
        request: Request,
        after: Annotated[int, Query(ge=0, le=MOST, description="Only lines after this id.")] = 0,
        most: Annotated[int, Query(ge=1, le=10_000, description="Number of lines, the newest ones.")] = 500,
        level: Annotated[Level, Query(description="Only lines of this level or a more severe one.")] = "INFO",
        job: Annotated[_Name, Query(description="Only about this job.")] = "",
        pool: Annotated[_Name, Query(description="Only of this pool, or of those whose names begin so.")] = "",
        worker: Annotated[_Name, Query(description="Only of this worker.")] = "",
    ) -> list[LogLine]:
        """Log lines of workers and the master since this master began, oldest first.

        The master keeps the newest five thousand lines, and as many warnings and errors. A team's token gets the lines
        about that team's jobs.
        """
        caller = caller_of(request)
        names = None if caller.all_teams else own.names(caller)

        def open_to_it(line: LogLine) -> bool:
            return names is None or line.job in names

        return master.worker_logs.newest(most, after, level, job, pool, worker, open_to_it)

    return routes
