"""The catalog: one row a video, stored as Parquet, in memory as columns.

Built by `build.py`, read here, divided into training, validation and test by `splits.py`. `Rows` are some of its rows,
and a `VideoRow` is made of the columns when somebody asks for it. `CatalogView` is the part that plans draw from: the
usable videos of one split, as arrays, in an order that depends on the rows alone. Nothing here is done row by row, so
a catalog of a million videos is read in seconds.

The file's metadata names the version of the schema; a file of another version is refused, since it takes one
command to build it again. Columns are the fields of `VideoRow`, with `time_base` as two. Every value is checked when it
is read (`checks.py`), since it goes into plans and messages.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from essp_common.catalog.checks import LARGEST_COUNT, Columns, Problem, problems, sound_alone, type_problems
from essp_common.catalog.columns import (
    Blobs,
    Column,
    Lists,
    Numbers,
    Texts,
    Words,
    arrow_of,
    made_of,
    narrow,
    taken,
    value_of,
    values_of,
)
from essp_common.errors import ConfigError, NotFound, PermanentError
from essp_common.objects import tables
from essp_common.objects.port import ObjectStore

VERSION = "4"
_VERSION_KEY = b"essp.catalog.version"
_SOURCE_KEY = b"essp.catalog.source"
_AT_ONCE = 4096
"""Rows that are made at once where all are asked for."""
_SAMPLED, _NEARLY_ALL = 1000, 0.9
"""Videos that are looked at for what a catalog's videos have in common, and the share of them that has to have it."""
_PIECE = 2**16
"""Rows of a column that are read at a time."""


@dataclass(frozen=True, slots=True)
class VideoRow:
    """One video, or one labelled segment of one (then several rows share a `uri`).

    For example:

        row = essp.open_catalog("catalog.parquet").rows[0]
        row.id, row.class_name, row.last_frame - row.first_frame + 1, row.error
    """

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
    extra: str = ""
    """Further columns of the source, as a JSON object; empty: none. `meta` reads it."""
    targets: bytes = b""
    """What there is to learn beside the class (`targets.py`): several labels, spans, a value a frame; empty: nothing.
    `essp_common.catalog.targets.unpack` reads it."""
    error: str | None = None
    """Why the video cannot be used; null: it can."""

    @property
    def meta(self) -> dict[str, Any]:
        """Further columns of the source, by name. Raises `ConfigError` for what is no JSON object."""
        return meta_of(self.id, self.extra)


def meta_of(video: str, extra: str) -> dict[str, Any]:
    """What `VideoRow.extra` holds."""
    try:
        found = json.loads(extra or "{}")
    except ValueError as error:
        raise ConfigError(f"{video}: column extra is no JSON ({error}); {_REMEDY}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{video}: column extra is no JSON object; {_REMEDY}")
    return found


