"""Tables as Parquet in the object store, with a checksum for every page: damage is found, and never read as values.

Without them a bit that flipped on a disk can become another class, score or frame number, since a decompressor has no
way to tell.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def packed(schema: pa.Schema, parts: Iterable[pa.Table]) -> bytes:
    """One file of these parts, which come one after the other. Equal parts give equal bytes."""
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, schema, compression="zstd", write_page_checksum=True) as writer:
        for part in parts:
            writer.write_table(part)
    return sink.getvalue()


def opened(source: Any) -> pq.ParquetFile:
    """A file to read from: a path, or what pyarrow reads as one. Raises as `unpacked` does before it maps errors."""
    return pq.ParquetFile(source, page_checksum_verification=True)


UNREADABLE = (pa.ArrowException, OSError, ValueError, TypeError, LookupError, AttributeError, OverflowError)
"""What pyarrow, and the handling of columns that are not as expected, raise for bytes that are no such table."""


def unpacked(data: bytes) -> pa.Table:
    """The table in a file. Raises one of `UNREADABLE`."""
    with opened(pa.BufferReader(data)) as file:
        table = file.read()
    table.validate(full=True)
    return table
