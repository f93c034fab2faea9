"""A master that does not lead forwards requests to the leader.

So a request may reach any of several masters. While no master leads, the answer is 503 with `Retry-After`. Every answer
names the leader in `Essp-Leader`. A leader may take its time, but once another master leads, the standby stops waiting
for the old one: its node may be gone, and then nothing ends the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

import httpx
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from essp_master.api import problems
from essp_master.api.exposition import JobCollector, exposition
from essp_master.api.problems import problem

LEADER = "Essp-Leader"
_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
_OWN = frozenset({"host", "connection", "transfer-encoding", "content-length", "keep-alive", "upgrade"})
_CHECKED = frozenset({"origin", "sec-fetch-site", "sec-fetch-mode", "sec-fetch-dest", "sec-fetch-user"})
"""The guard of this master has checked these headers. The leader would compare them with its own address."""
_CONNECT_S = 5.0
_LOOK_S = 1.0
"""Interval at which the standby checks whether the master it asked still leads."""

T = TypeVar("T")


class Front:
    """An app that can be replaced while it is being served, when a standby becomes the leader."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


def create_standby(leader: Callable[[], str], own_url: str) -> Starlette:
    """Return the app of a standby. `leader`: returns the leader's URL, or "" if there is no leader."""
    # No connection outlives its answer, so none needs to be closed when this app is replaced.
    limits = httpx.Limits(max_keepalive_connections=0)
    client = httpx.AsyncClient(timeout=httpx.Timeout(None, connect=_CONNECT_S), limits=limits)

    async def forward(request: Request) -> Response:
        url = leader()
        if not url or url == own_url:
            return problem(503, "No leader", "no master leads at the moment; try again", {"Retry-After": "2"})
        # Forwarded unchanged: a path rebuilt from headers could differ from the one that the guard has checked.
        dropped = _OWN | _CHECKED
        headers = [
            (name, value) for name, value in request.headers.raw if name.decode("latin-1").lower() not in dropped
        ]
        path, query = request.scope["raw_path"].decode("ascii"), request.scope["query_string"].decode("ascii")
        body = await request.body()
        try:
            passed = client.build_request(
                request.method, f"{url}{path}{'?' if query else ''}{query}", headers=headers, content=body
            )
        except httpx.InvalidURL as error:
            return problem(400, "No address", f"{path} cannot be an address ({error})")

        def lost() -> bool:
            return leader() not in ("", url)

        try:
            answer = await _unless(lost, client.send(passed, stream=True))
        except httpx.TransportError as error:
            detail = f"the master that leads, {url}, does not answer ({error}); try again"
            return problem(503, "The leader does not answer", detail, {"Retry-After": "2", LEADER: url})
        kept = {k: v for k, v in answer.headers.items() if k.lower() not in _OWN} | {LEADER: url}
        return StreamingResponse(_raw(answer, lost), answer.status_code, kept)

    async def livez(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(request: Request) -> Response:
        url = leader()
        return PlainTextResponse(f"standby of {url or 'no leader'}\n", 200 if url else 503)

    async def metrics(request: Request) -> Response:
        # Its own metrics; the leader's are read from the leader.
        return Response(exposition(JobCollector(lambda: (), leads=False)), media_type=CONTENT_TYPE_LATEST)

    own = [Route("/livez", livez), Route("/readyz", readyz), Route("/metrics", metrics)]
    app = Starlette(routes=[*own, Route("/{path:path}", forward, methods=_METHODS)])
    problems.install(app)
    return app


async def _unless(lost: Callable[[], bool], wanted: Coroutine[Any, Any, T]) -> T:
    """Return the result of `wanted`. Raises `httpx.ReadError` if another master takes the lead first."""
    task = asyncio.ensure_future(wanted)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=_LOOK_S)
            if not task.done() and lost():
                raise httpx.ReadError("another master leads by now")
        return task.result()
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _raw(answer: httpx.Response, lost: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Yield the body as it arrives, also for an event stream."""
    parts = answer.aiter_raw()

    async def following() -> bytes | None:
        return await anext(parts, None)

    try:
        while (part := await _unless(lost, following())) is not None:
            yield part
    finally:
        await answer.aclose()
