"""The object store: videos, catalogs, checkpoints, reports.

A store is bound to a root (`file:///dir` or `s3://bucket/prefix`); keys are relative to it, with `/` between parts, and
cannot leave it. Objects appear atomically.

Adapters: `directory.py` (`file://`), `s3.py` (`s3://bucket/prefix?endpoint=http://host:port`); for reading only,
`filesystems.py` (everything that fsspec reads) and `archive.py` (members of tar archives). They pass
`tests/contract/objects_suite.py`, or the reading part of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from essp_common.errors import ConfigError
from essp_common.runtime.troubles import Troubles


class StoreRefuses(ConfigError):
    """The store would refuse any request: its credentials or its address are wrong, not a single object."""


class NoBucket(StoreRefuses):
    """The bucket does not exist, or not at present."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a store knows about an object without reading it."""

    key: str
    size_bytes: int
    etag: str
    """Changes whenever the content does (S3: the ETag; a directory: size and modification time)."""


class ObjectStore(Protocol):
    """Named blobs, immutable by convention. Thread-safe. All methods raise `Unavailable` if the store does not
    answer."""

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Return the bytes `[start, start + length)` of an object, fewer at its end. Raises `NotFound`."""

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
        """Write an object atomically (in parts if large). With `if_absent`, raises `Conflict` if it already exists.

        An adapter that repeats a request whose answer was lost recognises its own object: `Conflict` means that there
        is another one. After `Unavailable` it is unknown whether the object was written.
        """

    def put_file(self, key: str, path: str) -> ObjectInfo:
        """Write an object from a local file, without holding it in memory."""

    def head(self, key: str) -> ObjectInfo:
        """Return what is known about an object. Raises `NotFound`."""

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield every object whose key begins with `prefix`, ordered by key."""

    def delete(self, key: str) -> None:
        """Remove an object; removing a missing object is not an error."""

    def open(self, key: str) -> BinaryIO:
        """Return a seekable binary file over the object, read in ranges. Raises `NotFound`."""

    def local_path(self, key: str) -> str | None:
        """Return the path of the object on this machine's disk, if it is already there."""

    def unwritable(self) -> str:
        """Return why nothing can be written here, as far as that is known without writing; empty if no reason is
        known."""

    def troubles(self) -> Troubles:
        """Report what keeps this store from working, as far as this process has noticed; folders of a store share
        this."""

    def uri(self, key: str) -> str:
        """Return the object's full URI."""

    def below(self, folder: str) -> ObjectStore:
        """Return the store for a folder in this one, over the same connection. Raises `NotFound` for an invalid key;
        nothing that is written in it leaves the root of this store."""
