"""The catalog: one row a video, stored as Parquet.

Built by `build.py`, read here, divided into training, validation and test by `splits.py`. `CatalogView` is the part
of it that plans draw from: the usable videos of one split, as arrays, in an order that depends on the rows alone.

The file's metadata names the version of the schema; a file of another version is refused, since it takes one
command to build it again. Columns are the fields of `VideoRow`, with `time_base` as two. Every value is checked when it
is read (`checks.py`), since it goes into plans and messages.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from essp_common.catalog.checks import Problem, problems, type_problems
from essp_common.errors import ConfigError, NotFound, PermanentError
from essp_common.objects import tables
from essp_common.objects.port import ObjectStore

VERSION = "3"
_VERSION_KEY = b"essp.catalog.version"
_SOURCE_KEY = b"essp.catalog.source"


@dataclass(frozen=True, slots=True)
class VideoRow:
    """One video, or one labelled segment of one (then several rows share a `uri`)."""

    id: str
    """Unique and stable: the path below the source, plus `#start-end` for a segment."""
    uri: str
    class_name: str
    split: str
    size_bytes: int
    etag: str
    container: str = ""
    codec: str = ""
    pixel_format: str = ""
    width: int = 0
    """As displayed: rotation applied."""
    height: int = 0
    rotation: int = 0
    """Degrees, clockwise, that the decoded picture is turned by for display: 0, 90, 180 or 270."""
    fps: float = 0.0
    """Frames a second; where the rate varies, their mean over `duration_s`."""
    duration_s: float = 0.0
    """From the first frame to the end of the last one."""
    start_s: float = 0.0
    """When the first frame appears, after the beginning of the file."""
    timestamps: bytes = b""
    """When each frame appears, where the rate varies (`timing.py`); empty: `fps` tells, to within a tick."""
    time_base: tuple[int, int] = (0, 1)
    frame_count: int = 0
    """Frames of the whole file in display order, as a sequential decode gives them."""
    first_frame: int = 0
    """The segment's first frame (0 for a whole video)."""
    last_frame: int = 0
    """The segment's last frame, inclusive."""
    seekable: bool = False
    """A decode that starts at any of `keyframe_pts` gives the very frames of a sequential decode."""
    lookahead: int = 0
    """Every packet is a frame and timestamps are in the order of display, and of the frames shown before a frame none
    comes later than so many packets from its own on. 0: timestamps do not tell which frame is which."""
    keyframe_pts: tuple[int, ...] = ()
    keyframe_frame: tuple[int, ...] = ()
    """Display-order index of each keyframe."""
    keyframe_offset: tuple[int, ...] = ()
    """Byte offset of each keyframe's packet in the file (-1: the container does not say)."""
    group: str = ""
    """What it shares with others, such as the person or the recording; a group is on one side of a split that is carved
    out. Empty: it shares nothing."""
    error: str | None = None
    """Why the video cannot be used; null: it can."""


@dataclass(frozen=True)
class CatalogView:
    """The usable videos of one split, indexed 0..n-1."""

    rows: tuple[VideoRow, ...]
    classes: tuple[str, ...]
    """All class names of the catalog, sorted; a class id is a position in it, the same for every split."""
    class_id: NDArray[np.int32]
    """(n,) class of each video."""
    by_class: tuple[NDArray[np.int32], ...]
    """For each class id, the videos in it (may be empty)."""

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def first_frame(self) -> NDArray[np.int64]:
        """(n,) first frame of each video's segment."""
        return np.fromiter((row.first_frame for row in self.rows), np.int64, len(self.rows))

    @cached_property
    def length(self) -> NDArray[np.int64]:
        """(n,) frames of each video's segment, at least 1."""
        return np.fromiter((row.last_frame - row.first_frame + 1 for row in self.rows), np.int64, len(self.rows))


@dataclass(frozen=True)
class Catalog:
    """All rows, those that cannot be used too, by id."""

    rows: tuple[VideoRow, ...]
    source: str = ""
    """What it was built from."""

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Class names, sorted; also those of rows that cannot be used, so that a repaired file renumbers nothing.

        Usable videos without a label are of class `""`.
        """
        return tuple(sorted({row.class_name for row in self.rows if row.class_name or row.error is None}))

    @cached_property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits, sorted."""
        return tuple(sorted({row.split for row in self.rows}))

    def view(self, split: str | None) -> CatalogView:
        """The usable videos of a split (None: of all), by id. Empty for a split that is not there."""
        return self.view_of(row for row in self.rows if split is None or row.split == split)

    def view_of(self, rows: Iterable[VideoRow]) -> CatalogView:
        """The usable ones of these rows, by id, under the class ids of the whole catalog."""
        usable = tuple(sorted((row for row in rows if row.error is None), key=lambda row: row.id))
        number = {name: class_id for class_id, name in enumerate(self.classes)}
        class_id = np.fromiter((number[row.class_name] for row in usable), np.int32, len(usable))
        order = np.argsort(class_id, kind="stable").astype(np.int32)
        bounds = np.searchsorted(class_id[order], np.arange(1, len(number)))
        by_class = tuple(np.split(order, bounds)) if number else ()
        return CatalogView(usable, self.classes, class_id, by_class)


