"""Paths as users write and read them, and their URIs; also the address of a master and its token."""

from __future__ import annotations

import os
import posixpath
from pathlib import Path
from urllib.parse import SplitResult

from essp_common.errors import ConfigError
from essp_common.objects.uris import place_of
from essp_common.runtime.addresses import address_of, shown_address


def as_uri(text: str, folder: Path = Path()) -> str:
    """The `file://` URI of a path relative to `folder`; a text with a scheme is returned unchanged.

    Paths are neither percent-encoded nor do they contain `..`: a URI here is a root and a key, not a link.
    """
    if "://" in text:
        return text
    path = os.path.abspath(folder / os.path.expanduser(text))
    return f"file:///{path.lstrip('/')}"  # POSIX lets a path begin with two slashes


def listed_uri(path: str, folder: str) -> str:
    """The URI of a file named in a list: by a URI, an absolute path, or a path relative to the list's folder.

    Each file has one URI, so that it is not listed twice. `folder`: a URI.
    """
    if "://" in path:
        try:
            return str(place_of(path, video=True))
        except ConfigError:
            return path  # reported when the file is read
    if path.startswith("/"):
        return f"file:///{posixpath.normpath(path).lstrip('/')}"
    scheme, _, place = folder.partition("://")
    return f"{scheme}://{posixpath.normpath(posixpath.join(place or '/', path))}"  # or a file at the top of the disk


def beside(uri: str, folder: Path) -> str:
    """A URI as a file in `folder` writes it: relative to the folder if it is below it, so that both can be moved."""
    below = as_uri(str(folder.absolute())).rstrip("/") + "/"
    return uri.removeprefix(below) if uri.startswith(below) and uri != below else uri


def shown(uri: str) -> str:
    """A URI as a user would type it: the path of a file, relative to the working folder if it is below it."""
    if not uri.startswith("file://"):
        return uri
    path = Path(uri.removeprefix("file://"))
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def master_address(server: str) -> SplitResult:
    """The parts of a master's URL. Raises `ConfigError` if it is not a URL."""
    try:
        parts = address_of(server)
    except ValueError:
        parts = None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{shown_address(server)!r} is not a URL; write for example http://127.0.0.1:8080")
    return parts


def signed_in(server: str, token: str) -> tuple[str, str]:
    """The URL of a master, and its token: the one in the URL, as `essp run --serve` prints it
    (`http://127.0.0.1:8080/#token=...`), else `token`."""
    url, mark, own = server.partition("#token=")
    return (url.rstrip("/"), own) if mark else (server, token)


def check_token(token: str) -> None:
    """Raises `ConfigError` if the text cannot be sent as a token."""
    if not token.isascii() or not token.isprintable():
        raise ConfigError("the token has characters that no token has; check ESSP_API_TOKEN", field="ESSP_API_TOKEN")
