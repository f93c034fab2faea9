"""URLs of servers: whether a host and a port can be read from one, asked before anything connects to it, and how
messages show one.

A URL may hold what is secret: user and password, a key or a token among its options, the signature of a link. Messages
are read by more people than settings, so whatever quotes a URL quotes `shown_address` of it, and no words of a library
about it. What cannot be understood may be a secret in the wrong place, and is not shown.
"""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

HIDDEN = "***"
_SHOWN_OPTIONS = frozenset(
    {
        *("bytes", "endpoint", "region", "ca", "cert", "key", "sasl", "password_file", "anon", "project"),
        *("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "protocol", "client_name"),
        *("connect_timeout_ms", "session_timeout_ms", "linger_ms", "socket_timeout", "socket_connect_timeout"),
    }
)
"""Options of URLs that are no secrets: those of ESSP, and usual ones of Redis and of file systems."""
_FILES = frozenset({"key", "password_file"})
"""Options that name a file. A value that is no path may be what should be in the file."""
_OPTION = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,40}")
_PASSWORD = re.compile(r"://[^\s/@:]*:[^\s/@]*@")
_SECRET = re.compile(r"([?&][\w.-]*(?:key|secret|token|passw|sig|credential)[\w.-]*=)[^&\s\"']*", re.IGNORECASE)
_ESCAPES = "in a user or password write # as %23, / as %2F, ? as %3F, @ as %40 and : as %3A"


def address_of(url: str) -> SplitResult:
    """The parts of a server's URL. Raises `ValueError`, without the URL in its words: a password may be in it."""
    if not url.isprintable():
        raise ValueError("has characters that no URL has")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ValueError(f"is not the URL of a server: its host cannot be read; {_ESCAPES}") from None
    if parts.fragment or "@" in parts.path:
        raise ValueError(f"is not the URL of a server: it has a # or / before its host; {_ESCAPES}")
    for server in parts.netloc.split(",") if parts.scheme.startswith("kafka") else [parts.netloc]:
        _check_server(server)
    return parts


def _check_server(server: str) -> None:
    """Raises `ValueError` for what is no `USER:PASSWORD@HOST:PORT`."""
    try:
        one = urlsplit(f"//{server}")
        host = one.hostname or ""
    except ValueError:
        raise ValueError(f"is not the URL of a server: its host cannot be read; {_ESCAPES}") from None
    try:
        host.encode("idna")
    except UnicodeError:
        raise ValueError("is not the URL of a server: no such host name") from None
    try:
        port = one.port
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError(f"is not the URL of a server: its port is not a number from 1 to 65535; {_ESCAPES}")


def checked_address(url: str) -> str:
    """The URL as it is. Raises `ValueError`."""
    parts = address_of(url)
    if "@" in parts.query:
        raise ValueError(f"is not the URL of a server: it has a ? before its host; {_ESCAPES}")
    return url


def shown_address(url: str) -> str:
    """A URL as messages show it: user, password and whatever may be a secret are hidden.

    Without a scheme it is shown as it is, if it has no `@`: a path, or the address `host:port`.
    """
    scheme, mark, rest = url.partition("://")
    if not mark:
        scheme, rest = "", url
    if scheme.lower() == "file":
        path, query_mark, query = rest.partition("?")
        return f"{scheme}://{path}{query_mark}{'&'.join(map(_shown_option, query.split('&')))}"
    rest, _, fragment = rest.partition("#") if "@" not in rest.partition("#")[2] else (rest, "", "")
    head, query_mark, query = rest.partition("?")
    options = query.split("&")
    if "@" in query and not all(map(_is_known, options)):
        head, query_mark, options = rest, "", []  # the `?` belongs to a password
    user, at, place = head.rpartition("@")
    authority, slash, path = place.partition("/")
    shown = f"{scheme}{mark}{HIDDEN + '@' if at or user else ''}{_shown_servers(authority)}"
    shown += f"{slash}{path}{query_mark}{'&'.join(map(_shown_option, options))}"
    return shown + (f"#{HIDDEN}" if fragment else "")


def without_password(authority: str) -> str:
    """`USER:PASSWORD@HOST` as `USER@HOST`: what URIs are made of, which stand in catalogs and messages."""
    user, at, host = authority.rpartition("@")
    return f"{user.partition(':')[0]}{at}{host}" if at else authority


def shown_uri(uri: str) -> str:
    """The URI of an object as messages show it. Its key may have any character in it; user and password before a
    bucket's name, and what a web address has behind its `?`, are hidden."""
    scheme, mark, rest = uri.partition("://")
    authority = rest.partition("/")[0]
    is_web = scheme.lower() in ("http", "https")
    if mark and (is_web or "@" in authority or _shown_servers(authority) != authority):
        return shown_address(uri)
    return without_secrets(uri)


def without_secrets(text: str) -> str:
    """What a library says, without passwords and signatures of the URLs in it."""
    return _SECRET.sub(rf"\1{HIDDEN}", _PASSWORD.sub(f"://{HIDDEN}@", text))


def _shown_servers(authority: str) -> str:
    return ",".join(map(_shown_server, authority.split(",")))


def _shown_server(server: str) -> str:
    """`HOST:PORT`; what stands where the port should be is hidden if it is none."""
    host, colon, port = server.rpartition(":")
    if not colon or server.endswith("]"):
        return server
    return server if (host or port.isdigit()) and (port.isdigit() or not port) else f"{host}:{HIDDEN}"


def _is_known(option: str) -> bool:
    name, _, value = option.partition("=")
    return name in _SHOWN_OPTIONS and ("@" not in value or "://" in value)


def _shown_option(option: str) -> str:
    name, mark, value = option.partition("=")
    if not _is_known(option):
        return (name if _OPTION.fullmatch(name) and mark else HIDDEN if option else "") + (f"={HIDDEN}" if mark else "")
    if "://" in value or "%3A%2F%2F" in value.upper():
        value = shown_address(value) if "://" in value else HIDDEN
    elif name in _FILES and not value.startswith("/"):
        value = HIDDEN
    return f"{name}{mark}{value}"
