"""Pages for users: `/` shows the jobs with curves, flow and bottlenecks; at `/docs` people try the calls of the API.

Their files contain no data, so they need no token, and they load nothing from other servers. The page consists of plain
JavaScript modules, which the browser loads unchanged. `/docs` is Swagger UI, from the package `swagger-ui-bundle`;
without the package, it lists the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Response

from essp_common.distribution import install
from essp_common.errors import NotFound

_FOLDER = Path(__file__).parents[1] / "page"
_ICON = "icon.svg"
_MODULES = (
    "api",
    "chart",
    "compare",
    "course",
    "create",
    "docs",
    "dom",
    "events",
    "fields",
    "filters",
    "flow",
    "job",
    "jobs",
    "logs",
    "page",
    "pools",
    "previews",
    "scales",
    "settings",
    "usage",
    "words",
)
_TYPES = {
    "index.html": "text/html",
    "docs.html": "text/html",
    "page.css": "text/css",
    "docs.css": "text/css",
    _ICON: "image/svg+xml",
} | {f"{name}.js": "text/javascript" for name in _MODULES}
_SWAGGER = {"swagger-ui.css": "text/css", "swagger-ui-bundle.js": "text/javascript"}
OPEN_PARTS = frozenset({*(f"/page/{name}" for name in _TYPES), *(f"/docs/{name}" for name in _SWAGGER)})
"""Paths that a browser loads before it has a token."""
_POLICY = "default-src 'self'; img-src 'self' blob:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
_DOCS_POLICY = _POLICY.replace("blob:", "data:")  # Swagger UI has its icons in its program


def router(description: Callable[[], dict[str, Any]]) -> APIRouter:
    """Return the routes for the pages. `description`: returns the OpenAPI document."""
    routes = APIRouter(include_in_schema=False)

    @routes.get("/")
    def index() -> Response:
        return _file("index.html")

    @routes.get("/docs")
    def docs() -> Response:
        if _swagger() is not None:
            return _page((_FOLDER / "docs.html").read_bytes(), "text/html", _DOCS_POLICY)
        return _page("\n".join(_described(description())).encode(), "text/html")

    @routes.get("/docs/{name}")
    def docs_part(name: str) -> Response:
        folder = _swagger()
        if folder is None or name not in _SWAGGER:
            raise NotFound(f"the description of the API has no part {name}")
        return _page((folder / name).read_bytes(), _SWAGGER[name])

    @routes.get("/favicon.ico")
    def favicon() -> Response:
        return _file(_ICON)

    @routes.get("/page/{name}")
    def part(name: str) -> Response:
        return _file(name)

    return routes


@cache
def _swagger() -> Path | None:
    """Return the folder of Swagger UI; None if it is not installed."""
    try:
        folder = Path(import_module("swagger_ui_bundle").swagger_ui_path)
    except ImportError:
        return None
    return folder if all((folder / name).is_file() for name in _SWAGGER) else None


def _file(name: str) -> Response:
    if name not in _TYPES:
        raise NotFound(f"the page has no part {name}")
    return _page((_FOLDER / name).read_bytes(), _TYPES[name])


def _page(content: bytes, media_type: str, policy: str = _POLICY) -> Response:
    headers = {"Content-Security-Policy": policy, "Cache-Control": "no-cache"}
    return Response(content, media_type=media_type, headers=headers)


def _described(document: dict[str, Any]) -> Iterator[str]:
    """Yield the description of the API as HTML, one section per operation."""
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>API of ESSP</title>'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield '<link rel="stylesheet" href="page/page.css"><link rel="icon" href="page/icon.svg" type="image/svg+xml">'
    yield '</head><body><header><h1>API</h1><nav><a href=".">jobs</a> <a href="openapi.json">OpenAPI</a></nav></header>'
    yield "<main><p>To try calls here, install <code>swagger-ui-bundle</code> where the master runs, with "
    yield f"<code>{escape(install('master'))}</code>.</p>"
    yield "<p>Requests carry <code>Authorization: Bearer &lt;token&gt;</code>. For programs, and with the "
    yield "schemas of all bodies: <a href='openapi.json'>openapi.json</a>.</p>"
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield f"<section><h2>{method.upper()} {escape(path)}</h2>"
            yield f"<p>{escape(operation.get('description') or operation.get('summary', ''))}</p><ul>"
            for parameter in operation.get("parameters", ()):
                told = escape(parameter.get("description", ""))
                yield f"<li><code>{escape(parameter['name'])}</code> ({parameter['in']}) {told}</li>"
            yield "</ul><ul>"
            for status, answer in operation["responses"].items():
                yield f"<li>{escape(status)}: {escape(answer['description'])}</li>"
            yield "</ul></section>"
    yield "</main></body></html>"
