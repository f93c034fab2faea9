"""Parts of larger files as objects: videos are read directly from their place in a tar archive, or in a Parquet or
Arrow file of Hugging Face, without unpacking anything.

The key of a part consists of its file's key, the position of its bytes in the file, and its name:

    shards/train-000.tar/512+20480/clip.mp4        20,480 bytes from byte 512
    train-000.parquet/4+9000:snappy+9100:12+20480/clip.mp4
                                                   9,000 bytes from byte 4 decompress to 9,100; of these, 20,480 bytes
                                                   from byte 12

So a part can be read by its key, without searching the file, and the reader knows nothing about the file's format. The
second form is for compressed pages of Parquet: the page is read and decompressed as a whole. Tar archives must not be
compressed. Read only: writing raises `ConfigError`.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import BinaryIO

from essp_common.errors import NotFound, PermanentError
from essp_common.objects.port import ObjectInfo, ObjectStore
from essp_common.objects.read_only import Derived
from essp_common.objects.seekable import SeekableFile

_KEY = re.compile(
    r"(?P<file>.+\.(?:tar|parquet|pq|arrow))/(?P<offset>[0-9]+)\+(?P<size>[0-9]+)"
    r"(?::(?P<codec>[a-z0-9_]+)\+(?P<whole>[0-9]+):(?P<start>[0-9]+)\+(?P<length>[0-9]+))?/(?P<name>.+)"
)
_BUFFER_BYTES = 2**16
_LARGEST_PAGE_BYTES = 2**30
"""The largest compressed page, decompressed, that is read. A decoder holds it in memory for a moment."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A part of a compressed page: the page has `whole` bytes when it is decompressed, and `length` bytes from `start`
    are the part."""

    codec: str
    """As pyarrow calls it: `snappy`, `gzip`, `zstd`, ..."""
    whole: int
    start: int
    length: int


def member_key(archive: str, offset: int, size: int, name: str, packed: Packed | None = None) -> str:
    """Return the key of a part of a file: `size` bytes from `offset`, or with `packed` a part of what they decompress
    to."""
    inner = f":{packed.codec}+{packed.whole}:{packed.start}+{packed.length}" if packed is not None else ""
    return f"{archive}/{offset}+{size}{inner}/{name}"


def is_member(key: str) -> bool:
    """Whether a key belongs to a part of a file."""
    return _KEY.fullmatch(key) is not None


def decompressed(data: bytes, codec: str, size: int) -> memoryview:
    """Return the content of a compressed page. Raises `PermanentError` if it is damaged or too large."""
    import pyarrow as pa  # only here, since most decoders read no such page

    if size > _LARGEST_PAGE_BYTES:
        raise PermanentError(
            f"a compressed page of {size:,} bytes is too large to read videos from; write the file again without "
            "compression for the videos, or with smaller row groups"
        )
    try:
        return memoryview(pa.Codec(codec).decompress(data, size))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise PermanentError(f"a compressed page cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class _Place:
    file: str
    offset: int
    size: int
    packed: Packed | None

    @property
    def size_bytes(self) -> int:
        return self.packed.length if self.packed is not None else self.size


class Archive(Derived):
    """An `ObjectStore` of the parts of all files in a store."""

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Return a range of a part."""
        place = _place(key)
        left = max(0, place.size_bytes - start)
        wanted = left if length is None else min(left, length)
        if place.packed is not None:
            return self._unpacked(key, place, place.packed)[start : start + wanted]
        return self._store.get(place.file, place.offset + start, wanted)

    def head(self, key: str) -> ObjectInfo:
        """Return its size; its ETag changes whenever its file does."""
        place = _place(key)
        info = self._store.head(place.file)
        if place.offset + place.size > info.size_bytes:
            raise NotFound(f"{self.uri(key)}: the archive ends before; build the catalog again")
        return ObjectInfo(key, place.size_bytes, member_etag(info.etag, place.offset, place.packed))

    def open(self, key: str) -> BinaryIO:
        """Return a file over the part's bytes."""
        place = _place(key)
        self.head(key)
        if place.packed is not None:
            return io.BytesIO(self._unpacked(key, place, place.packed))
        return io.BufferedReader(_Part(self._store.open(place.file), place.offset, place.size), _BUFFER_BYTES)

    def whole(self, key: str) -> tuple[ObjectStore, str]:
        """Return the file that contains a part: its store and its key there."""
        return self._store, _place(key).file

    def unwritable(self) -> str:
        """Return the reason: such files are read-only."""
        return "archives and tables are only read"

    def below(self, folder: str) -> Archive:
        """Return the store for a folder of such files."""
        return Archive(self._store.below(folder))

    def _unpacked(self, key: str, place: _Place, packed: Packed) -> bytes:
        page = self._store.get(place.file, place.offset, place.size)
        try:
            whole = decompressed(page, packed.codec, packed.whole)
        except PermanentError as error:
            raise PermanentError(f"{self.uri(key)}: {error}") from error
        return bytes(whole[packed.start : packed.start + packed.length])


def member_etag(etag: str, offset: int, packed: Packed | None = None) -> str:
    """Return the ETag of a part of a file with this ETag."""
    return f"{etag}@{offset}" if packed is None else f"{etag}@{offset}:{packed.start}"


class _Part(SeekableFile):
    """A range of a file as a file."""

    def __init__(self, file: BinaryIO, offset: int, size: int) -> None:
        super().__init__(size)
        self.whole = file
        self._offset = offset

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        length = max(0, min(len(buffer), self._size_bytes - self._position))
        self.whole.seek(self._offset + self._position)
        data = self.whole.read(length)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self.whole.close()
        super().close()


def _place(key: str) -> _Place:
    match = _KEY.fullmatch(key)
    if match is None:
        raise NotFound(f"{key!r} is not a member of an archive")
    packed = None
    if match["codec"]:
        packed = Packed(match["codec"], int(match["whole"]), int(match["start"]), int(match["length"]))
    return _Place(match["file"], int(match["offset"]), int(match["size"]), packed)
