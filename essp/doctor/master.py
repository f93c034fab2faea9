"""Checks the master's API: is it reachable, does it have this version, does it accept the token? Also asks it which
conditions keep ESSP from working (`essp_common/runtime/conditions.py`)."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError

from essp.doctor.finding import Finding, fail, ok, unreachable, warn
from essp.uris import check_token, master_address, signed_in
from essp_common import distribution
from essp_common.errors import Unavailable
from essp_common.runtime.addresses import shown_address
from essp_common.runtime.conditions import Condition
from essp_common.runtime.troubles import NOTICES

CHECK = "master"
_ANSWER_S = 5.0
_CONDITIONS = TypeAdapter(list[Condition])
_NO_TOKEN = "set ESSP_API_TOKEN to the token of the master"


def examine(server: str, token: str) -> Iterator[Finding]:
    """Check the master at the URL `server`. Raises `ConfigError` if `server` is not a URL."""
    server, token = signed_in(server, token)
    parts, place = master_address(server), shown_address(server)
    check_token(token)
    deaf = unreachable(CHECK, parts.netloc, 443 if parts.scheme == "https" else 80, "ESSP_SERVER")
    if deaf is not None:
        yield deaf
        return
    status, body = _get(server, "/readyz", "")
    if status == 503 and not body.startswith(b"not ready:"):  # conditions are reported below, in their own words
        said = " ".join(body.decode(errors="replace").split()) or "starts, stands by, or drains"
        yield warn(CHECK, f"{place} answers but does not take jobs: it {said}", "try again in a moment")
    elif status not in (200, 503):
        yield fail(CHECK, f"{place}/readyz answered {status}", "check that ESSP_SERVER is the URL of a master")
        return
    status, body = _get(server, "/openapi.json", "")
    if status != 200:
        yield fail(CHECK, f"{place}/openapi.json answered {status}", "look at the master's log")
        return
    try:
        theirs, ours = str(json.loads(body)["info"]["version"]), distribution.version()
    except (ValueError, LookupError, TypeError, RecursionError):
        yield fail(CHECK, f"{place}/openapi.json describes no API of ESSP", "check that ESSP_SERVER is a master's URL")
        return
    if theirs != ours:
        yield fail(CHECK, f"{place} is version {theirs}, this is {ours}", "install the same version everywhere")
        return
    status, _ = _get(server, "/v1/jobs", token)  # the API description is public; this request needs a token
    if status in (401, 403):
        yield fail(CHECK, f"{place} {'needs a' if not token else 'refuses the'} token", _NO_TOKEN)
    else:
        yield ok(CHECK, f"{place} is version {theirs} and accepts the token")
        yield from _conditions(server, token, place)


def _conditions(server: str, token: str, place: str) -> Iterator[Finding]:
    """The conditions that keep the deployment from working, as the master sees them. `place`: the server, as messages
    show it."""
    status, body = _get(server, "/v1/conditions", token)
    if status != 200:
        yield fail(CHECK, f"{place}/v1/conditions answered {status}", "look at the master's log")
        return
    try:
        conditions = _CONDITIONS.validate_json(body)
    except ValidationError:
        yield fail(CHECK, f"{place}/v1/conditions lists no conditions", "see that no proxy answers for the master")
        return
    for condition in conditions:
        what, _, remedy = condition.words.partition("; ")
        since = condition.since.astimezone().strftime("%H:%M:%S")
        found = warn if condition.kind in NOTICES else fail
        yield found(CHECK, f"{condition.kind}: {condition.subject}: {what} (since {since})", remedy)


def _get(server: str, path: str, token: str) -> tuple[int, bytes]:
    parts = urlsplit(server)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=_ANSWER_S)
    try:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request("GET", parts.path.rstrip("/") + path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(f"{shown_address(server)}{path}: {error}") from error
    finally:
        connection.close()
