"""Who may call the API, and with how much: the token, and the size of a body. Checked before anything is read.

Health and metrics need no token: probes and Prometheus carry none, and they tell nothing of the data.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.master.problems import problem

OPEN_PATHS = frozenset({"/livez", "/readyz", "/metrics"})


class Guard:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, token: str, body_bytes: int) -> None:
        """`token`: what callers have to show; empty: nothing."""
        self._app = app
        self._token = token.encode()
        self._body_bytes = body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request = Request(scope)
        if not self._may_pass(request):
            answer = problem(
                401,
                "Who are you?",
                "this API needs the header `Authorization: Bearer <token>`; the token is ESSP_API_TOKEN of the master",
                {"WWW-Authenticate": "Bearer"},
            )
            return await answer(scope, receive, send)
        length = request.headers.get("content-length", "0")
        if not length.isdigit() or int(length) > self._body_bytes:
            return await self._too_large()(scope, receive, send)
        limited = _Limited(receive, self._body_bytes)
        try:
            await self._app(scope, limited, send)
        except BodyTooLarge:
            await self._too_large()(scope, receive, send)
        return None

    def _may_pass(self, request: Request) -> bool:
        if not self._token or request.url.path in OPEN_PATHS:
            return True
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(shown.strip().encode(), self._token)

    def _too_large(self) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
        return problem(413, "Too large", f"a request may have {self._body_bytes} bytes; a job needs some thousand")


class BodyTooLarge(Exception):
    """More came than may come."""


class _Limited:
    """A body that is counted while it comes, for one that does not say its length."""

    def __init__(self, receive: Receive, body_bytes: int) -> None:
        self._receive = receive
        self._left = body_bytes

    async def __call__(self) -> Message:
        message = await self._receive()
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            raise BodyTooLarge
        return message
