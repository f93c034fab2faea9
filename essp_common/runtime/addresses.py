"""URLs of servers: whether host and port can be parsed, checked before anything connects, and how messages show a URL.

A URL may contain secrets: user and password, a key or a token among its options, the signature of a link. More people
read messages than settings, so code that quotes a URL quotes `shown_address` of it, and never a library's message about
it. Parts that cannot be parsed may be a misplaced secret, and are not shown.
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
"""URL options that are not secret: ESSP's own, and common ones of Redis and of file systems."""
_FILES = frozenset({"key", "password_file"})
"""Options that name a file. A value that is not a path may be the secret that should be in the file."""
_OPTION = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,40}")
_PASSWORD = re.compile(r"://[^\s/@:]*:[^\s/@]*@")
_SECRET = re.compile(r"([?&][\w.-]*(?:key|secret|token|passw|sig|credential)[\w.-]*=)[^&\s\"']*", re.IGNORECASE)
_ESCAPES = "in a user or password write # as %23, / as %2F, ? as %3F, @ as %40 and : as %3A"


def address_of(url: str) -> SplitResult:
    """Split a server's URL. Raises `ValueError`, with a message that does not quote the URL, which may contain a
    password."""
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
    """Raise `ValueError` unless this is `USER:PASSWORD@HOST:PORT`."""
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
    """Return the URL unchanged. Raises `ValueError`."""
    parts = address_of(url)
    if "@" in parts.query:
        raise ValueError(f"is not the URL of a server: it has a ? before its host; {_ESCAPES}")
    return url


def shown_address(url: str) -> str:
    """Return a URL for messages, with user, password and possible secrets hidden.

    Without a scheme it is shown unchanged unless it has an `@`: it is a path, or an address `host:port`.
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
    """Return `USER:PASSWORD@HOST` as `USER@HOST`, for the URIs in catalogs and messages."""
    user, at, host = authority.rpartition("@")
    return f"{user.partition(':')[0]}{at}{host}" if at else authority


def shown_uri(uri: str) -> str:
    """Return the URI of an object for messages. Its key may contain any character. User and password before a bucket's
    name, and the query of a web address, are hidden."""
    scheme, mark, rest = uri.partition("://")
    authority = rest.partition("/")[0]
    is_web = scheme.lower() in ("http", "https")
    if mark and (is_web or "@" in authority or _shown_servers(authority) != authority):
        return shown_address(uri)
    return without_secrets(uri)


def without_secrets(text: str) -> str:
    """Return a library's message without passwords and signatures in its URLs."""
    return _SECRET.sub(rf"\1{HIDDEN}", _PASSWORD.sub(f"://{HIDDEN}@", text))


def _shown_servers(authority: str) -> str:
    return ",".join(map(_shown_server, authority.split(",")))


def _shown_server(server: str) -> str:
    """Return `HOST:PORT`, with the port hidden if it is not a number."""
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
