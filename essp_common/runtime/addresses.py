"""URLs of servers: whether a host and a port can be read from one, asked before anything connects to it."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit


def address_of(url: str) -> SplitResult:
    """The parts of a server's URL. Raises `ValueError`, without the URL in its words: a password may be in it."""
    if not url.isprintable():
        raise ValueError("has characters that no URL has")
    try:
        parts = urlsplit(url)
        servers = parts.netloc.split(",") if parts.scheme.startswith("kafka") else [parts.netloc]
        for server in servers:
            one = urlsplit(f"//{server}")
            (one.hostname or "").encode("idna")
            if one.port == 0:
                raise ValueError("Port out of range 1-65535")
    except ValueError as error:
        reason = "no such host name" if isinstance(error, UnicodeError) else str(error)
        raise ValueError(f"is not the URL of a server: {reason}") from error
    return parts


def checked_address(url: str) -> str:
    """The URL as it is. Raises `ValueError`."""
    address_of(url)
    return url
