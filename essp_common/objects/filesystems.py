"""Videos in any store that fsspec reads: `gs://bucket/dir`, `az://container/dir`, `hdfs://host:8020/dir`, `https://host`,
`hf://datasets/OWNER/NAME` (the Hub of Hugging Face).

    fsspec+NAME://...     any other file system of fsspec, by its fsspec name, such as fsspec+sftp://host/dir
    ?key=value            options of that file system, such as gs://bucket/dir?token=anon

Read only: videos, lists and catalogs are read from here; ESSP writes to `file://` or `s3://`. The file system's own
client finds its credentials. A web server cannot be listed, so its videos need a list (CSV) of addresses.

    NotFound     no such object                 Unavailable  no answer, 5xx, and other errors of its client
    ConfigError  credentials or permissions, a client that is not installed, and any write
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from importlib import import_module
from typing import Any, BinaryIO
from urllib.parse import parse_qsl, quote

import fsspec

from essp_common.distribution import needs_extra
from essp_common.errors import ConfigError, EsspError, NotFound, PermanentError, Unavailable
from essp_common.objects.keys import checked, is_key
from essp_common.objects.port import ObjectInfo
from essp_common.objects.ranged import RangedFile
from essp_common.objects.read_only import ReadOnly
from essp_common.runtime.addresses import shown_address, shown_uri, without_password, without_secrets
from essp_common.runtime.forks import Remade
from essp_common.runtime.troubles import Troubles

PREFIX = "fsspec+"
_WEB = ("http", "https")
_CONNECT_S = 5
_READ_S = 20
"""A silent server is reported before a decoder's child counts as hanging."""
_HUB = "hf"
_VERSIONS = ("blob_id", "ETag", "etag", "md5Hash", "content_md5", "Content-MD5", "generation", "mtime", "Last-Modified")
_DATES = ("LastModified", "last_modified", "updated", "modificationTime", "modified", "created")
_IN_ADDRESSES = "/%?=&+,;:@!$'()*~"
"""Characters that are not escaped in the address of a video: users copy addresses that are already
encoded or signed."""
_BOOLEANS = {"true": True, "false": False}