class Rows(Sequence[VideoRow]):
    """Some rows of a catalog. Each is made when it is asked for; whole columns cost no more than a few rows."""

    def __init__(self, columns: Mapping[str, Column], places: NDArray[Any]) -> None:
        """`places`: of these rows in the columns, which are the fields of `VideoRow`; records have `record` and `file`,
        too (`essp_common/records/rows.py`)."""
        self.columns = columns
        self.places = places

    @classmethod
    def of(cls, rows: Iterable[VideoRow]) -> Rows:
        """These rows as columns, in the order of ids; rows that are columns already, as they are."""
        return rows if isinstance(rows, Rows) else Catalog(rows).rows

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, place: int) -> VideoRow: ...

    @overload
    def __getitem__(self, place: slice) -> Rows: ...

    def __getitem__(self, place: int | slice) -> VideoRow | Rows:
        if isinstance(place, slice):
            return Rows(self.columns, self.places[place])
        at = self.places[place]
        return _row({name: value_of(column, at) for name, column in self.columns.items() if name in _COLUMNS})

    def __iter__(self) -> Iterator[VideoRow]:
        columns = {name: column for name, column in self.columns.items() if name in _COLUMNS}
        for begin in range(0, len(self), _AT_ONCE):
            places = self.places[begin : begin + _AT_ONCE]
            values = [values_of(column, places) for column in columns.values()]
            for row in zip(*values, strict=True):
                yield _row(dict(zip(columns, row, strict=True)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(one == another for one, another in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def where(self, chosen: NDArray[Any]) -> Rows:
        """Some of the rows: places among them, or yes or no for each."""
        return Rows(self.columns, self.places[chosen])

    def numbers(self, name: str) -> Numbers:
        """The values of a column of numbers."""
        column = self.columns[name]
        if not isinstance(column, np.ndarray):
            raise TypeError(f"{name} is no column of numbers")
        values: Numbers = column[self.places]
        return values

    def words(self, name: str) -> tuple[Numbers, Texts]:
        """The code of each row in one of `WORDS`, and the words that the codes stand for."""
        column = self._words(name)
        return column.codes[self.places], column.words

    def distinct(self, name: str) -> NDArray[np.int64]:
        """The codes of one of `WORDS` that these rows have."""
        return self._words(name).used(self.places)

    def lengths(self, name: str) -> NDArray[Any]:
        """The bytes of each text of a column."""
        column = self.columns[name]
        if not isinstance(column, Blobs):
            raise TypeError(f"{name} is no column of texts")
        found: NDArray[Any] = column.lengths[self.places]
        return found

    def lists(self, name: str) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Of a column of lists: how long each row's is; the row of each number in them; the numbers."""
        column = self.columns[name]
        if not isinstance(column, Lists):
            raise TypeError(f"{name} is no column of lists")
        counts = np.diff(column.edges)[self.places]
        owners = np.repeat(np.arange(len(self), dtype=np.int32), counts)
        begins = column.edges[self.places] - (np.cumsum(counts) - counts)
        return counts, owners, column.numbers[np.arange(len(owners)) + begins[owners]]

    def names(self, name: str) -> tuple[str, ...]:
        """The words that these rows have in one of `WORDS`, sorted."""
        words = self._words(name).words
        return tuple(sorted(words.value(code) for code in self.distinct(name).tolist()))

    def has(self, name: str, word: str) -> NDArray[np.bool_]:
        """Which of the rows have this word in one of `WORDS`."""
        column = self._words(name)
        found: NDArray[np.bool_] = column.codes[self.places] == column.code(word)
        return found

    @property
    def groups(self) -> int:
        """How many groups the rows are of."""
        column = self._words("group")
        return int(np.count_nonzero(column.used(self.places) != column.code("")))

    @property
    def usable(self) -> NDArray[np.bool_]:
        """Which of the videos can be used."""
        found: NDArray[np.bool_] = self._words("error").codes[self.places] < 0
        return found

    def alike(self, name: str) -> NDArray[Any]:
        """A number for each row, below that of the rows, which is equal for those with equal texts."""
        column = self.columns[name]
        if not isinstance(column, Blobs):
            raise TypeError(f"{name} is no column of texts")
        return column.alike(self.places)

    def encoded(self, name: str) -> Iterator[memoryview | bytes]:
        """The texts of a column, as UTF-8."""
        column = self.columns[name]
        if not isinstance(column, Blobs):
            raise TypeError(f"{name} is no column of texts")
        return column.each(self.places)

    def text(self, name: str, row: int) -> str:
        """One text of one row."""
        found: str = value_of(self.columns[name], self.places[row])
        return found

    def blob(self, name: str, row: int) -> bytes:
        """One value of a column of bytes."""
        found: bytes = value_of(self.columns[name], self.places[row])
        return found

    def _words(self, name: str) -> Words:
        column = self.columns[name]
        if not isinstance(column, Words):
            raise TypeError(f"{name} is no column of words")
        return column


class ById(Mapping[str, VideoRow]):
    """Rows by their id; nothing is made before it is asked for."""

    def __init__(self, rows: Rows) -> None:
        """`rows`: in the order of ids, as those of catalogs and views are."""
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[str]:
        return (str(name, "utf-8") for name in self._rows.encoded("id"))

    def __getitem__(self, video: str) -> VideoRow:
        return self._rows[self.place(video)]

    def place(self, video: str) -> int:
        """The place of a video among the rows. Raises `KeyError`."""
        rows = self._rows
        place = bisect_left(range(len(rows)), video, key=lambda row: rows.text("id", row))
        if place == len(rows) or rows.text("id", place) != video:
            raise KeyError(video)
        return place


class CatalogView:
    """The usable videos of one split, indexed 0..n-1."""

    def __init__(self, rows: Rows, classes: tuple[str, ...], class_id: NDArray[np.int32]) -> None:
        self.rows = rows
        """By id."""
        self.classes = classes
        """All class names of the catalog, sorted; a class id is a position in it, the same for every split."""
        self.class_id = class_id
        """(n,) class of each video."""
        self.in_classes = np.argsort(narrow(class_id), kind="stable").astype(np.int32)
        """(n,) the videos, class by class."""
        self.class_begin = np.searchsorted(class_id[self.in_classes], np.arange(len(classes) + 1)).astype(np.int64)
        """(classes + 1,) where each class begins in `in_classes`, and the end of the last one."""
        self._starts: tuple[int, NDArray[Any]] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def by_class(self) -> tuple[NDArray[np.int32], ...]:
        """For each class id, the videos in it (may be empty)."""
        return tuple(np.split(self.in_classes, self.class_begin[1:-1])) if self.classes else ()

    @cached_property
    def file(self) -> NDArray[Any] | None:
        """(n,) a number that is equal for records of one file, which one work unit may have; None: these are videos, of
        which each has units of its own."""
        return self.rows.numbers("file") if "file" in self.rows.columns else None

    @cached_property
    def first_frame(self) -> NDArray[Any]:
        """(n,) first frame of each video's segment."""
        return _frames(self.rows.numbers("first_frame"))

    @cached_property
    def length(self) -> NDArray[Any]:
        """(n,) frames of each video's segment, at least 1."""
        first, last = self.rows.numbers("first_frame"), self.rows.numbers("last_frame")
        return _frames(last.astype(np.int64) - first + 1)

    @cached_property
    def sizes(self) -> dict[tuple[int, int], int]:
        """Height and width of the videos -> the first video of that size."""
        return self._sizes(len(self))

    @property
    def a_size(self) -> dict[tuple[int, int], int]:
        """The same of the first video alone."""
        return self._sizes(1)

    def _sizes(self, videos: int) -> dict[tuple[int, int], int]:
        rows = self.rows[:videos]
        sizes = rows.numbers("height").astype(np.int64) << 32 | rows.numbers("width")
        found, first = np.unique(sizes, return_index=True)
        pairs = ((size >> 32, size & 0xFFFFFFFF) for size in found.tolist())
        return dict(zip(pairs, first.tolist(), strict=True))

    def keyframe_before(self, videos: NDArray[Any], frames: NDArray[Any]) -> NDArray[np.int64]:
        """For each video and a frame of it, where the last keyframe at or before the frame stands in `keyframes`; -1
        where decoding has to begin at the file's start."""
        numbers, edges = self.keyframes("keyframe_frame"), self._lists("keyframe_frame").edges
        rows = self.rows.places[videos]
        begins = edges[rows].astype(np.int64)
        low, high = begins - 1, edges[1:][rows].astype(np.int64)
        # A binary search in all lists at once: `low` is the answer or before it, `high` behind it.
        for _ in range(int((high - low).max(initial=0)).bit_length()):
            middle = (low + high) // 2
            inside = middle > low
            here = inside.copy()
            here[inside] = numbers[middle[inside]] <= frames[inside]
            low, high = np.where(here, middle, low), np.where(inside & ~here, middle, high)
        found: NDArray[np.int64] = np.where((low >= begins) & self.rows.where(videos).numbers("seekable"), low, -1)
        return found

    @property
    def group_frames(self) -> float:
        """Frames of a group of pictures, on average; a file without usable keyframes is one group."""
        edges, rows = self._lists("keyframe_frame").edges.astype(np.int64), self.rows.places
        groups = np.where(self.rows.numbers("seekable"), np.maximum(edges[1:][rows] - edges[rows], 1), 1)
        return float(self.rows.numbers("frame_count").sum(dtype=np.int64) / groups.sum())

    @property
    def keyframe_distance(self) -> int:
        """Frames from a keyframe to the next one, where nearly all have the same distance; otherwise 0.

        Of the first videos of the catalog, whatever is in the view.
        """
        column = self._lists("keyframe_frame")
        edges = column.edges[: _SAMPLED + 1].astype(np.int64)
        frames = np.diff(column.numbers[: edges[-1]].astype(np.int64))
        frames = np.delete(frames, edges[(edges > 0) & (edges < edges[-1])] - 1)  # from one video to the next
        distances, counts = np.unique(frames, return_counts=True)
        if not len(frames) or counts.max() < _NEARLY_ALL * len(frames):
            return 0
        return int(distances[counts.argmax()])

    def keyframes(self, name: str) -> NDArray[Any]:
        """One of the columns of keyframes, those of all videos end to end."""
        return self._lists(name).numbers

    def _lists(self, name: str) -> Lists:
        column = self.rows.columns[name]
        if not isinstance(column, Lists):
            raise TypeError(f"{name} is no column of lists")
        return column

    def starts(self, span: int) -> NDArray[Any]:
        """(n,) how many places a clip over so many frames can start at; one in a video that is shorter, whose last
        frame is repeated."""
        if self._starts is None or self._starts[0] != span:
            most = min(span, LARGEST_COUNT)
            self._starts = span, np.maximum(self.length, most) - (most - 1)
        return self._starts[1]


class Catalog:
    """All rows, those that cannot be used too, by id.

    For example:

        catalog = essp.open_catalog("catalog.parquet")
        len(catalog.view("train")), catalog.classes, [row.id for row in catalog.rows if row.error]
    """

    def __init__(self, rows: Iterable[VideoRow] = (), source: str = "") -> None:
        """`source`: what it was built from."""
        values = list(rows)
        values.sort(key=lambda row: row.id)
        self._take(_columns_of(values), len(values), source)

    @classmethod
    def of_columns(cls, columns: Mapping[str, Column], source: str) -> Catalog:
        """A catalog of these columns, whose rows may be in any order."""
        catalog = cls.__new__(cls)
        ids = columns["id"]
        places = np.arange(len(ids), dtype=np.int32)
        if not _rises(ids):
            places = pc.array_sort_indices(ids.arrow()).to_numpy()  # type: ignore[union-attr]
            columns = {name: taken(column, places) for name, column in columns.items()}
        catalog._take(columns, len(places), source)
        return catalog

    def _take(self, columns: Mapping[str, Column], count: int, source: str) -> None:
        self.rows = Rows(columns, np.arange(count, dtype=np.int32))
        self.source = source
        """What it was built from."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Catalog):
            return NotImplemented
        return self.source == other.source and self.rows == other.rows

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Catalog({len(self.rows)} rows of {self.source or 'nothing'!r})"

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Class names, sorted; also those of rows that cannot be used, so that a repaired file renumbers nothing.

        Usable videos without a label are of class `""`.
        """
        return self._classes[0]

    @cached_property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits, sorted."""
        return self.rows.names("split")

    def with_splits(self, splits: Sequence[str]) -> Catalog:
        """The same rows, each in another split. `splits`: one for each row, by id."""
        words = pa.array(splits, pa.string()).dictionary_encode()
        column = made_of(pa.string(), [words], words=True).column
        return Catalog.of_columns({**self.rows.columns, "split": column}, self.source)

    def view(self, split: str | None) -> CatalogView:
        """The usable videos of a split (None: of all), by id. Empty for a split that is not there."""
        rows = self.rows
        return self._view(rows.usable if split is None else rows.usable & rows.has("split", split))

    def view_of(self, rows: Rows) -> CatalogView:
        """The usable ones of these rows of the catalog, by id, under the class ids of the whole catalog."""
        chosen = np.zeros(len(self.rows), np.bool_)
        chosen[rows.places] = True
        return self._view(chosen & self.rows.usable)

    @cached_property
    def _classes(self) -> tuple[tuple[str, ...], NDArray[np.int32]]:
        """Class names, and the class id of each code."""
        codes, names = self.rows.words("class_name")
        used = {code: names.value(code) for code in self.rows.distinct("class_name").tolist()}
        unlabelled = [code for code, name in used.items() if not name]
        if unlabelled and not (self.rows.usable & (codes == unlabelled[0])).any():
            del used[unlabelled[0]]
        ordered = sorted(used, key=used.__getitem__)
        number = np.full(len(names), -1, np.int32)
        number[ordered] = np.arange(len(ordered))
        return tuple(used[code] for code in ordered), number

    def _view(self, chosen: NDArray[np.bool_]) -> CatalogView:
        rows = self.rows.where(chosen)
        names, number = self._classes
        codes, _ = rows.words("class_name")
        return CatalogView(rows, names, number[codes])


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
    "extra": _STRING,
    "targets": pa.binary(),
    "error": _STRING,
}
_REMEDY = "make it again with `essp catalog build`"
_REQUIRED = ("id", "uri", "class_name", "split", "size_bytes", "etag", "error")


WORDS = frozenset({"class_name", "split", "container", "codec", "pixel_format", "group", "error"})
"""The columns of `Words`."""
SCHEMA = pa.schema(list(_COLUMNS.items()), metadata={_VERSION_KEY: VERSION})
"""The file's columns."""
_KEYFRAMES = ("keyframe_pts", "keyframe_frame", "keyframe_offset")
_DIFFERENT = ("id", "uri", "etag", "size_bytes", "timestamps", "targets")
_IN_TURN = ("group", *(name for name in _COLUMNS if name != "group"))
"""The order in which columns are read: first what takes most memory while it is read."""
_RECURRING = tuple(
    f"{name}.list.element" if name in _KEYFRAMES else name for name in _COLUMNS if name not in _DIFFERENT
)
"""The columns in which the same values recur, by their paths in a file."""
PLANNED = (
    *("width", "height", "fps", "frame_count", "first_frame", "last_frame", "seekable", "lookahead", "group"),
    *_KEYFRAMES,
)
"""The columns that plans and messages need, beside those that name a video."""
HANDED = ("extra", "targets")
"""The columns that loops of the user's own are handed, beside those."""


def write_catalog(store: ObjectStore, key: str, catalog: Catalog) -> None:
    """Store a catalog, rows by id; what lay at `key` is replaced whole. Equal rows give equal bytes.

    Raises `ConfigError` for a value that would be refused when it is read.
    """
    _check(store.uri(key), Columns(dict(catalog.rows.columns), {}, {}), "it was not written")
    store.put(key, pack_table(to_table(catalog)))


def pack_table(table: Any) -> bytes:
    """The file of a catalog, from its `pyarrow.Table`, unchecked."""
    return tables.packed(table.schema, [table], _RECURRING)


def row_problems(catalog: Catalog) -> Iterator[Problem]:
    """The values that no catalog can have; `Problem.row` counts by id."""
    return problems(Columns(dict(catalog.rows.columns), {}, {}))


def to_table(catalog: Catalog) -> Any:
    """The `pyarrow.Table` of a catalog, rows by id, unchecked."""
    columns = catalog.rows.columns
    return pa.table(
        [arrow_of(columns[name], kind) for name, kind in _COLUMNS.items()],
        schema=SCHEMA.with_metadata({_VERSION_KEY: VERSION, _SOURCE_KEY: catalog.source}),
    )


def read_catalog(store: ObjectStore, key: str, columns: Collection[str] | None = None) -> Catalog:
    """The catalog at `key`; with `columns`, other fields than these (and what names a video) keep their defaults.

    Raises `NotFound`, `PermanentError` for what is not a catalog, `ConfigError` for one of another version, or with a
    value that cannot be in any of its columns, by its row and column.
    """
    uri = store.uri(key)
    wanted = frozenset(_COLUMNS)
    if columns is not None:
        named = {*_REQUIRED, *columns}
        wanted = frozenset(name for name in _COLUMNS if name.removesuffix("_num").removesuffix("_den") in named)
    read, source = _read(store, key, uri, wanted)
    _check(uri, read, _REMEDY)
    return Catalog.of_columns({name: read.by_name[name] for name in _COLUMNS if name in wanted}, source)


def _read(store: ObjectStore, key: str, uri: str, wanted: Collection[str]) -> tuple[Columns, str]:
    """The columns that are wanted, and those that have to be compared with others or have something wrong."""
    path = store.local_path(key)
    read = Columns({}, {}, {})
    try:
        data = None if path is not None else store.get(key)
        with _opened(path, data) as file:
            metadata = file.schema_arrow.metadata or {}
            _check_version(uri, metadata)
            if found := list(type_problems(file.schema_arrow, _COLUMNS)):
                raise ConfigError(f"{uri}: {'; '.join(found)}; {_REMEDY}")
        with _opened(path, data, WORDS) as file:
            for name in _IN_TURN:
                _read_column(file, name, name in wanted, read)
    except FileNotFoundError as error:
        raise NotFound(f"{uri}: no such catalog") from error
    except tables.UNREADABLE as error:
        raise PermanentError(f"{uri} cannot be read as a catalog: {tables.reason(error)}") from error
    return read, metadata.get(_SOURCE_KEY, b"").decode("utf-8", "replace")


def _read_column(file: Any, name: str, wanted: bool, read: Columns) -> None:
    """Add a column to those that were read. What is read of a file at a time is a part of one column."""
    ids = read.by_name.get("id")
    beside = ids if name == "uri" and isinstance(ids, Texts) and ids.arrow().type == pa.string() else None
    column, empty, holes = made_of(_COLUMNS[name], _pieces(file, name), name in WORDS, beside)
    if len(column) != file.metadata.num_rows:  # only pages have checksums, and not what says which pages there are
        raise ValueError(f"column {name} has {len(column)} rows, and the table {file.metadata.num_rows}")
    if wanted or len(empty) or len(holes) or not sound_alone(name, column):
        read.by_name[name], read.empty[name], read.holes[name] = column, empty, holes
        if name in _KEYFRAMES:
            _share_edges(read.by_name)


def _opened(path: str | None, data: bytes | None, words: Collection[str] = ()) -> Any:
    return tables.opened(path if path is not None else pa.BufferReader(data), words)


def _pieces(file: Any, name: str) -> Iterator[Any]:
    if name in WORDS or file.metadata.num_rows <= _PIECE:
        column = tables.read(file, [name]).column(name)
        column.validate(full=True)
        yield from column.chunks
    else:
        for batch in tables.batches(file, [name], _PIECE):
            batch.validate(full=True)
            yield batch.column(0)
    pa.default_memory_pool().release_unused()


def _share_edges(made: dict[str, Column]) -> None:
    """Lists of equal lengths need to say only once where each begins."""
    lists = [(name, column) for name, column in made.items() if isinstance(column, Lists)]
    (_, first), (name, last) = lists[0], lists[-1]
    if np.array_equal(first.edges, last.edges):
        made[name] = Lists(first.edges, last.numbers)


def _columns_of(rows: Sequence[VideoRow]) -> dict[str, Column]:
    values: dict[str, list[Any]] = {f.name: [getattr(row, f.name) for row in rows] for f in fields(VideoRow)}
    values["time_base_num"] = [row.time_base[0] for row in rows]
    values["time_base_den"] = [row.time_base[1] for row in rows]
    arrays = {name: pa.array(values[name], kind) for name, kind in _COLUMNS.items()}
    return {
        name: made_of(_COLUMNS[name], [array.dictionary_encode() if name in WORDS else array], name in WORDS).column
        for name, array in arrays.items()
    }


def _row(values: dict[str, Any]) -> VideoRow:
    if "time_base_num" in values:
        values["time_base"] = values.pop("time_base_num"), values.pop("time_base_den")
    return VideoRow(**values)


def _rises(ids: Column) -> bool:
    """Whether each id is greater than the one before it."""
    array = ids.arrow()  # type: ignore[union-attr]
    return bool(pc.all(pc.less(array[:-1], array[1:]), min_count=0).as_py())


def _frames(numbers: NDArray[Any]) -> NDArray[Any]:
    """Numbers of frames, which 32 bits hold in any catalog that was checked."""
    found = narrow(numbers)
    return found if found.dtype == np.int64 else found.astype(np.int32)


def _check(uri: str, columns: Columns, remedy: str) -> None:
    for problem in problems(columns):
        video = value_of(columns.by_name["id"], problem.row)
        where = f"row {problem.row + 1} ({video!r:.100}), column {problem.column}"
        raise ConfigError(f"{uri}: {where}: {problem.what}; {remedy}")


def _check_version(uri: str, metadata: Mapping[bytes, bytes]) -> None:
    version = metadata.get(_VERSION_KEY, b"").decode("utf-8", "replace")
    if not version:
        raise PermanentError(f"{uri} is a Parquet file, but not a catalog")
    if version != VERSION:
        raise ConfigError(f"{uri} is a catalog of version {version}, this is ESSP with version {VERSION}: {_REMEDY}")