_INTEGERS, _STRING = pa.list_(pa.int64()), pa.string()
_COLUMNS: dict[str, pa.DataType] = {
    "id": _STRING,
    "uri": _STRING,
    "class_name": _STRING,
    "split": _STRING,
    "size_bytes": pa.int64(),
    "etag": _STRING,
    "container": _STRING,
    "codec": _STRING,
    "pixel_format": _STRING,
    "width": pa.int32(),
    "height": pa.int32(),
    "rotation": pa.int32(),
    "fps": pa.float64(),
    "duration_s": pa.float64(),
    "start_s": pa.float64(),
    "timestamps": pa.binary(),
    "time_base_num": pa.int64(),
    "time_base_den": pa.int64(),
    "frame_count": pa.int64(),
    "first_frame": pa.int64(),
    "last_frame": pa.int64(),
    "seekable": pa.bool_(),
    "lookahead": pa.int32(),
    "keyframe_pts": _INTEGERS,
    "keyframe_frame": _INTEGERS,
    "keyframe_offset": _INTEGERS,
    "group": _STRING,
    "error": _STRING,
}
_REMEDY = "make it again with `essp catalog build`"
_REQUIRED = ("id", "uri", "class_name", "split", "size_bytes", "etag", "error")


def write_catalog(store: ObjectStore, key: str, catalog: Catalog) -> None:
    """Store a catalog, rows by id; what lay at `key` is replaced whole. Equal rows give equal bytes.

    Raises `ConfigError` for a value that would be refused when it is read.
    """
    table = to_table(catalog)
    _check(store.uri(key), table, "it was not written")
    store.put(key, tables.packed(table.schema, [table]))


def row_problems(catalog: Catalog) -> Iterator[Problem]:
    """The values that no catalog can have; `Problem.row` counts by id."""
    table = to_table(catalog)
    return problems({name: table.column(name) for name in table.column_names})


def to_table(catalog: Catalog) -> Any:
    """The `pyarrow.Table` of a catalog, rows by id, unchecked."""
    rows = sorted(catalog.rows, key=lambda row: row.id)
    values: dict[str, list[Any]] = {f.name: [getattr(row, f.name) for row in rows] for f in fields(VideoRow)}
    values["time_base_num"] = [row.time_base[0] for row in rows]
    values["time_base_den"] = [row.time_base[1] for row in rows]
    return pa.table(
        {name: pa.array(values[name], kind) for name, kind in _COLUMNS.items()},
        schema=pa.schema(list(_COLUMNS.items()), metadata={_VERSION_KEY: VERSION, _SOURCE_KEY: catalog.source}),
    )


def read_catalog(store: ObjectStore, key: str, columns: Collection[str] | None = None) -> Catalog:
    """The catalog at `key`; with `columns`, other fields than these (and what names a video) keep their defaults.

    Raises `NotFound`, `PermanentError` for what is not a catalog, `ConfigError` for one of another version, or with a
    value that cannot be, by its row and column.
    """
    uri = store.uri(key)
    table = _read_table(store, key, uri, columns)
    values = {name: table.column(name).to_pylist() for name in table.column_names}
    if "time_base_num" in values:
        values["time_base"] = list(zip(values.pop("time_base_num"), values.pop("time_base_den"), strict=True))
    for name in ("keyframe_pts", "keyframe_frame", "keyframe_offset"):
        if name in values:
            values[name] = [tuple(frames) for frames in values[name]]
    fieldwise = (values.get(f.name) or repeat(f.default, table.num_rows) for f in fields(VideoRow))
    rows = tuple(map(VideoRow, *fieldwise))
    return Catalog(rows, table.schema.metadata.get(_SOURCE_KEY, b"").decode("utf-8", "replace"))


def _read_table(store: ObjectStore, key: str, uri: str, columns: Collection[str] | None) -> Any:
    wanted = tuple(_COLUMNS)
    if columns is not None:
        named = {*_REQUIRED, *columns}
        wanted = tuple(name for name in _COLUMNS if name.removesuffix("_num").removesuffix("_den") in named)
    path = store.local_path(key)
    try:
        with tables.opened(path if path is not None else pa.BufferReader(store.get(key))) as file:
            _check_version(uri, file.schema_arrow.metadata or {})
            expected = {name: _COLUMNS[name] for name in wanted}
            if found := list(type_problems(file.schema_arrow, expected)):
                raise ConfigError(f"{uri}: {'; '.join(found)}; {_REMEDY}")
            table = file.read(columns=list(wanted)).select(list(wanted))
            table.validate(full=True)
    except FileNotFoundError as error:
        raise NotFound(f"{uri}: no such catalog") from error
    except tables.UNREADABLE as error:
        raise PermanentError(f"{uri} cannot be read as a catalog: {error}") from error
    _check(uri, table, _REMEDY)
    return table


def _check(uri: str, table: Any, remedy: str) -> None:
    for problem in problems({name: table.column(name) for name in table.column_names}):
        video = table.column("id")[problem.row].as_py()
        where = f"row {problem.row + 1} ({video!r:.100}), column {problem.column}"
        raise ConfigError(f"{uri}: {where}: {problem.what}; {remedy}")


def _check_version(uri: str, metadata: Mapping[bytes, bytes]) -> None:
    version = metadata.get(_VERSION_KEY, b"").decode("utf-8", "replace")
    if not version:
        raise PermanentError(f"{uri} is a Parquet file, but not a catalog")
    if version != VERSION:
        raise ConfigError(f"{uri} is a catalog of version {version}, this is ESSP with version {VERSION}: {_REMEDY}")
