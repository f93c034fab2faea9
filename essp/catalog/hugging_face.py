"""Parquet and Arrow files that hold the videos themselves, as `datasets` of Hugging Face writes them.

    video          {bytes, path}, or a column of bytes
    label          text, or a number with its name in the schema (ClassLabel); also `class`, `labels`, ...
    any other      kept unchanged, unless it holds bytes

Videos stay where they are: a catalog records the file and the place of each value in it (`parquet_pages.py`). Where a
value has a path and no bytes, as in the caches of `datasets`, the path names the video. The split is the name of a
folder or a part of the name of the file (`train-00000-of-00002.parquet`); otherwise all are for training.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa

from essp.catalog.csv_source import looked_up
from essp.catalog.entry import Entry
from essp.catalog.found import Found, few
from essp.catalog.hugging_face_schema import byte_columns, class_names, holds_bytes, video_columns
from essp.catalog.layout import TABLES, Layout
from essp.catalog.list_rows import named, plain_value
from essp.catalog.parquet_pages import Place, UnreadPages, places
from essp.catalog.shards import LABELS, names_in, split_of_file
from essp.catalog.spool import Spool
from essp.uris import listed_uri
from essp_common.catalog.schema import VERSION_KEY
from essp_common.errors import ConfigError
from essp_common.objects import tables
from essp_common.objects.archive import member_etag, member_key
from essp_common.objects.keys import is_key

_NAMES = ("video", "mp4", "clip", "webm", "avi", "mov", "bytes", "data", "content", "file")
"""What the column with the videos is called, or what is in its name, if the schema does not say which it is."""
_ARROW_FILE, _ARROW_START = b"ARROW1", 8
_CACHE = "cache-"
"""How `datasets` begins the names of files with the results of `map` and `filter`."""


class _Row(NamedTuple):
    place: Place | None
    """None: it has no bytes."""
    path: str
    further: dict[str, Any]


def is_tables(found: Found) -> str:
    keys = _tables(found)
    if not keys or (found.videos if not found.given else False):
        return ""
    try:
        for number, key in enumerate(keys):
            with closing(found.store.open(key)) as file:
                schema = _schema(key, file)
            if not _is_catalog(schema):
                column = _column(schema)
                return f"{few(keys[number:])}: the videos are in the column {column!r}" if column else ""
    except tables.UNREADABLE:
        return ""
    return ""


def _tables(found: Found) -> list[str]:
    keys = [key for key in found.lists if key.lower().endswith(TABLES)]
    own = [key for key in keys if not PurePosixPath(key).name.startswith(_CACHE)]
    return own or keys


def read_tables(found: Found) -> Iterator[Entry]:
    """A row for each video. Where only a path is stored, the file is looked up.

    Raises `ConfigError` for a file that is damaged, or without a column of videos.
    """
    elsewhere = Spool(Entry)
    for key in _tables(found):
        uri, etag, split = found.store.uri(key), found.store.head(key).etag, split_of_file(key)
        folder = uri.rpartition("/")[0]
        try:
            with closing(found.store.open(key)) as file:
                schema = _schema(key, file)
                if _is_catalog(schema) and not found.given:
                    continue
                column, names = _column(schema), class_names(schema)
                if not column:
                    raise ConfigError(f"{uri} has no column of videos; its columns: {few(schema.names)}")
                read = _arrow_rows if _is_arrow(key) else _parquet_rows
                for number, row in enumerate(read(found.store.local_path(key), file, schema, column)):
                    entry = _entry(key, number, split, row, names)
                    if row.place is None and row.path:
                        elsewhere.add(replace(entry, uri=listed_uri(row.path, folder)))
                    elif row.place is None:
                        yield replace(entry, error="missing: its row has neither the bytes nor the path of a video")
                    else:
                        offset, size, packed = row.place
                        name = entry.id.rpartition("/")[2]
                        place = found.store.uri(member_key(key, offset, size, name, packed))
                        yield replace(
                            entry, uri=place, size_bytes=row.place.length, etag=member_etag(etag, offset, packed)
                        )
        except UnreadPages as error:
            raise ConfigError(
                f"{uri}: {error}; write it again with pyarrow or `datasets`, without compression for the videos",
                code="unreadable",
            ) from error
        except tables.UNREADABLE as error:
            raise ConfigError(f"{uri} cannot be read: {tables.reason(error)}", code="unreadable") from error
    yield from looked_up(elsewhere, found.stores)


def _is_catalog(schema: Any) -> bool:
    """Whether it is a catalog, which is often in the folder of its videos."""
    return VERSION_KEY in (schema.metadata or {})


def _is_arrow(key: str) -> bool:
    return key.lower().endswith(".arrow")


def _schema(key: str, file: BinaryIO) -> Any:
    """The columns of a file."""
    if not _is_arrow(key):
        with tables.opened(file) as opened:
            return opened.schema_arrow
    file.seek(_arrow_start(file))
    with pa.ipc.open_stream(pa.PythonFile(file, "r")) as stream:
        return stream.schema


def _arrow_start(file: BinaryIO) -> int:
    """Where the stream of messages begins: a file of Arrow's own format has a few bytes in front of it."""
    file.seek(0)
    return _ARROW_START if file.read(len(_ARROW_FILE)) == _ARROW_FILE else 0


