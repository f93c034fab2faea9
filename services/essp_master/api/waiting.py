"""The API before its master exists, or after it is gone: it serves the page and asks callers to wait."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from essp_master.api import page, problems
from essp_master.api.guard import Guard, guarded
from essp_master.api.problems import problem
from essp_master.config import MasterSettings

_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


def create_waiting(settings: MasterSettings) -> Guard:
    """Return an API without a master, behind the same guard as the real one."""
    app = FastAPI(title="ESSP", docs_url=None, redoc_url=None)
    app.include_router(page.router(lambda: app.openapi()))

    async def livez() -> Response:
        return PlainTextResponse("ok\n")

    async def wait(request: Request) -> Response:
        return problem(503, "No job yet", "no job is under way here at the moment; try again", {"Retry-After": "1"})

    app.add_api_route("/livez", livez, include_in_schema=False)
    app.add_api_route("/{path:path}", wait, methods=_METHODS, include_in_schema=False)
    problems.install(app)
    return guarded(app, settings)
