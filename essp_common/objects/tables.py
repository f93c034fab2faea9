"""Tables as Parquet in the object store, with a checksum for every page: damage is detected, and never read as values.

Without checksums, a flipped bit on a disk can turn into another class, score or frame number, since a decompressor
cannot detect it.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

_WORDS_BYTES = 2**28
"""Limit for the dictionary of a column in a million rows; beyond it, values are stored row by row."""


def packed(
    schema: pa.Schema, parts: Iterable[pa.Table], words: Collection[str] | None = None, rows: int = 2**20
) -> bytes:
    """Return one file with these parts, in order. Equal parts give equal bytes.

    `words`: columns with recurring values, each of them stored only once in a row group, however many there are.
    `rows`: the maximum rows of a row group.
    """
    coded = {} if words is None else {"use_dictionary": sorted(words), "dictionary_pagesize_limit": _WORDS_BYTES}
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, schema, compression="zstd", write_page_checksum=True, **coded) as writer:
        for part in parts:
            writer.write_table(part, row_group_size=rows)
    return sink.getvalue()


def opened(source: Any, words: Collection[str] = ()) -> pq.ParquetFile:
    """Open a file: a path, or what pyarrow reads as one. Raises pyarrow's own errors, like `unpacked` before mapping.

    `words`: columns of strings that are returned as dictionaries, as stored in the file.
    """
    return pq.ParquetFile(source, page_checksum_verification=True, read_dictionary=sorted(words))


def read(file: pq.ParquetFile, columns: Sequence[str] | None = None) -> pa.Table:
    """Read these columns, by default all, in this thread only. Raises one of `UNREADABLE`.

    pyarrow's own threads may be the last to hold the underlying buffer, and release it while Python is shutting down,
    which aborts the process (apache/arrow#34314).
    """
    return file.read(columns=columns, use_threads=False)


def batches(file: pq.ParquetFile, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the same in batches of this many rows."""
    yield from file.iter_batches(batch_size=rows, columns=columns, use_threads=False)


def to_numpy(array: pa.Array) -> NDArray[Any]:
    """Return the values of an array of numbers or booleans; read-only.

    pyarrow's own `to_numpy`, as `pa.array`, imports pandas where it is installed, which takes a third of a second. Only
    arrays with nulls need it: numbers become floats, with NaN for nulls, and booleans objects, with None.
    """
    if array.null_count:
        return np.asarray(array.to_numpy(zero_copy_only=False))
    if pa.types.is_boolean(array.type):  # bits, which DLPack does not have
        return np.from_dlpack(array.cast(pa.uint8())).view(np.bool_)
    return np.from_dlpack(array)


def taken(table: pa.Table, rows: NDArray[np.int64]) -> pa.Table:
    """Return these rows of a table, in their order. It does not import pandas, either."""
    return table.take(pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(np.ascontiguousarray(rows))]))


UNREADABLE = (
    pa.ArrowException, OSError, ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError
)  # fmt: skip
"""Raised by pyarrow, and by the handling of unexpected columns, for bytes that are not such a table."""


def unpacked(data: bytes) -> pa.Table:
    """Return the table in a file. Raises one of `UNREADABLE`."""
    with opened(pa.BufferReader(data)) as file:
        table = read(file)
    table.validate(full=True)
    return table


def filled(table: pa.Table, schema: pa.Schema, optional: Collection[str] = ()) -> pa.Table:
    """Return the columns of a schema, in its types. Raises one of `UNREADABLE` for a column that is missing, does not
    fit its type, or lacks a value in some row without being `optional`."""
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
    """Whether a column has no nulls, infinities or NaN."""
    if column.null_count:
        return False
    if pa.types.is_list(column.type) or pa.types.is_fixed_size_list(column.type):
        return _is_filled(column.flatten())
    return not pa.types.is_floating(column.type) or bool(np.isfinite(column.to_numpy(zero_copy_only=False)).all())


def reason(error: BaseException) -> str:
    """Return the message of one of `UNREADABLE`, in one line."""
    said = error.args[0] if isinstance(error, KeyError) and error.args else error
    return " ".join(str(said).split())
