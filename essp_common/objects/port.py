"""The object store: videos, catalogs, checkpoints, reports.

A store is bound to a root (`file:///dir` or `s3://bucket/prefix`); keys are relative to it, with `/` between
parts, and can't leave it. An object appears whole or not at all.

Adapters: `directory.py` (`file://`), `s3.py` (`s3://bucket/prefix?endpoint=http://host:port`); to read from alone,
`filesystems.py` (all that fsspec reads) and `archive.py` (members of tar archives). They pass
`tests/contract/objects_suite.py`, or the part of it that reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from essp_common.errors import ConfigError
from essp_common.runtime.troubles import Troubles


class StoreRefuses(ConfigError):
    """The store would refuse whatever it is asked for: its credentials or its place are wrong, and no object is."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a store says of an object without reading it."""

    key: str
    size_bytes: int
    etag: str
    """Changes whenever the content does (S3: the ETag; a directory: size and modification time)."""


class ObjectStore(Protocol):
    """Named, immutable-by-convention blobs. Thread-safe. All raise `Unavailable` when the store does not answer."""

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """The bytes `[start, start + length)` of an object, fewer at its end. Raises `NotFound`."""

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
        """Write an object whole (multipart where large). With `if_absent`, raises `Conflict` if there is one already.

        An adapter that sends a request again, since its answer was lost, knows its own object: `Conflict` means that
        there is another one. After `Unavailable` it is not known whether the object was written.
        """

    def put_file(self, key: str, path: str) -> ObjectInfo:
        """Write an object from a local file, without holding it in memory."""

    def head(self, key: str) -> ObjectInfo:
        """What is known of an object. Raises `NotFound`."""

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Every object whose key begins with `prefix`, by key."""

    def delete(self, key: str) -> None:
        """Remove an object; removing what is not there is not an error."""

    def open(self, key: str) -> BinaryIO:
        """A seekable binary file over the object, read in ranges. Raises `NotFound`."""

    def local_path(self, key: str) -> str | None:
        """The path of the object on this machine's disk, if it is there already."""

    def unwritable(self) -> str:
        """Why nothing can be written here, as far as that can be known without writing; empty: nothing says so."""

    def troubles(self) -> Troubles:
        """What keeps this store from working, as far as this process has met it; folders of a store know the same."""

    def uri(self, key: str) -> str:
        """The object's full URI."""

    def below(self, folder: str) -> ObjectStore:
        """The store of a folder in this one, by its key, over the same connection. Raises `NotFound` for what is no
        key; nothing that is written in it leaves the root of this store."""
