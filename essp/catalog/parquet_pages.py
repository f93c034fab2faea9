"""The places of the values of a column of bytes in a Parquet file.

pyarrow reads values, but does not say where they are. So this module walks the pages of a column chunk: it reads their
headers (Thrift's compact protocol) and the lengths in front of the values, and skips the values themselves. A video of
a 10 GB file can then be opened by reading its own bytes only.

Pages may be of version 1 or 2, plain, with a dictionary or with the lengths in front (DELTA_LENGTH_BYTE_ARRAY). In
compressed pages, a place is one in the decompressed page (`essp_common.objects.archive.Packed`). The format is defined
at https://parquet.apache.org/docs/file-format/.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from essp_common.errors import PermanentError
from essp_common.objects.archive import Packed, decompressed

_HEADER_BYTES = 2**12
_LARGEST_HEADER_BYTES = 2**24
_DATA, _INDEX, _DICTIONARY, _DATA_V2 = 0, 1, 2, 3
_PLAIN, _PLAIN_DICTIONARY, _DELTA_LENGTH, _RLE_DICTIONARY = 0, 2, 6, 8
_ENCODINGS = {3: "RLE", 4: "BIT_PACKED", 5: "DELTA_BINARY_PACKED", 7: "DELTA_BYTE_ARRAY", 9: "BYTE_STREAM_SPLIT"}
_CODECS = {
    "SNAPPY": "snappy",
    "GZIP": "gzip",
    "BROTLI": "brotli",
    "ZSTD": "zstd",
    "LZ4": "lz4_raw",
    "LZ4_RAW": "lz4_raw",
}
_MAGIC_BYTES = 4
_STRUCT, _LIST, _SET, _MAP = 12, 9, 10, 11
_Fields: TypeAlias = "dict[int, Any]"


class Place(NamedTuple):
    """The bytes of a value: `size` bytes from `offset` of the file, or with `packed`, a part of what they decompress
    to."""

    offset: int
    size: int
    packed: Packed | None = None

    @property
    def length(self) -> int:
        """The number of bytes of the value."""
        return self.packed.length if self.packed is not None else self.size


class UnreadPages(PermanentError):
    """Pages that are stored in a way that this module does not read, or damaged ones."""


def places(file: BinaryIO, chunk: Any, most_definition: int) -> Iterator[Place | None]:
    """Yield the place of each value of a column chunk; None for a missing value.

    file: the Parquet file. chunk: pyarrow's metadata of the chunk. most_definition: the largest definition level of the
    column, which must not be in a list.

    Raises `UnreadPages`.
    """
    codec = "" if chunk.compression == "UNCOMPRESSED" else _CODECS.get(chunk.compression)
    if codec is None:
        raise UnreadPages(f"its pages are compressed with {chunk.compression}")
    offset = chunk.data_page_offset
    if chunk.has_dictionary_page and _MAGIC_BYTES <= (chunk.dictionary_page_offset or 0) < offset:
        offset = chunk.dictionary_page_offset
    end = offset + chunk.total_compressed_size
    dictionary: list[Place] = []
    count = 0
    while count < chunk.num_values:
        if offset >= end:
            raise UnreadPages(f"its pages have {count} of {chunk.num_values} values")
        page = _page(file, offset, codec)
        if page.kind == _DICTIONARY:
            dictionary = list(_plain(page, 0, page.values))
        elif page.kind in (_DATA, _DATA_V2):
            yield from _values(page, dictionary, most_definition)
            count += page.values
        offset = page.end


@dataclass(slots=True)
class _Page:
    """A page. Positions in it count from the first byte after its header."""

    file: BinaryIO
    kind: int
    start: int
    end: int
    size: int
    """Bytes of the page when it is decompressed."""
    values: int
    """Number of values, including missing ones."""
    encoding: int
    codec: str
    """Empty: not compressed."""
    levels: int = -1
    """Version 2: bytes of the levels, which are in front of the values and never compressed."""
    _content: memoryview | None = None

    @property
    def packed_from(self) -> int:
        """Where the compressed part begins."""
        return max(0, self.levels)

    def read(self, at: int, length: int) -> bytes:
        """Bytes of the decompressed page."""
        if at < 0 or length < 0 or at + length > self.size:
            raise UnreadPages("a value reaches beyond its page")
        if not self.codec or at + length <= self.packed_from:
            self.file.seek(self.start + at)
            found = self.file.read(length)
        else:
            found = bytes(self._unpacked()[at - self.packed_from : at - self.packed_from + length])
        if len(found) != length:
            raise UnreadPages("the file ends within a page")
        return found

    def place(self, at: int, length: int) -> Place:
        """The place of a value in the page."""
        if at + length > self.size:
            raise UnreadPages("a value reaches beyond its page")
        if not self.codec:
            return Place(self.start + at, length)
        begin = self.packed_from
        inner = Packed(self.codec, self.size - begin, at - begin, length)
        return Place(self.start + begin, self.end - self.start - begin, inner)

    def _unpacked(self) -> memoryview:
        if self._content is None:
            begin = self.start + self.packed_from
            self.file.seek(begin)
            self._content = decompressed(self.file.read(self.end - begin), self.codec, self.size - self.packed_from)
        return self._content


def _page(file: BinaryIO, offset: int, codec: str) -> _Page:
    fields, length = _header(file, offset)
    try:
        kind, size, stored = fields[1], fields[2], fields[3]
        about = fields[{_DATA: 5, _DICTIONARY: 7, _DATA_V2: 8}.get(kind, 5)] if kind != _INDEX else {}
        start = offset + length
        levels = about[5] + about[6] if kind == _DATA_V2 else -1
        if kind == _DATA_V2 and about.get(7) is False:
            codec = ""
        encoding = about.get(4 if kind == _DATA_V2 else 2, _PLAIN)
        return _Page(file, kind, start, start + stored, size, about.get(1, 0), encoding, codec, levels)
    except (KeyError, TypeError, AttributeError) as error:
        raise UnreadPages(f"byte {offset}: no header of a page") from error


def _values(page: _Page, dictionary: Sequence[Place], most_definition: int) -> Iterator[Place | None]:
    """The places of the values of a data page."""
    there, at = _present(page, most_definition)
    count = page.values if there is None else int(there.sum())
    if page.encoding in (_PLAIN_DICTIONARY, _RLE_DICTIONARY):
        width = page.read(at, 1)[0] if count else 0
        indices = _hybrid(page.read(at + 1, page.size - at - 1), width, count) if count else ()
        try:
            found = iter([dictionary[index] for index in indices])
        except IndexError as error:
            raise UnreadPages("a value is not in the dictionary") from error
    elif page.encoding == _PLAIN:
        found = iter(list(_plain(page, at, count)))
    elif page.encoding == _DELTA_LENGTH:
        found = iter(list(_after_lengths(page, at, count)))
    else:
        name = _ENCODINGS.get(page.encoding, f"number {page.encoding}")
        raise UnreadPages(f"its values have the encoding {name}")
    for number in range(page.values):
        yield next(found) if there is None or there[number] else None


def _present(page: _Page, most_definition: int) -> tuple[NDArray[np.bool_] | None, int]:
    """Which values of a page are there (None: all), and where the values begin."""
    width = most_definition.bit_length()
    if page.levels >= 0:
        if not width:
            return None, page.levels
        levels = page.read(0, page.levels)
        return _hybrid(levels, width, page.values) == most_definition, page.levels
    if not width:
        return None, 0
    length = int.from_bytes(page.read(0, 4), "little")
    return _hybrid(page.read(4, length), width, page.values) == most_definition, 4 + length


def _plain(page: _Page, at: int, count: int) -> Iterator[Place]:
    """Each value follows its length."""
    for _ in range(count):
        length = int.from_bytes(page.read(at, 4), "little")
        yield page.place(at + 4, length)
        at += 4 + length


def _after_lengths(page: _Page, at: int, count: int) -> Iterator[Place]:
    """All values follow all lengths."""
    lengths, end = _delta_packed(page, at, count)
    for length in lengths:
        yield page.place(end, length)
        end += length


def _hybrid(data: bytes, width: int, count: int) -> NDArray[np.int64]:
    """Numbers of `width` bits, in runs of equal ones and in packed groups of eight (RLE/bit-packing hybrid)."""
    made: list[NDArray[np.int64]] = []
    reader = _Compact(data)
    size = (width + 7) // 8
    left = count
    while left > 0:
        head = reader.varint()
        if head & 1:
            groups = head >> 1
            packed = np.frombuffer(reader.take(groups * width), np.uint8)
            numbers = _unpacked_bits(packed, width) if width else np.zeros(groups * 8, np.int64)
        else:
            value = int.from_bytes(reader.take(size), "little")
            numbers = np.full(min(head >> 1, left), value, np.int64)
        if not len(numbers):
            raise UnreadPages("an empty run")
        made.append(numbers[:left])
        left -= len(numbers)
    return np.concatenate(made) if made else np.zeros(0, np.int64)


def _unpacked_bits(packed: NDArray[np.uint8], width: int) -> NDArray[np.int64]:
    """Numbers of `width` bits each, least significant bit first."""
    bits = np.unpackbits(packed, bitorder="little")
    rows = bits[: len(bits) // width * width].reshape(-1, width).astype(np.int64)
    return rows @ (np.int64(1) << np.arange(width, dtype=np.int64))


def _delta_packed(page: _Page, at: int, count: int) -> tuple[list[int], int]:
    """Numbers stored as differences (DELTA_BINARY_PACKED), and where they end in the page."""
    reader = _Compact(page.read(at, page.size - at))
    block, minis, total = reader.varint(), reader.varint(), reader.varint()
    value = reader.zigzag()
    if total < count or not minis or block % minis or (block // minis) % 32:
        raise UnreadPages("its lengths cannot be read")
    numbers = [value] if total else []
    while len(numbers) < total:
        least = reader.zigzag()
        widths = reader.take(minis)
        for width in widths:
            if len(numbers) >= total:
                break
            packed = np.frombuffer(reader.take(block // minis * width // 8), np.uint8)
            steps = _unpacked_bits(packed, width) if width else np.zeros(block // minis, np.int64)
            for step in steps.tolist()[: total - len(numbers)]:
                value += least + step
                numbers.append(value)
    return numbers[:count], at + reader.at


def _header(file: BinaryIO, offset: int) -> tuple[_Fields, int]:
    """The fields of a page's header by number, and its length in bytes."""
    size = _HEADER_BYTES
    while True:
        file.seek(offset)
        data = file.read(size)
        reader = _Compact(data)
        try:
            return reader.struct(), reader.at
        except _Short as error:
            if len(data) < size or size >= _LARGEST_HEADER_BYTES:
                raise UnreadPages(f"byte {offset}: no header of a page") from error
            size *= 8


