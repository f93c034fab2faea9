"""A file of records: header, table, payload. All numbers are little-endian.

    bytes 0..8      b"ESSPREC1"
    bytes 8..12     records n, uint32
    bytes 12..16    CRC-32 of bytes 0..12 and of the table, uint32
    then            the table: n entries of `ENTRY`
    then            the payload: the records' bytes, in the order of the table

A record is an image as pixel values (`RAW`: uint8, H x W x C) or as a file (`ENCODED`: JPEG, PNG or any other format),
of any size. Each has its own CRC-32, so damage is located precisely and costs only the affected records.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from essp_common.errors import BadFrames, PermanentError

MAGIC = b"ESSPREC1"
HEADER_BYTES = 16
ENTRY = np.dtype(
    [
        ("key", "<u8"),  # of the record, in all versions of its data set
        ("offset", "<u8"),  # in the file
        ("length", "<u4"),
        ("crc", "<u4"),  # CRC-32 of the record's bytes
        ("label", "<i4"),  # index into the data set's classes; -1: no label
        ("height", "<u2"),  # in pixels; 0: given by the encoded image
        ("width", "<u2"),
        ("channels", "u1"),
        ("encoding", "u1"),  # `Encoding`
        ("reserved", "V6"),
    ]
)
MOST_RECORDS = 1 << 24
"""Maximum records of a file."""
MOST_BYTES = (1 << 32) - 1
"""Maximum bytes of a record."""
MOST_SIDE, MOST_CHANNELS = (1 << 16) - 1, (1 << 8) - 1
"""Maximum side and channels of an image."""


class Encoding(IntEnum):
    """The format of a record's bytes."""

    RAW = 0
    ENCODED = 1


class DamagedChunk(PermanentError):
    """A file of records whose header or table is damaged."""

    kind = "damaged"


@dataclass(frozen=True, slots=True)
class Record:
    """One item to be added to a data set."""

    data: bytes
    label: int
    encoding: Encoding = Encoding.ENCODED
    height: int = 0
    width: int = 0
    channels: int = 0

    @classmethod
    def of_image(cls, image: NDArray[np.uint8], label: int) -> Record:
        """A record from `(H, W)` or `(H, W, C)` pixel values. Raises `ValueError` for anything else, and `BadFrames` if
        it is too large."""
        if image.dtype != np.uint8 or image.ndim not in (2, 3) or not image.size:
            raise ValueError(f"an image is (H, W) or (H, W, C) uint8, not {image.shape} {image.dtype}")
        height, width, channels = (*image.shape, 1)[:3]
        if max(height, width) > MOST_SIDE or channels > MOST_CHANNELS or image.nbytes > MOST_BYTES:
            raise BadFrames(f"{height}x{width}x{channels} are too many numbers for a record")
        return cls(image.tobytes(), label, Encoding.RAW, height, width, channels)


def pack(records: list[Record], first_key: int) -> bytes:
    """The file of these records, whose keys count from `first_key`."""
    if not 0 < len(records) <= MOST_RECORDS:
        raise ValueError(f"{len(records)} records do not make a file: 1 to {MOST_RECORDS}")
    table = np.zeros(len(records), ENTRY)
    table["key"] = np.arange(first_key, first_key + len(records), dtype=np.uint64)
    table["length"] = [len(record.data) for record in records]
    begin = HEADER_BYTES + table.nbytes
    ends = np.cumsum(table["length"], dtype=np.uint64)
    table["offset"] = begin + ends - table["length"]
    table["crc"] = [zlib.crc32(record.data) for record in records]
    for name in ("label", "height", "width", "channels", "encoding"):
        table[name] = [getattr(record, name) for record in records]
    head = MAGIC + len(records).to_bytes(4, "little")
    return b"".join((head, _table_crc(head, table.tobytes()), table.tobytes(), *(record.data for record in records)))


def table_bytes(header: bytes) -> int:
    """The length in bytes of the table after this header. Raises `DamagedChunk`."""
    if len(header) < HEADER_BYTES or header[:8] != MAGIC:
        raise DamagedChunk("it does not begin like a file of records")
    count = int.from_bytes(header[8:12], "little")
    if not 0 < count <= MOST_RECORDS:
        raise DamagedChunk(f"its header says that it has {count} records")
    return count * ENTRY.itemsize


def read_table(header: bytes, table: bytes, file_bytes: int) -> NDArray[np.void]:
    """The table as an array of `ENTRY`. Raises `DamagedChunk`.

    `file_bytes`: the length of the whole file; no returned entry points beyond it.
    """
    if len(table) < table_bytes(header):
        raise DamagedChunk("it ends within its table")
    if _table_crc(header[:12], table) != header[12:16]:
        raise DamagedChunk("its table is damaged")
    entries = np.frombuffer(table, ENTRY)
    begin = HEADER_BYTES + entries.nbytes
    ends = begin + np.cumsum(entries["length"], dtype=np.uint64)
    if (entries["offset"] + entries["length"] != ends).any():
        raise DamagedChunk("its table is damaged")
    raw = entries[entries["encoding"] == Encoding.RAW]
    sides = [raw[name].astype(np.uint64) for name in ("height", "width", "channels")]
    if (raw["length"] != sides[0] * sides[1] * sides[2]).any():
        raise DamagedChunk("its table gives images sizes that their bytes have not")
    if int(ends[-1]) != file_bytes:
        raise DamagedChunk(f"it has {file_bytes} bytes instead of {int(ends[-1])}")
    return entries


def _table_crc(head: bytes, table: bytes) -> bytes:
    return zlib.crc32(table, zlib.crc32(head)).to_bytes(4, "little")
