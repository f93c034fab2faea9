"""Checks every request before its caller is identified. Pure.

A browser sends requests on behalf of any page that it shows, and it can reach servers that the page's author cannot: a
port on localhost, a master inside a company network. So a request is refused

    whose `Host` is not this server's name     a foreign name that points here (DNS rebinding) would make a foreign page
                                               same-origin with this server, so it could read
    whose `Origin` is not its `Host`           a foreign page sends it
    whose `Sec-Fetch-Site` is another site     the same, if the browser sends no Origin; following a link to the page
                                               is harmless
    that changes something and could be a form a foreign page may send a form without asking. A form has three content
                                               types, none of them JSON or YAML, and cannot set headers

This applies to every caller, with or without a token: an API that is open to all who can reach it must not be open to
every web page that they visit.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import Scope

from essp_common.distribution import VERSION_HEADER
from essp_common.runtime.hosts import AUTHORITY, plain, plain_name
from essp_common.validation import shown

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_PORTS = {"http": 80, "https": 443}
_OWN_SITES = frozenset({"same-origin", "none"})
"""Accepted values of Sec-Fetch-Site. `same-site` is not one of them: it means another port or host of the same domain,
that is, another server."""
_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_JSON = re.compile(r"application/(?:[a-z0-9.-]+\+)?json")
_YAML = re.compile(r"(?:application|text)/(?:x-)?yaml")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is refused."""

    status: int
    title: str
    detail: str


class Door:
    """Admits requests that are meant for this server and were not sent by a foreign page."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        """`names`: names under which this server is reached, in addition to localhost and the address that a connection
        is made to. `*.example.org` stands for every name below `example.org`."""
        self._names = frozenset(filter(None, map(plain, names)))

    def refusal(self, scope: Scope, probe: bool, page: bool) -> Refusal | None:
        """Return why a request is refused, or None to admit it. `probe`: the request is a probe, which load balancers
        send under names of their own. `page`: the request is for a page that other sites may link to."""
        headers = Headers(scope=scope)
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        host = hosts[0] if len(hosts) == 1 else ""
        if not probe and not self._is_here(host, scope):
            return Refusal(
                403,
                "Another server was meant",
                f"the header Host is {shown(host)}, which is not a name of this server; ask for it by its address "
                "or as "
                "localhost, or set ESSP_API_HOSTS to a list of the names under which it is reached",
            )
        if foreign := [origin for origin in origins if not _same(origin, host)]:
            return Refusal(
                403,
                "Sent by another site",
                f"a page of {shown(foreign[0])} sends this, and this server is {shown(host)}; only its own page may. A "
                "proxy between them has to pass the header Host on as it is",
            )
        site = headers.get("sec-fetch-site", "none").lower()
        followed = page and headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        if site not in _OWN_SITES and not followed:
            return Refusal(
                403, "Sent by another site", f"a page of another site sends this (Sec-Fetch-Site: {shown(site)})"
            )
        return None

    def _is_here(self, host: str, scope: Scope) -> bool:
        name = plain(host)
        if not name:
            return False
        return name in _LOOPBACK or name in self._names or name in _own(scope) or _below(name, self._names)


def untyped(method: str, headers: Headers, yaml: bool, bare: bool) -> Refusal | None:
    """Return why the content type of a request is refused, or None. `yaml`: YAML is accepted as well. `bare`: the
    request needs neither a body nor a content type."""
    if method not in _WITH_BODY:
        return None
    kinds = [kind.partition(";")[0].strip().lower() for kind in headers.getlist("content-type")]
    has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    if not kinds and not has_body and bare:
        return None
    if len(kinds) == 1 and (_JSON.fullmatch(kinds[0]) or (yaml and _YAML.fullmatch(kinds[0]))):
        return None
    wanted = "Content-Type: application/json" + (" (or application/yaml)" if yaml else "")
    shows = f"it is {shown(', '.join(kinds))}" if kinds else "none was sent"
    return Refusal(415, "Content type missing", f"send {wanted}; {shows}, and a page of another site could send that")


def own_request(headers: Headers) -> bool:
    """Whether a request has a header that an HTML form cannot set: a token, or the version header of ESSP's clients."""
    return "authorization" in headers or VERSION_HEADER in headers


def _own(scope: Scope) -> frozenset[str]:
    """The names of the address that the connection was made to. A connection from another machine may also use this
    machine's host name."""
    server = scope.get("server")
    if not server or server[1] is None:
        return frozenset()
    address = plain_name(server[0])
    return frozenset({address} if address in _LOOPBACK else {address, plain(socket.gethostname())})


def _below(name: str, names: Collection[str]) -> bool:
    return any(each.startswith("*.") and name.endswith(each[1:]) and name != each[2:] for each in names)


def _same(origin: str, host: str) -> bool:
    """Whether this host served the page with this origin. The page's scheme is not compared: only a proxy knows it."""
    scheme, _, authority = origin.partition("://")
    there, here, port = AUTHORITY.fullmatch(authority), AUTHORITY.fullmatch(host), _PORTS.get(scheme.lower())
    if there is None or here is None or port is None:
        return False
    return plain_name(there["name"]) == plain_name(here["name"]) and int(there["port"] or port) == int(
        here["port"] or port
    )
