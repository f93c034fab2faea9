"""How the command line talks to a master: one client, one set of options, and problem documents as ESSP's errors.

The master is at `--server` or ESSP_SERVER. Its token is in ESSP_API_TOKEN or in the address, as `essp run --serve`
prints it.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from http import HTTPStatus
from typing import Annotated, Any
from urllib.parse import quote

import httpx
import typer

from essp.cli.console import say
from essp.uris import check_token, master_address, signed_in
from essp_common.artifacts.removal import OfAnotherJob
from essp_common.distribution import VERSION_HEADER, version
from essp_common.errors import (
    ConfigError,
    Conflict,
    EsspError,
    NotFound,
    PermanentError,
    PreconditionFailed,
    Unavailable,
)
from essp_common.runtime.addresses import shown_address
from essp_common.runtime.certificates import advised
from essp_common.validation import shown

SERVER = "http://127.0.0.1:8080"
EXIT_DENIED = 5
TIMEOUT_S = 30.0
_LONGEST_NAME = 200

Server = Annotated[str, typer.Option("--server", envvar="ESSP_SERVER", help="URL of the master.", show_envvar=True)]
Token = Annotated[str, typer.Option("--token", envvar="ESSP_API_TOKEN", hidden=True, show_envvar=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_KINDS: dict[int, type[EsspError]] = {
    404: NotFound,
    409: Conflict,
    412: PreconditionFailed,
    415: ConfigError,
    422: ConfigError,
    428: ConfigError,
    429: Unavailable,
    503: Unavailable,
}


class AnswerLost(Unavailable):
    """A master was reached, but gave no answer: it may have done what was asked for, or may still be at it."""


def connect(server: str, token: str) -> httpx.Client:
    """A client of the master at `server`. Raises `ConfigError` if `server` is not a URL."""
    server, token = signed_in(server, token)
    master_address(server)
    check_token(token)
    # All bodies are JSON. A request without a content type could be a form of another site, so the master refuses it.
    headers = {VERSION_HEADER: version(), "Content-Type": "application/json"} | (
        {"Authorization": f"Bearer {token}"} if token else {}
    )
    try:
        return httpx.Client(
            base_url=server.rstrip("/"), headers=headers, timeout=TIMEOUT_S, verify=_certificates(server)
        )
    except (httpx.InvalidURL, ValueError):
        raise ConfigError(
            f"{shown_address(server)!r} is not a URL; write for example {SERVER}", field="--server"
        ) from None


def _certificates(server: str) -> ssl.SSLContext | bool:
    """The TLS context that checks a master's certificate. Over plain HTTP there is no certificate: the context is
    empty, because loading the trusted certificates takes longer than a request."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if server.lower().startswith("http:") else True


def path_of(collection: str, name: str, below: str = "") -> str:
    """The path of one item of a collection, such as a job by its name. Raises `ConfigError` for an invalid name.

    The name is quoted, so no part of it is read as part of the URL. `below`: the rest of the path.
    """
    if not name.isprintable() or "/" in name or name in ("", ".", "..") or len(name) > _LONGEST_NAME:
        raise ConfigError(f"{shown(name)} does not exist on the master; `ls` lists the names")
    return f"/v1/{collection}/{quote(name, safe='')}{below}"


def ask(client: httpx.Client, method: str, path: str, **more: Any) -> Any:
    """The master's answer as plain data, or None if it has no content (204).

    Raises the error that its problem document describes.
    """
    return answer_of(client, method, path, **more)[0]


def answer_of(client: httpx.Client, method: str, path: str, **more: Any) -> tuple[Any, str]:
    """The master's answer and its ETag."""
    try:
        response = client.request(method, path, **more)
    except UnicodeEncodeError as error:
        raise ConfigError(f"{shown(error.object)} cannot be sent: it has bytes that are not UTF-8 text") from error
    except httpx.InvalidURL as error:
        raise ConfigError(f"what is asked for cannot be sent ({error}); give shorter or fewer names") from error
    except httpx.TransportError as error:
        raise unreachable(client, error) from error
    check(response)
    return _content(response), response.headers.get("etag", "")


def pages(client: httpx.Client, path: str, field: str, params: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All items of a paginated list."""
    token: str | None = ""
    while token is not None:
        answer = ask(client, "GET", path, params={**params, "page_token": token})
        yield from answer[field]
        token = answer["next_page_token"]


def check(response: httpx.Response) -> None:
    """Raise the error of a problem document, or an error if this is not a master or the master has moved. Redirects are
    not followed, so that the token is not sent elsewhere."""
    if response.has_redirect_location:
        where = shown_address(response.headers["location"])
        raise ConfigError(
            f"{_shown(response.request.url)} sends on to {where}; set --server or ESSP_SERVER to where the master is",
            field="--server",
            code="refused",
        )
    if not response.is_error:
        if VERSION_HEADER not in response.headers:
            raise not_a_master(response, "as no master does")
        return
    try:
        document = response.json()
        detail = str(document["detail"])
    except (ValueError, KeyError, TypeError, RecursionError):
        document, detail = {}, str(not_a_master(response, str(response.status_code)))
    if response.status_code in (401, 403):
        say(f"essp: {detail}")
        raise typer.Exit(EXIT_DENIED)
    if response.status_code == HTTPStatus.CONFLICT and document.get("job"):
        raise OfAnotherJob(detail, str(document["job"]))
    raise _KINDS.get(response.status_code, PermanentError)(detail)


def not_a_master(response: httpx.Response, answered: str) -> PermanentError:
    """The error for a server that does not answer like a master."""
    return PermanentError(f"{_shown(response.request.url)} answered {answered}; is that a master of ESSP?")


def unreachable(client: httpx.Client, error: Exception) -> Unavailable:
    """The error for a master that does not answer or whose certificate is not trusted."""
    said, place = str(error), _shown(client.base_url)
    if advised(said) != said:
        return Unavailable(f"{place}: {advised(said)}")
    kind = Unavailable if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout) else AnswerLost
    return kind(f"no master answers at {place} ({error}); start one, or set --server or ESSP_SERVER")


def _shown(url: httpx.URL) -> str:
    """The URL for messages, without user and password."""
    return str(url.copy_with(userinfo=b""))


def _content(response: httpx.Response) -> Any:
    if response.status_code == HTTPStatus.NO_CONTENT:
        return None
    try:
        return response.json()
    except (ValueError, RecursionError) as error:
        raise not_a_master(response, "no JSON") from error
