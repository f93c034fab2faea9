"""The file of a catalog: Parquet, one row per video, sorted by id.

Every value is checked when it is read or written (`checks.py`), because it is used in plans and messages. URIs may be
relative to the place of the file (`placement.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from essp_common.catalog.catalog import Catalog
from essp_common.catalog.checks import Columns, Problem, problems, sound_alone, type_problems
from essp_common.catalog.columns import Blobs, Column, Lists, Texts, Words, arrow_of, made_of, value_of
from essp_common.catalog.placement import (
    BASE_KEY,
    absolute,
    absolute_source,
    base_for,
    relative_source,
    relative_to,
)
from essp_common.catalog.rows import Rows
from essp_common.catalog.schema import (
    CHECKED,
    COLUMNS,
    KEYFRAMES,
    LATER,
    REMEDY,
    SCHEMA,
    SHARED,
    SOURCE_KEY,
    VERSION,
    VERSION_KEY,
    WORDS,
)
from essp_common.errors import ConfigError, EsspError, NotFound
from essp_common.objects import tables
from essp_common.objects.port import ObjectStore
from essp_common.quantities import size
from essp_common.runtime.memory import memory_limit

_PIECE = 2**16
"""Rows of a column that are read at a time."""
PART = 2**14
"""Rows of a row group in the file: those that are in memory at the same time when a catalog is built."""
_SMALL_BYTES = 2**22
"""A table that needs less memory than this is read at once."""
_REQUIRED = ("id", "uri", "class_name", "split", "size_bytes", "etag", "error")
_DIFFERENT = ("id", "uri", "etag", "size_bytes", "timestamps", "targets", "sums")
_IN_TURN = ("group", *(name for name in COLUMNS if name != "group"))
"""The order in which columns are read: those that need the most memory during reading come first."""
_RECURRING = tuple(f"{name}.list.element" if name in KEYFRAMES else name for name in COLUMNS if name not in _DIFFERENT)
"""The columns with recurring values, by their paths in a file."""
_ROW_BYTES = 300
"""Memory of a video without its distinct texts, measured with a million of them (`benchmarks/catalogs.py`)."""
_SHARE = 0.5
"""The largest share of this process's memory that a catalog may use."""
_PARQUET = b"PAR1"
"""The bytes at the beginning and end of a Parquet file."""
_ANOTHER = f"name another one, or {REMEDY}"


class NotACatalog(ConfigError):
    """A file that is not a catalog, or is damaged."""


def write_catalog(store: ObjectStore, key: str, catalog: Catalog, *, relative: bool | None = False) -> None:
    """Store a catalog, rows sorted by id; an object at `key` is replaced as a whole. Equal rows give equal bytes.

    `relative`: store URIs relative to the place of the catalog; None: if all usable videos are in its folder or below
    it.

    Raises `ConfigError` for a value that reading would refuse, and for videos without a relative path.
    """
    columns = catalog.rows.columns
    uris = arrow_of(columns["uri"], pa.string()).filter(pa.array(catalog.rows.usable))
    ends = pc.min_max(uris).as_py().values() if len(uris) else ()
    write_parts(store, key, [catalog], catalog.source, tuple(ends), relative=relative)


def write_parts(
    store: ObjectStore,
    key: str,
    parts: Iterable[Catalog],
    source: str,
    ends: Sequence[str],
    *,
    relative: bool | None = False,
) -> None:
    """The same, for a catalog that is not in memory as a whole. Each part has greater ids than the one before it, and
    all parts but the last have a multiple of `PART` rows. Each view is in its event once in all parts.

    `ends`: the least and the greatest URI of the usable videos, if there are any.
    """
    uri = store.uri(key)
    base = None if relative is False else base_for(uri, pa.array(ends, pa.string()), required=relative is True)
    said = {VERSION_KEY: VERSION, SOURCE_KEY: source if base is None else relative_source(uri, source)}
    schema = SCHEMA.with_metadata(said if base is None else {**said, BASE_KEY: base})

    def tables_of() -> Iterator[Any]:
        last = ""
        for part in parts:
            _check(uri, Columns(dict(part.rows.columns), {}, {}), "it was not written")
            if len(part.rows) and part.rows.text("id", 0) <= last:
                raise ConfigError(f"{uri}: id {last!r:.100} is there twice; it was not written", code="unreadable")
            last = part.rows.text("id", len(part.rows) - 1) if len(part.rows) else last
            table = to_table(part)
            if base is not None:
                place = table.schema.get_field_index("uri")
                table = table.set_column(place, "uri", relative_to(uri, base, table.column("uri")))
            yield table.replace_schema_metadata(schema.metadata)

    store.put(key, tables.packed(schema, tables_of(), _RECURRING, PART))