class _Short(UnreadPages):
    """The bytes end within what is read."""


class _Compact:
    """Reads Thrift's compact protocol."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, length: int) -> bytes:
        """The next bytes."""
        if length < 0 or self.at + length > len(self.data):
            raise _Short("a page ends early")
        self.at += length
        return self.data[self.at - length : self.at]

    def varint(self) -> int:
        """A number of variable length."""
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return value
            shift += 7
            if shift > 63:
                raise UnreadPages("a number is too long")

    def zigzag(self) -> int:
        """A signed number of variable length."""
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def struct(self, depth: int = 0) -> _Fields:
        """The fields of a structure, by number."""
        if depth > 8:
            raise UnreadPages("a header is nested too deeply")
        fields: _Fields = {}
        number = 0
        while head := self.take(1)[0]:
            number = number + (head >> 4) if head >> 4 else self.zigzag()
            fields[number] = self._value(head & 0x0F, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (1, 2):
            return kind == 1
        if kind == 3:
            return self.take(1)[0]
        if kind in (4, 5, 6):
            return self.zigzag()
        if kind == 7:
            return self.take(8)
        if kind == 8:
            return self.take(self.varint())
        if kind in (_LIST, _SET):
            head = self.take(1)[0]
            count = self.varint() if head >> 4 == 15 else head >> 4
            return [self._value(head & 0x0F, depth + 1) for _ in range(count)]
        if kind == _STRUCT:
            return self.struct(depth + 1)
        raise UnreadPages("a header has an unknown field")
