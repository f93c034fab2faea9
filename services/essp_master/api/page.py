"""The page at `/`: the jobs, their progress, and what limits them. Its files hold no data, so they need no token."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Response

from essp_common.errors import NotFound

_FOLDER = Path(__file__).parents[1] / "page"
_TYPES = {"index.html": "text/html", "page.css": "text/css", "page.js": "text/javascript"}
_POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"


def router() -> APIRouter:
    """The routes of the page."""
    routes = APIRouter(include_in_schema=False)

    @routes.get("/")
    def index() -> Response:
        return _file("index.html")

    @routes.get("/page/{name}")
    def part(name: str) -> Response:
        return _file(name)

    return routes


def _file(name: str) -> Response:
    if name not in _TYPES:
        raise NotFound(f"the page has no part {name}")
    headers = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-cache"}
    return Response((_FOLDER / name).read_bytes(), media_type=_TYPES[name], headers=headers)
