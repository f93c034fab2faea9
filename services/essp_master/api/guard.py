"""Who may call the API. Checks, in order and before the body is read: the origin of the request (`door.py`), the rate,
token and scope, the number of requests at once, and the type and size of the body.

    metrics    read the figures of all jobs at /metrics
    read       read jobs, events and registrations
    operate    check, start, pause, resume, stop jobs
    register   change what is registered: code that will run
    admin      everything, of every team

`callers.py` says whose jobs a token gives access to.

 Probes, the page without its data, and the API description need no token: a browser does not have one yet, and these
paths reveal no data. Without a token, `/metrics` has only the metrics of the process, which name no job. Tokens are
kept as SHA-256 digests (they are long and random, so no slower hash is needed) and compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import socket
import time
from collections.abc import Callable, Sequence

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from essp_common.distribution import VERSION_HEADER, version
from essp_common.runtime.api_token import ApiToken, Right
from essp_common.runtime.metrics import API_SECONDS
from essp_master.api.callers import Caller
from essp_master.api.door import Door, Refusal, own_request, untyped
from essp_master.api.page import OPEN_PARTS
from essp_master.api.places import Places, Use
from essp_master.api.problems import problem
from essp_master.api.rates import Rates
from essp_master.api.tokens import Tokens
from essp_master.config import MasterSettings

log = logging.getLogger(__name__)

METRICS = "/metrics"
_PROBES = frozenset({"/livez", "/readyz"})
_PAGES = frozenset({"/", "/docs"})
OPEN_PATHS = frozenset({*_PROBES, *_PAGES, METRICS, "/favicon.ico", "/openapi.json", *OPEN_PARTS})
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_METHODS = _READING | {"POST", "PUT", "PATCH", "DELETE"}
_JOBS = "/v1/jobs"
_REGISTERED = ("/v1/extractors/", "/v1/trainers/", "/v1/pools/")
_YAML = frozenset({_JOBS, f"{_JOBS}:validate"})
"""Paths that accept YAML, in addition to changes of jobs."""
_MOST_DIGITS = 20
"""Longest content length accepted, in digits: Python needs quadratic time to parse thousands."""
_HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
    VERSION_HEADER.lower().encode(): version().encode(),
}
"""Default headers; an answer may override them."""
_UNSTORED = (b"cache-control", b"no-store")
"""Added to every answer that may contain data."""


class Guard:
    """ASGI middleware. Puts the caller into `request.state.caller` (`callers.py`).

    It decides by the path in the scope, which is the one that the router sees; a URL rebuilt from this path and the
    headers could differ. Every path that is not known to be open needs a token.
    """

    def __init__(
        self,
        app: ASGIApp,
        tokens: Callable[[], Sequence[ApiToken]],
        body_bytes: int,
        requests_per_s: float,
        requests_at_once: int = 1000,
        names: Sequence[str] = (),
    ) -> None:
        """`tokens`: returns the present ones. Callers must show one of them; without any, the API is open.
        `requests_per_s`: the limit for one caller. `requests_at_once`: the limit for all callers together, divided by
        `places.py`; requests that need no token do not count. `names`: names of this server (`door.py`)."""
        self._app = app
        self._rates = Rates(requests_per_s)
        self._tokens = tokens
        self._door = Door(names)
        self._body_bytes = body_bytes
        self._places = Places(requests_at_once)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":
            raise RuntimeError(f"the API speaks HTTP, not {scope['type']}")
        send = _with_headers(scope, _timed(scope, send))
        request = Request(scope)
        refusal = self._refusal(request)
        if refusal is not None:
            return await refusal(scope, receive, send)
        try:
            if _is_open(request):
                return await self._app(scope, receive, send)
            with self._places.taken(_use(request), request.state.caller.identity):
                await self._app(scope, _Limited(receive, self._body_bytes), send)
        except ClientDisconnect:
            log.info("a caller left before its request had arrived")
        return None

    def _refusal(self, request: Request) -> ASGIApp | None:
        path = request.scope["path"]
        reads = request.method in _READING
        request.state.caller = _nobody(request, all_teams=not self._tokens())
        if shut := self._door.refusal(request.scope, probe=reads and path in _PROBES, page=reads and path in _PAGES):
            return _problem(shut)
        if _is_open(request):
            return None
        return self._unknown(request) or self._crowded(request) or self._unfit(request)

    def _crowded(self, request: Request) -> ASGIApp | None:
        """Return the refusal of a request that exceeds the number of requests at once, or None."""
        if lack := self._places.lack(_use(request), request.state.caller.identity):
            detail = f"{lack}, and no more are taken (ESSP_API_CONNECTIONS); try again"
            return problem(503, "Too many requests at once", detail, {"Retry-After": "1"})
        return None

    def _unknown(self, request: Request) -> ASGIApp | None:
        """Return the refusal of a caller that asks too often, is unknown, or lacks the scope, or None."""
        token = self._token_of(request) if self._tokens() else None
        caller = f"token {token.name}" if token else f"address {_address(request)}"
        if wait_s := self._rates.wait_s(caller):
            return problem(
                429,
                "Too many requests",
                f"{caller} sends more requests than ESSP_API_REQUESTS_PER_S of the master allows; wait",
                {"Retry-After": str(math.ceil(wait_s))},
            )
        if not self._tokens():
            return None
        if token is None:
            return _unknown(request)
        right = needed(request.method, request.scope["path"])
        request.state.caller = known = self._bearer(token, right)
        if not known.may(right) and not (right is Right.METRICS and known.may(Right.READ)):
            return problem(403, "Scope missing", f"token {token.name} lacks the scope `{right}` that this needs")
        return None

    def _bearer(self, token: ApiToken, right: Right) -> Caller:
        everything = Right.ADMIN in token.scopes or (right is Right.METRICS and right in token.scopes)
        return Caller(
            name=token.name,
            identity=token.sha256,
            scopes=token.scopes,
            team=token.team,
            all_teams=everything or not any(token.team for token in self._tokens()),
        )

    def _unfit(self, request: Request) -> ASGIApp | None:
        """Return the refusal of a body whose type is wrong or that is too large, or None."""
        method, path, headers = request.method, request.scope["path"], request.headers
        takes_yaml = path in _YAML or (method == "PATCH" and path.startswith(f"{_JOBS}/"))
        is_bare = method == "POST" and path not in _YAML and (bool(self._tokens()) or own_request(headers))
        if refused := untyped(method, headers, takes_yaml, is_bare):
            return _problem(refused)
        return None if self._fits(headers.get("content-length", "0")) else self._too_large()

    def _token_of(self, request: Request) -> ApiToken | None:
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        digest = hashlib.sha256(shown.strip().encode("utf-8", "surrogateescape")).hexdigest()
        matching = [token for token in self._tokens() if hmac.compare_digest(token.sha256, digest)]
        return matching[0] if matching and scheme.lower() == "bearer" else None

    def _fits(self, length: str) -> bool:
        return len(length) < _MOST_DIGITS and length.isdecimal() and int(length) <= self._body_bytes

    def _too_large(self) -> ASGIApp:
        error = BodyTooLarge(self._body_bytes)
        return problem(error.status_code, "Too large", error.detail)


def guarded(app: ASGIApp, settings: MasterSettings) -> Guard:
    """Wrap an app in the guard that the settings ask for."""
    return Guard(
        app,
        Tokens(settings),
        settings.api_body_bytes,
        settings.api_requests_per_s,
        settings.api_connections * 3 // 4,
        (*settings.api_hosts, _own_name(settings)),
    )


def _is_open(request: Request) -> bool:
    """Whether a request needs no token. Such a request does not count against the limit of requests at once."""
    path = request.scope["path"]
    asks_for_jobs = path == METRICS and "authorization" in request.headers
    return request.method in _READING and path in OPEN_PATHS and not asks_for_jobs


def _use(request: Request) -> Use:
    if request.method not in _READING:
        return Use.ACT
    path = request.scope["path"]
    return Use.STREAM if path.startswith(f"{_JOBS}/") and path.endswith("/events") else Use.READ


def _own_name(settings: MasterSettings) -> str:
    """The host name under which standbys reach this master (`assembly.py`)."""
    url = settings.url.partition("://")[2].partition("/")[0]
    return url or (socket.gethostname() if settings.lease else "")


def _nobody(request: Request, all_teams: bool) -> Caller:
    """The caller without a token. `all_teams`: the API is open."""
    return Caller("anyone", f"address {_address(request)}", frozenset(), "", all_teams)


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def _problem(refused: Refusal) -> ASGIApp:
    return problem(refused.status, refused.title, refused.detail)


def _unknown(request: Request) -> ASGIApp:
    """The answer to a missing token, and to an unknown one; each needs a different remedy."""
    shown = request.headers.get("authorization", "")
    scheme, _, token = shown.partition(" ")
    challenge = {"WWW-Authenticate": "Bearer"}
    where = "the token is ESSP_API_TOKEN of the master, or one of its ESSP_API_TOKENS"
    if not shown:
        detail = f"this API needs the header `Authorization: Bearer <token>`; {where}"
        return problem(401, "Token missing", detail, challenge)
    if scheme.lower() != "bearer" or not token.strip():
        detail = f"the header Authorization has no token: write `Authorization: Bearer <token>`; {where}"
        return problem(401, "Token missing", detail, challenge)
    detail = f"the token that was sent is wrong: this master does not know it; {where}"
    return problem(401, "Token unknown", detail, {"WWW-Authenticate": 'Bearer error="invalid_token"'})


def needed(method: str, path: str) -> Right:
    """Return the scope that a request needs: `admin` unless it is known to need less."""
    if method in _READING:
        return Right.METRICS if path == METRICS else Right.READ
    if path == _JOBS or path.startswith((f"{_JOBS}/", f"{_JOBS}:")):
        return Right.OPERATE
    return Right.REGISTER if path.startswith(_REGISTERED) else Right.ADMIN


def _timed(scope: Scope, send: Send) -> Send:
    """Measure the time until an answer begins; an event stream itself lasts as long as a job.

    Callers choose the method and the path, so neither becomes a label unchecked.
    """
    began_s = time.perf_counter()

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            method = scope["method"] if scope["method"] in _METHODS else "other"
            route = getattr(scope.get("route"), "path", "other")
            API_SECONDS.labels(method, route, str(message["status"])).observe(time.perf_counter() - began_s)
        await send(message)

    return sending


def _with_headers(scope: Scope, send: Send) -> Send:
    is_data = scope["path"] not in OPEN_PATHS or scope["path"] == METRICS

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = [each for each in message["headers"] if not is_data or each[0].lower() != _UNSTORED[0]]
            there = {name.lower() for name, _ in own}
            more = [each for each in _HEADERS.items() if each[0] not in there]
            message["headers"] = [*own, *more, *([_UNSTORED] if is_data else [])]
        await send(message)

    return sending


class BodyTooLarge(HTTPException):
    """The body is larger than allowed. Frameworks that read the body for the app let this exception through."""

    def __init__(self, body_bytes: int) -> None:
        super().__init__(413, f"a request may have {body_bytes} bytes; a job needs some thousand")


class _Limited:
    """Counts body bytes as they arrive, for requests without a content length."""

    def __init__(self, receive: Receive, body_bytes: int) -> None:
        self._receive = receive
        self._left = self._body_bytes = body_bytes

    async def __call__(self) -> Message:
        message = await self._receive()
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            raise BodyTooLarge(self._body_bytes)
        return message