def is_relative(store: ObjectStore, key: str) -> bool:
    """Whether the URIs in the catalog at `key` are relative to its place. Raises `NotFound` and `NotACatalog`."""
    uri, path = store.uri(key), store.local_path(key)
    try:
        with _opened(path, None if path is not None else store.get(key)) as file:
            return BASE_KEY in (file.schema_arrow.metadata or {})
    except tables.UNREADABLE as error:
        raise NotACatalog(f"{uri} cannot be read as a catalog; {_ANOTHER}", code="unreadable") from error


def pack_table(table: Any) -> bytes:
    """The file of a catalog, from its `pyarrow.Table`, unchecked."""
    return tables.packed(table.schema, [table], _RECURRING, PART)


def row_problems(catalog: Catalog) -> Iterator[Problem]:
    """The values that are not allowed in a catalog; `Problem.row` counts rows in the order of ids."""
    return problems(Columns(dict(catalog.rows.columns), {}, {}))


def to_table(catalog: Catalog) -> Any:
    """The `pyarrow.Table` of a catalog, rows sorted by id, unchecked."""
    columns = catalog.rows.columns
    return pa.table(
        [arrow_of(columns[name], kind) for name, kind in COLUMNS.items()],
        schema=SCHEMA.with_metadata({VERSION_KEY: VERSION, SOURCE_KEY: catalog.source}),
    )


def read_catalog(store: ObjectStore, key: str, columns: Collection[str] | None = None) -> Catalog:
    """Read the catalog at `key`. With `columns`, all other fields (except those that identify a video) keep their
    defaults.

    Raises `NotFound`, `NotACatalog`, and `ConfigError` for a catalog of another version, one that would need too much
    of this process's memory, or one with an invalid value in any of its columns, with row and column.
    """
    uri = store.uri(key)
    wanted = frozenset(COLUMNS)
    if columns is not None:
        named = {*_REQUIRED, *columns}
        wanted = frozenset(name for name in COLUMNS if name.removesuffix("_num").removesuffix("_den") in named)
    read, source = _read(store, key, uri, wanted)
    _check(uri, read, REMEDY)
    return Catalog.of_columns({name: read.by_name[name] for name in COLUMNS if name in wanted}, source)