class FilesystemStore(ReadOnly):
    """An `ObjectStore` in a file system of fsspec, below a folder; read only."""

    def __init__(self, files: Any, scheme: str, place: str, root: str) -> None:
        """`files`: the fsspec file system; `place`: the part of the URI after the scheme; `root`: the file system's
        name for it."""
        self._files = files
        self._scheme = scheme
        self._place = place.strip("/")
        self._root = root.rstrip("/")
        self._exactly = {"cache_type": "none"} if scheme == _HUB else {}
        """What keeps a client from reading ahead of each range, which `RangedFile` does itself."""

    @classmethod
    def from_url(cls, url: str) -> FilesystemStore:
        """`scheme://place?option=value`; sends nothing yet. Raises `ConfigError`."""
        path, _, query = url.partition("?")
        if "@" in query and "://" not in query:
            raise ConfigError(f"store URL {shown_address(url)!r}: it has a ? before its host; write %3F in a password")
        scheme, _, place = path.partition("://")
        protocol = scheme.lower().removeprefix(PREFIX)
        options: dict[str, Any] = {name: _BOOLEANS.get(value, value) for name, value in parse_qsl(query)}
        if protocol in _WEB:
            options.setdefault("client_kwargs", {})["timeout"] = _timeout()
        if protocol == _HUB:
            with needs_extra(f"{_HUB}://"):
                import_module("huggingface_hub")
        try:
            options |= {"use_listings_cache": False, "skip_instance_cache": True}
            opened = partial(fsspec.core.url_to_fs, f"{protocol}://{place}", **options)
            files, root = opened()
        except ImportError as error:
            raise ConfigError(f"store URL {shown_address(url)!r}: {error}") from error
        except (ValueError, TypeError, OSError) as error:
            # Not the library's message, which may quote an option.
            refused = f"the file system does not take it ({type(error).__name__}); check its options"
            raise ConfigError(f"store URL {shown_address(url)!r}: {refused}", code="refused") from None
        authority, slash, folder = place.partition("/")
        return cls(
            Remade(lambda: opened()[0], files), scheme.lower(), f"{without_password(authority)}{slash}{folder}", root
        )

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Read a range of an existing object."""
        left = max(0, self.head(key).size_bytes - start)
        return self._read(key, start, left if length is None else min(left, length))

    def head(self, key: str) -> ObjectInfo:
        """Return size, and the file system's version of the object."""
        path = self._path(key)
        with self._errors(key):
            found = self._files.info(path)
            if found.get("type") == "directory":
                raise NotFound(f"there is no object {self._shown(key)}, but a folder")
            return self._info(key, found)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield all files below the folder that the prefix names, by key."""
        if self._web:
            raise ConfigError(
                f"{self.uri('-').removesuffix('-')}: a web server cannot be listed; give a CSV file with a column "
                "`path` of the addresses",
                code="unsupported",
            )
        folder = prefix.rpartition("/")[0]
        if folder and not is_key(folder):
            return
        with self._errors(prefix):
            try:
                found = self._files.find(self._path(folder) if folder else self._root, detail=True)
            except FileNotFoundError:
                return
            start = len(self._files._strip_protocol(self._root).strip("/"))
            keys = [(path.strip("/")[start:].strip("/"), info) for path, info in found.items()]
            keys.sort(key=lambda item: item[0].encode("utf-8", "surrogateescape"))
            infos = [self._info(key, info) for key, info in keys if key.startswith(prefix) and is_key(key)]
        yield from infos

    def open(self, key: str) -> BinaryIO:
        """Return a file that is read in ranges."""
        info = self.head(key)
        return io.BufferedReader(RangedFile(info.size_bytes, lambda at, size: self._read(key, at, size)))

    def local_path(self, key: str) -> str | None:
        """Return None."""
        checked(key)
        return None

    def unwritable(self) -> str:
        """Return the reason: the store is read-only."""
        return f"{self._scheme}:// is only read; have ESSP write to file:// or s3://"

    def troubles(self) -> Troubles:
        """Return no troubles: nothing is written."""
        return {}

    def uri(self, key: str) -> str:
        """Return `scheme://place/key`."""
        return f"{self._scheme}://{'/'.join(part for part in (self._place, checked(key)) if part)}"

    def below(self, folder: str) -> FilesystemStore:
        """Return the store for a folder in this one, over the same connection."""
        place = "/".join(part for part in (self._place, checked(folder)) if part)
        return FilesystemStore(self._files, self._scheme, place, self._path(folder))

    @property
    def _web(self) -> bool:
        return self._scheme.removeprefix(PREFIX) in _WEB

    def _path(self, key: str) -> str:
        name = checked(key)
        return f"{self._root}/{quote(name, safe=_IN_ADDRESSES) if self._web else name}"

    def _read(self, key: str, start: int, length: int) -> bytes:
        if not length:
            return b""
        path = self._path(key)
        with self._errors(key):
            data: bytes = self._files.cat_file(path, start=start, end=start + length, **self._exactly)
        if not isinstance(data, bytes):
            raise Unavailable(f"{self._shown(key)}: the file system gives a {type(data).__name__}, and not bytes")
        if len(data) > length:  # a server without range support sends everything
            data = data[start : start + length]
        if len(data) != length:
            raise Unavailable(f"{self._shown(key)}: received {len(data)} bytes of the {length} requested")
        return data

    def _info(self, key: str, found: dict[str, Any]) -> ObjectInfo:
        size = found.get("size")
        if not isinstance(size, int) or size < 0:
            raise PermanentError(f"{self._shown(key)}: the server does not say how large it is, so it cannot be read")
        version = next((found[name] for name in (*_VERSIONS, *_DATES) if found.get(name)), "")
        return ObjectInfo(key, size, f"{size}-{_written(version)}")

    def _shown(self, key: str) -> str:
        return shown_uri(self.uri(key))

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        """Convert the errors of file system clients into ESSP's."""
        where = shown_uri(f"{self._scheme}://{self._place}/{key}")
        try:
            yield
        except EsspError:
            raise
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            cause = error.__cause__
            if isinstance(cause, Exception) and not isinstance(cause, FileNotFoundError):
                raise _mapped(cause, where) from error  # fsspec's web client raises FileNotFoundError for any error
            raise NotFound(f"there is no object {where}") from error
        except Exception as error:  # each client has its own errors, which this module cannot know
            raise _mapped(error, where) from error


def _written(version: object) -> str:
    """Return a version or a date in a common form: a listing may give seconds where the object itself gives a date."""
    if isinstance(version, datetime):
        version = version.timestamp()
    return f"{version:.6f}" if isinstance(version, float) else str(version).strip('"')


def _mapped(error: Exception, where: str) -> EsspError:
    said = (error, getattr(error, "response", None))
    codes = (getattr(each, name, None) for each in said for name in ("status", "status_code", "code"))
    code = next((code for code in codes if isinstance(code, int)), 0)
    what = f"{where}: {without_secrets(str(error)) or type(error).__name__}"
    if code in (404, 410):
        return NotFound(f"there is no object {where}")
    if code in (401, 403) or isinstance(error, PermissionError):
        return ConfigError(f"{what}; check the credentials, and that they may list and read there", code="refused")
    if 400 <= code < 500 and code not in (408, 429):
        return PermanentError(what)
    return Unavailable(what)


def _timeout() -> Any:
    import aiohttp  # needed only for the web

    return aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_READ_S)
