"""Who may call the API: token, scope, rate and size of the body, checked before the body is read.

    read       look at jobs, events, what is registered
    operate    start, pause, resume, stop jobs
    register   change what is registered: code that will run
    admin      everything

Health, metrics and the empty page need no token: probes and Prometheus have none, and these paths reveal no data.
Tokens are kept as SHA-256 (they are long and random, so nothing slower is needed), and compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Awaitable, Callable, Sequence

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from essp_master.api.problems import problem
from essp_master.api.rates import Rates
from essp_master.config import ApiToken, Right

OPEN_PATHS = frozenset({"/livez", "/readyz", "/metrics", "/", "/page/page.css", "/page/page.js"})
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_REGISTERED = ("/v1/extractors", "/v1/trainers", "/v1/pools")
_HEADERS = ((b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"))


class Guard:
    """ASGI middleware. Puts the name of the token into `request.state.caller`."""

    def __init__(self, app: ASGIApp, tokens: Sequence[ApiToken], body_bytes: int, requests_per_s: float) -> None:
        """`tokens`: callers have to show one of them; none: the API is open. `requests_per_s`: limit for one caller."""
        self._app = app
        self._rates = Rates(requests_per_s)
        self._tokens = tokens
        self._body_bytes = body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        request = Request(scope)
        refusal = self._refusal(request)
        if refusal is not None:
            return await refusal(scope, receive, send)
        limited = _Limited(receive, self._body_bytes)
        try:
            await self._app(scope, limited, _with_headers(send))
        except BodyTooLarge:
            await self._too_large()(scope, receive, send)
        return None

    def _refusal(self, request: Request) -> Callable[[Scope, Receive, Send], Awaitable[None]] | None:
        request.state.caller = "anyone"
        if request.url.path in OPEN_PATHS:
            return None
        token = self._token_of(request) if self._tokens else None
        caller = f"token {token.name}" if token else f"address {request.client.host if request.client else ''}"
        if wait_s := self._rates.wait_s(caller):
            return problem(
                429,
                "Too many requests",
                f"{caller} sends more requests than ESSP_API_REQUESTS_PER_S of the master allows; wait",
                {"Retry-After": str(math.ceil(wait_s))},
            )
        if self._tokens:
            if token is None:
                return problem(
                    401,
                    "Token missing or unknown",
                    "this API needs the header `Authorization: Bearer <token>`; the token is ESSP_API_TOKEN of the "
                    "master, or one of its ESSP_API_TOKENS",
                    {"WWW-Authenticate": "Bearer"},
                )
            right = needed(request.method, request.url.path)
            if right not in token.scopes and Right.ADMIN not in token.scopes:
                return problem(403, "Scope missing", f"token {token.name} lacks the scope `{right}` that this needs")
            request.state.caller = token.name
        length = request.headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > self._body_bytes:
            return self._too_large()
        return None

    def _token_of(self, request: Request) -> ApiToken | None:
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        digest = hashlib.sha256(shown.strip().encode("utf-8", "surrogateescape")).hexdigest()
        matching = [token for token in self._tokens if hmac.compare_digest(token.sha256, digest)]
        return matching[0] if matching and scheme.lower() == "bearer" else None

    def _too_large(self) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
        return problem(413, "Too large", f"a request may have {self._body_bytes} bytes; a job needs some thousand")


def needed(method: str, path: str) -> Right:
    """The scope that a request needs."""
    if method in _READING:
        return Right.READ
    return Right.REGISTER if path.startswith(_REGISTERED) else Right.OPERATE


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *_HEADERS]
        await send(message)

    return sending


class BodyTooLarge(Exception):
    """The body is larger than allowed."""


class _Limited:
    """Counts the body while it arrives, for requests without a content length."""

    def __init__(self, receive: Receive, body_bytes: int) -> None:
        self._receive = receive
        self._left = body_bytes

    async def __call__(self) -> Message:
        message = await self._receive()
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            raise BodyTooLarge
        return message