def read_parts(store: ObjectStore, key: str) -> Iterator[Rows]:
    """The rows of the catalog at `key`, some at a time. Skips those among which a value is invalid.

    Raises `NotFound`, `NotACatalog`, and `ConfigError` for a catalog of another version.
    """
    uri = store.uri(key)
    with _file(store, key, uri) as (file, lacking, resolve):
        for batch in tables.batches(file, [name for name in COLUMNS if name not in lacking], PART // 8):
            batch.validate(full=True)
            read = Columns({name: _without(name, batch.num_rows) for name in lacking}, {}, {})
            for name in batch.schema.names:
                array = batch.column(name) if name != "uri" or resolve is None else resolve(batch.column(name))
                made = made_of(COLUMNS[name], [array], name in WORDS, shared=name in SHARED)
                read.by_name[name], read.empty[name], read.holes[name] = made
            if not any(problems(read)):
                yield Catalog.of_columns({name: read.by_name[name] for name in COLUMNS}, "").rows


def _read(store: ObjectStore, key: str, uri: str, wanted: Collection[str]) -> tuple[Columns, str]:
    """The wanted columns, and those that must be compared with others or contain invalid values."""
    read = Columns({}, {}, {})
    with _file(store, key, uri) as (file, lacking, resolve):
        _check_size(uri, file.metadata)
        needed = [name for name in _IN_TURN if name not in lacking and (name in wanted or name not in CHECKED)]
        small = tables.read(file, needed) if _in_memory_bytes(file.metadata) <= _SMALL_BYTES else None
        for name in needed:
            _read_column(file, small, name, name in wanted, read, resolve if name == "uri" else None)
        for name in lacking & set(wanted):
            read.by_name[name] = _without(name, file.metadata.num_rows)
        metadata = file.schema_arrow.metadata
    source = metadata.get(SOURCE_KEY, b"").decode("utf-8", "replace")
    return read, source if resolve is None else absolute_source(uri, source)


@contextmanager
def _file(store: ObjectStore, key: str, uri: str) -> Iterator[tuple[Any, Set[str], Callable[[Any], Any] | None]]:
    """The file of a catalog, the columns that it lacks, and what makes its URIs absolute (None: they are). Within the
    context, errors of reading it become ESSP's."""
    path = store.local_path(key)
    try:
        data = None if path is not None else store.get(key)
        with _opened(path, data) as file:
            metadata = file.schema_arrow.metadata or {}
            _check_version(uri, metadata)
            lacking = LATER - set(file.schema_arrow.names)
            expected = {name: kind for name, kind in COLUMNS.items() if name not in lacking}
            if found := list(type_problems(file.schema_arrow, expected)):
                raise ConfigError(f"{uri}: {'; '.join(found)}; {REMEDY}", code="unreadable")
        base = metadata.get(BASE_KEY)
        with _opened(path, data, WORDS & set(expected)) as file:
            yield file, lacking, None if base is None else partial(absolute, uri, base.decode())
    except FileNotFoundError as error:
        raise NotFound(f"{uri}: no such catalog") from error
    except PermissionError as error:
        raise ConfigError(f"{uri}: {error.strerror}; give this process the right to read it", code="refused") from error
    except tables.UNREADABLE as error:
        raise NotACatalog(
            f"{uri} cannot be read as a catalog: {_fault(store, key, error)}; {_ANOTHER}", code="unreadable"
        ) from error


def _fault(store: ObjectStore, key: str, error: BaseException) -> str:
    """A short reason why a file cannot be read."""
    try:
        whole = store.head(key).size_bytes
        first, last = (store.get(key, at, len(_PARQUET)) for at in (0, max(0, whole - len(_PARQUET))))
    except EsspError:
        whole, first, last = 1, _PARQUET, _PARQUET
    if not whole:
        return "it is empty"
    if first != _PARQUET:
        return "it is not a Parquet file"
    return "its end is missing" if last != _PARQUET else f"it is damaged ({tables.reason(error)})"


def _read_column(
    file: Any, small: Any, name: str, wanted: bool, read: Columns, made: Callable[[Any], Any] | None = None
) -> None:
    """Add a column to those read. `small`: the whole table, if it is small; otherwise the column is read in parts.
    `made`: converts each part."""
    ids = read.by_name.get("id")
    beside = ids if name == "uri" and isinstance(ids, Texts) and ids.arrow().type == pa.string() else None
    pieces = _pieces(file, small, name)
    pieces = pieces if made is None else map(made, pieces)
    column, empty, holes = made_of(COLUMNS[name], pieces, name in WORDS, beside, name in SHARED)
    if len(column) != file.metadata.num_rows:  # only pages have checksums, not the metadata that lists them
        raise ValueError(f"column {name} has {len(column)} rows, and the table {file.metadata.num_rows}")
    if wanted or len(empty) or len(holes) or not sound_alone(name, column):
        read.by_name[name], read.empty[name], read.holes[name] = column, empty, holes
        if name in KEYFRAMES:
            _share_edges(read.by_name)


def _without(name: str, count: int) -> Column:
    """A column for data that the file does not have."""
    if name in WORDS:
        return Words(np.zeros(count, np.int8), Texts(b"", np.zeros(2, np.int32)))
    return Blobs(b"", np.zeros(count + 1, np.int32))


def _opened(path: str | None, data: bytes | None, words: Collection[str] = ()) -> Any:
    return tables.opened(path if path is not None else pa.BufferReader(data), words)


def _pieces(file: Any, small: Any, name: str) -> Iterator[Any]:
    if small is not None or name in WORDS or file.metadata.num_rows <= _PIECE:
        column = (tables.read(file, [name]) if small is None else small).column(name)
        column.validate(full=True)
        yield from column.chunks
    else:
        for batch in tables.batches(file, [name], _PIECE):
            batch.validate(full=True)
            yield batch.column(0)
    if small is None:
        pa.default_memory_pool().release_unused()


def _share_edges(made: dict[str, Column]) -> None:
    """Share the edges of lists with equal lengths, to save memory."""
    lists = [(name, column) for name, column in made.items() if isinstance(column, Lists)]
    (_, first), (name, last) = lists[0], lists[-1]
    if np.array_equal(first.edges, last.edges):
        made[name] = Lists(first.edges, last.numbers)


def _check(uri: str, columns: Columns, remedy: str) -> None:
    for problem in problems(columns):
        video = value_of(columns.by_name["id"], problem.row)
        where = f"row {problem.row + 1} ({video!r:.100}), column {problem.column}"
        raise ConfigError(f"{uri}: {where}: {problem.what}; {remedy}", code="unreadable")


def _check_version(uri: str, metadata: Mapping[bytes, bytes]) -> None:
    version = metadata.get(VERSION_KEY, b"").decode("utf-8", "replace")
    if not version:
        raise NotACatalog(f"{uri} is a Parquet file, but not a catalog; {_ANOTHER}", code="unreadable")
    if version != VERSION:
        raise ConfigError(
            f"{uri} is a catalog of version {version}, this is ESSP with version {VERSION}: {REMEDY}",
            code="unsupported",
        )


def _in_memory_bytes(metadata: Any) -> int:
    text = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    return int(metadata.num_rows * _ROW_BYTES + text)


def _check_size(uri: str, metadata: Any) -> None:
    """Check the size before reading: a small file can list millions of equal rows, and its footer says how many."""
    needed, limit = _in_memory_bytes(metadata), memory_limit()
    if needed > limit * _SHARE:
        raise ConfigError(
            f"{uri} lists {metadata.num_rows:,} videos, which would take {size(needed)} of the {size(limit)} of memory "
            "that this process may use; give it more memory, or split the catalog",
            code="range",
        )
