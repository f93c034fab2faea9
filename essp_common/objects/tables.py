"""Tables as Parquet in the object store, with a checksum for every page: damage is found, and never read as values.

Without them a bit that flipped on a disk can become another class, score or frame number, since a decompressor has no
way to tell.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

_WORDS_BYTES = 2**28
"""Of the words of a column in a million rows; beyond, they lie row by row."""


def packed(schema: pa.Schema, parts: Iterable[pa.Table], words: Collection[str] | None = None) -> bytes:
    """One file of these parts, which come one after the other. Equal parts give equal bytes.

    `words`: the columns in which values recur, so that the file holds each once, however many there are.
    """
    coded = {} if words is None else {"use_dictionary": sorted(words), "dictionary_pagesize_limit": _WORDS_BYTES}
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, schema, compression="zstd", write_page_checksum=True, **coded) as writer:
        for part in parts:
            writer.write_table(part)
    return sink.getvalue()


def opened(source: Any, words: Collection[str] = ()) -> pq.ParquetFile:
    """A file to read from: a path, or what pyarrow reads as one. Raises as `unpacked` does before it maps errors.

    `words`: columns of strings that come as dictionaries, as they lie in the file.
    """
    return pq.ParquetFile(source, page_checksum_verification=True, read_dictionary=sorted(words))


def read(file: pq.ParquetFile, columns: Sequence[str] | None = None) -> pa.Table:
    """These columns, by default all, read by this thread alone. Raises one of `UNREADABLE`.

    pyarrow's own threads may be the last to hold what a file lies in, and give it back when Python is already leaving,
    which aborts the process (apache/arrow#34314).
    """
    return file.read(columns=columns, use_threads=False)


def batches(file: pq.ParquetFile, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
    """The same, so many rows at a time."""
    yield from file.iter_batches(batch_size=rows, columns=columns, use_threads=False)


UNREADABLE = (
    pa.ArrowException, OSError, ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError
)  # fmt: skip
"""What pyarrow, and the handling of columns that are not as expected, raise for bytes that are no such table."""


def unpacked(data: bytes) -> pa.Table:
    """The table in a file. Raises one of `UNREADABLE`."""
    with opened(pa.BufferReader(data)) as file:
        table = read(file)
    table.validate(full=True)
    return table


def filled(table: pa.Table, schema: pa.Schema, optional: Collection[str] = ()) -> pa.Table:
    """The columns of a schema, in its types. Raises one of `UNREADABLE` for a column that is missing, or holds what has
    no place in its type, or lacks a value in some row and is not `optional`."""
    if missing := [name for name in schema.names if name not in table.column_names]:
        raise ValueError(f"column {missing[0]} is missing")
    columns = []
    for field in schema:
        column = table.column(field.name).combine_chunks()
        try:
            columns.append(column.cast(field.type))
        except pa.ArrowException as error:
            raise ValueError(f"column {field.name}: {error}") from error
        if field.name not in optional and not _is_filled(columns[-1]):
            raise ValueError(f"column {field.name} lacks a value in some row")
    return pa.table(columns, schema=schema)


def _is_filled(column: pa.Array) -> bool:
    """Whether it has neither nulls nor infinities nor NaN."""
    if column.null_count:
        return False
    if pa.types.is_list(column.type) or pa.types.is_fixed_size_list(column.type):
        return _is_filled(column.flatten())
    return not pa.types.is_floating(column.type) or bool(np.isfinite(column.to_numpy(zero_copy_only=False)).all())


def reason(error: BaseException) -> str:
    """What one of `UNREADABLE` says, in one line."""
    said = error.args[0] if isinstance(error, KeyError) and error.args else error
    return " ".join(str(said).split())
