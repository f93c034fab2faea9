"""Members of tar archives as objects: videos are read directly from a shard, without unpacking it.

The key of a member consists of its archive's key, the position of its bytes in the archive, and its name:

    shards/train-000.tar/512+20480/clip.mp4        20,480 bytes from byte 512

So a member can be read by its key, without searching the archive. Only uncompressed archives have their members at such
positions. Read only: writing raises `ConfigError`.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import BinaryIO, NoReturn

from essp_common.errors import ConfigError, NotFound
from essp_common.objects.port import ObjectInfo, ObjectStore
from essp_common.runtime.troubles import Troubles

_KEY = re.compile(r"(.+\.tar)/([0-9]+)\+([0-9]+)/(.+)")
_BUFFER_BYTES = 2**16


def member_key(archive: str, offset: int, size: int, name: str) -> str:
    """Return the key of a member of an archive."""
    return f"{archive}/{offset}+{size}/{name}"


def is_member(key: str) -> bool:
    """Whether a key belongs to a member of an archive."""
    return _KEY.fullmatch(key) is not None


class Archive:
    """An `ObjectStore` of the members of all archives in a store."""

    def __init__(self, store: ObjectStore) -> None:
        """`store`: contains the archives."""
        self._store = store

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Return part of a member."""
        archive, offset, size = _parts(key)
        left = max(0, size - start)
        return self._store.get(archive, offset + start, left if length is None else min(left, length))

    def head(self, key: str) -> ObjectInfo:
        """Return its size; its ETag changes whenever its archive does."""
        archive, offset, size = _parts(key)
        info = self._store.head(archive)
        if offset + size > info.size_bytes:
            raise NotFound(f"{self.uri(key)}: the archive ends before; build the catalog again")
        return ObjectInfo(key, size, f"{info.etag}@{offset}")

    def open(self, key: str) -> BinaryIO:
        """Return a file over the member's bytes."""
        archive, offset, size = _parts(key)
        self.head(key)
        return io.BufferedReader(_Part(self._store.open(archive), offset, size), _BUFFER_BYTES)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield nothing: members are found by reading their archive."""
        yield from ()

    def local_path(self, key: str) -> str | None:
        """Return None: no member is a separate file."""
        return None

    def whole(self, key: str) -> tuple[ObjectStore, str]:
        """Return the archive that contains a member: its store and its key there."""
        return self._store, _parts(key)[0]

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> NoReturn:
        """Refuse."""
        raise ConfigError(f"{self.uri(key)} is in an archive, which is read-only", code="unsupported")

    def put_file(self, key: str, path: str) -> NoReturn:
        """Refuse."""
        self.put(key, b"")

    def delete(self, key: str) -> NoReturn:
        """Refuse."""
        self.put(key, b"")

    def unwritable(self) -> str:
        """Return the reason: archives are read-only."""
        return "nothing is written in archives"

    def troubles(self) -> Troubles:
        """Return the troubles of the store."""
        return self._store.troubles()

    def uri(self, key: str) -> str:
        """Return the URI of the member."""
        return self._store.uri(key)

    def below(self, folder: str) -> Archive:
        """Return the store for a folder of archives."""
        return Archive(self._store.below(folder))


class _Part(io.RawIOBase):
    """A range of a file as a file."""

    def __init__(self, file: BinaryIO, offset: int, size: int) -> None:
        self.whole = file
        self._offset = offset
        self._size = size
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError("a place before the beginning")
        self._place = base + offset
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        length = max(0, min(len(buffer), self._size - self._place))
        self.whole.seek(self._offset + self._place)
        data = self.whole.read(length)
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self.whole.close()
        super().close()


def _parts(key: str) -> tuple[str, int, int]:
    match = _KEY.fullmatch(key)
    if match is None:
        raise NotFound(f"{key!r} is not a member of an archive")
    return match[1], int(match[2]), int(match[3])