def _column(schema: Any) -> str:
    """The column with the videos; empty: there is none."""
    held = byte_columns(schema)
    declared = [name for name in video_columns(schema) if name in held]
    called = [own for name in _NAMES for own in held if own.lower() == name]
    like = [own for name in _NAMES[:3] for own in held if name in own.lower()]
    return next(iter([*declared, *called, *like]), "")


def _entry(key: str, number: int, split: str, row: _Row, names: Mapping[str, Sequence[str]]) -> Entry:
    name = PurePosixPath(row.path.replace("\\", "/")).name or str(number)
    meta = {column: named(value, names.get(column)) for column, value in row.further.items()}
    usual = [column for label in LABELS for column in meta if column.lower() == label]
    labels: tuple[str, ...] = ()
    for column in [*usual, *names]:
        if labels := names_in(meta.get(column)):
            del meta[column]
            break
    return Entry(
        f"{key}/{number}/{name if is_key(name) else number}",
        "",
        labels[0] if labels else "",
        split,
        labels=labels if len(labels) > 1 else (),
        meta={column: plain_value(value) for column, value in meta.items()},
        unlabelled="" if labels else f"its row in {key} has no label",
    )


def _parquet_rows(_path: str | None, file: BinaryIO, schema: Any, column: str) -> Iterator[_Row]:
    leaf = byte_columns(schema)[column]
    with tables.opened(file) as opened:
        leaves = [opened.schema.column(place) for place in range(len(opened.schema))]
        place = next(number for number, each in enumerate(leaves) if each.path == leaf)
        kept = [field.name for field in schema if not holds_bytes(field.type)]
        beside = [] if leaf == column else [f"{column}.path"]
        for group in range(opened.num_row_groups):
            about = opened.metadata.row_group(group)
            found = places(file, about.column(place), leaves[place].max_definition_level)
            rows = opened.read_row_group(group, columns=[*kept, *beside], use_threads=False).to_pylist()
            rows = rows or [{} for _ in range(about.num_rows)]
            for row, where in zip(rows, found, strict=True):
                yield _Row(where, _path_of(row.pop(column, None)), row)


def _arrow_rows(path: str | None, file: BinaryIO, schema: Any, column: str) -> Iterator[_Row]:
    start = _arrow_start(file)
    source = pa.memory_map(path) if path is not None else pa.PythonFile(file, "r")
    source.seek(start)
    kept = [field.name for field in schema if not holds_bytes(field.type)]
    messages = pa.ipc.MessageReader.open_stream(source)
    while True:
        try:
            message = messages.read_next_message()
        except StopIteration:
            return
        if message.type == "dictionary":
            raise UnreadPages("its columns are dictionaries")
        if message.type != "record batch":
            continue
        begin = source.tell() - message.body.size
        batch = pa.ipc.read_record_batch(message, schema)
        held = batch.column(column)
        values = held.field("bytes") if pa.types.is_struct(held.type) else held
        paths = held.field("path").to_pylist() if _has_path(held.type) else [None] * len(held)
        rows = batch.select(kept).to_pylist() or [{} for _ in range(len(held))]
        found = _in_body(values, message.body, begin)
        for row, where, there, name in zip(rows, found, held.is_valid().to_pylist(), paths, strict=True):
            yield _Row(where if there else None, name or "", row)


def _in_body(values: Any, body: Any, begin: int) -> Iterator[Place | None]:
    """The places of the values of a column of bytes in the body of its message, which begins at a byte of the file."""
    _, edges, data = values.buffers()
    width = np.int64 if pa.types.is_large_binary(values.type) else np.int32
    ends = np.frombuffer(edges, width)[values.offset : values.offset + len(values) + 1].tolist() if edges else [0]
    at = data.address - body.address if data is not None else 0
    if not 0 <= at <= body.size:
        raise UnreadPages("its values are compressed")
    for there, first, end in zip(values.is_valid().to_pylist(), ends, ends[1:], strict=False):
        yield Place(begin + at + first, end - first) if there else None


def _has_path(kind: Any) -> bool:
    return bool(pa.types.is_struct(kind) and kind.get_field_index("path") >= 0)


def _path_of(value: Any) -> str:
    return (value.get("path") if isinstance(value, dict) else None) or ""


PARQUET_OR_ARROW = Layout(
    "parquet",
    "Parquet or Arrow files with a column of videos",
    is_tables,
    read_tables,
    files=TABLES,
    csv=True,
)
