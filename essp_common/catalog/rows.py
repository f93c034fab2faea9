"""The rows of a catalog: one per video, in memory as columns.

A `VideoRow` is created from the columns only on access: nothing is done row by row, so a million videos are available
in seconds.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from essp_common.catalog.columns import (
    Blobs,
    Column,
    Lists,
    Numbers,
    Shared,
    Texts,
    Words,
    made_of,
    value_of,
    values_of,
)
from essp_common.catalog.schema import COLUMNS, REMEDY, SHARED, WORDS
from essp_common.errors import ConfigError

_AT_ONCE = 4096
"""Rows that are created at a time during iteration."""


@dataclass(frozen=True, slots=True)
class VideoRow:
    """One video, or one labelled segment of one (then several rows share a `uri`).

    id: unique and stable: the path below the source, plus `#start-end` for a segment.
    width: as displayed, that is, after `rotation`; includes edges that the container asks players to crop (`notes`).
    rotation: degrees clockwise by which the decoded picture is rotated for display: 0, 90, 180 or 270. If the file
        mirrors it, it is first flipped top to bottom.
    fps: frames per second; for a variable rate, the mean over `duration_s`.
    duration_s: from the first frame to the end of the last one.
    start_s: when the first frame appears, from the beginning of the file.
    timestamps: when each frame appears, for a variable rate (`timing.py`); empty: follows from `fps`, to within a tick.
    frame_count: frames of the whole file in display order, as in a sequential decode.
    first_frame: the segment's first frame (0 for a whole video).
    last_frame: the segment's last frame, inclusive.
    seekable: a decode that starts at any of `keyframe_pts` gives exactly the frames of a sequential decode.
    lookahead: every packet is a frame, timestamps are in display order, and all frames shown before a frame come within
        this many packets from the frame's own. 0: timestamps do not identify frames.
    keyframe_frame: display-order index of each keyframe.
    keyframe_offset: byte offset of each keyframe's packet in the file (-1: the container does not say).
    group: what it shares with other videos, such as the person or the recording; carving a split keeps a group on one
        side. Empty: it shares nothing.
    event: what the rows of one event have in common: several cameras, or two eyes, that show it at the same time.
        Empty: no other row shows it.
    view: which of the views of its event this is, such as the name of the camera; once in each event. Empty: the only
        one.
    origin_s: when the event begins, in seconds of the file's clock (`start_s`): at the beginning of a whole file, or
        where a segment was said to begin, which may lie between two frames. Frames of two views show the same moment if
        they appear at the same time after it.
    extra: further columns of the source, as a JSON object; empty if there are none. `meta` parses it.
    targets: what can be learned in addition to the class (`targets.py`): several labels, spans, a value for each frame;
        empty if there is nothing. `essp_common.catalog.targets.unpack` parses it.
    notes: notes about the file for users, as lines of `kind: what` (`essp_engine/video/notes.py`): several tracks,
        interlacing, a changing size, edges that players crop, a file that is used in part; empty if there are none.
    sums: checksums of the file's blocks (`essp_common/objects/block_sums.py`), with which decoders compare what they
        read; for a local file, of its beginning; empty if unknown.
    unproven: what a quick build took from the file's index and did not verify (`unproven.py`): some of `packets`,
        `order`, `pixels`, `damage` and `checksums`, separated by blanks; empty: nothing. Decoders verify it as they
        read.
    error: why the video is unusable; null if it is usable.

    For example:

        row = essp.open_catalog("catalog.parquet").rows[0]
        row.id, row.class_name, row.last_frame - row.first_frame + 1, row.error
    """

    id: str
    uri: str
    class_name: str
    split: str
    size_bytes: int
    etag: str
    container: str = ""
    codec: str = ""
    pixel_format: str = ""
    width: int = 0
    height: int = 0
    rotation: int = 0
    fps: float = 0.0
    duration_s: float = 0.0
    start_s: float = 0.0
    timestamps: bytes = b""
    time_base: tuple[int, int] = (0, 1)
    frame_count: int = 0
    first_frame: int = 0
    last_frame: int = 0
    seekable: bool = False
    lookahead: int = 0
    keyframe_pts: tuple[int, ...] = ()
    keyframe_frame: tuple[int, ...] = ()
    keyframe_offset: tuple[int, ...] = ()
    group: str = ""
    event: str = ""
    view: str = ""
    origin_s: float = 0.0
    extra: str = ""
    targets: bytes = b""
    notes: str = ""
    sums: bytes = b""
    unproven: str = ""
    error: str | None = None

    @property
    def declared(self) -> tuple[int, int] | None:
        """Width and height that only the file's index declares. The reader must verify them, together with the order of
        its frames. None: they are proven."""
        return (self.width, self.height) if self.unproven else None

    @property
    def meta(self) -> dict[str, Any]:
        """Further columns of the source, by name. Raises `ConfigError` if they are not a JSON object."""
        return meta_of(self.id, self.extra)


def extra_of(meta: Mapping[str, Any]) -> str:
    """Further columns as `VideoRow.extra`: UTF-8, except for lone surrogates, for which JSON has an escape."""
    if not meta:
        return ""
    return json.dumps(meta, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace").decode()


def meta_of(video: str, extra: str) -> dict[str, Any]:
    """The contents of `VideoRow.extra`. Raises `ConfigError` if it is not a JSON object."""
    try:
        found = json.loads(extra or "{}")
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{video}: column extra is not JSON ({error}); {REMEDY}", code="unreadable") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{video}: column extra is not a JSON object; {REMEDY}", code="unreadable")
    return found


class Rows(Sequence[VideoRow]):
    """Some rows of a catalog. Each is created on access; whole columns cost no more than a few rows."""

    def __init__(self, columns: Mapping[str, Column], places: NDArray[Any]) -> None:
        """`places`: the indices of these rows in the columns, which are the fields of `VideoRow`; records also have
        `record` and `file` (`essp_common/records/rows.py`)."""
        self.columns = columns
        self.places = places

    @classmethod
    def of(cls, rows: Iterable[VideoRow]) -> Rows:
        """These rows as columns, sorted by id; a `Rows` is returned unchanged."""
        return rows if isinstance(rows, Rows) else cls.by_id(rows)

    @classmethod
    def by_id(cls, rows: Iterable[VideoRow]) -> Rows:
        """These rows as new columns, sorted by id."""
        values = sorted(rows, key=lambda row: row.id)
        return cls(_columns_of(values), np.arange(len(values), dtype=np.int32))

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
        return _row({name: value_of(column, at) for name, column in self.columns.items() if name in COLUMNS})

    def __iter__(self) -> Iterator[VideoRow]:
        columns = {name: column for name, column in self.columns.items() if name in COLUMNS}
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
        """Some of the rows: indices among them, or a boolean for each."""
        return Rows(self.columns, self.places[chosen])

    def numbers(self, name: str) -> Numbers:
        """The values of a column of numbers."""
        column = self.columns[name]
        if not isinstance(column, np.ndarray):
            raise TypeError(f"{name} is not a column of numbers")
        values: Numbers = column[self.places]
        return values

    def number(self, name: str, row: int) -> Any:
        """One number of one row."""
        return value_of(self.columns[name], self.places[row])

    def words(self, name: str) -> tuple[Numbers, Texts]:
        """The code of each row in one of `WORDS`, and the words for the codes."""
        column = self._words(name)
        return column.codes[self.places], column.words

    def distinct(self, name: str) -> NDArray[np.int64]:
        """The codes of one of `WORDS` that occur in these rows."""
        return self._words(name).used(self.places)

    def lengths(self, name: str) -> NDArray[Any]:
        """The length in bytes of each value of a column of texts or bytes."""
        column = self.columns[name]
        if not isinstance(column, Blobs | Shared):
            raise TypeError(f"{name} is not a column of texts")
        found: NDArray[Any] = column.lengths[self.places]
        return found

    def lists(self, name: str) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """For a column of lists: the length of each row's list; for each number, its row; the numbers."""
        column = self.columns[name]
        if not isinstance(column, Lists):
            raise TypeError(f"{name} is not a column of lists")
        counts = np.diff(column.edges)[self.places]
        owners = np.repeat(np.arange(len(self), dtype=np.int32), counts)
        begins = column.edges[self.places] - (np.cumsum(counts) - counts)
        return counts, owners, column.numbers[np.arange(len(owners)) + begins[owners]]

    def names(self, name: str) -> tuple[str, ...]:
        """The words of one of `WORDS` that occur in these rows, sorted."""
        words = self._words(name).words
        return tuple(sorted(words.value(code) for code in self.distinct(name).tolist()))

    def has(self, name: str, word: str) -> NDArray[np.bool_]:
        """Which of the rows have this word in one of `WORDS`."""
        column = self._words(name)
        found: NDArray[np.bool_] = column.codes[self.places] == column.code(word)
        return found

    @property
    def groups(self) -> int:
        """The number of groups in the rows."""
        column = self._words("group")
        return int(np.count_nonzero(column.used(self.places) != column.code("")))

    @property
    def usable(self) -> NDArray[np.bool_]:
        """Which of the videos are usable."""
        found: NDArray[np.bool_] = self._words("error").codes[self.places] < 0
        return found

    def alike(self, name: str) -> NDArray[Any]:
        """For each row, a number below the number of rows, equal where the texts are equal."""
        return self._texts(name).alike(self.places)

    def encoded(self, name: str) -> Iterator[memoryview | bytes]:
        """The texts of a column, as UTF-8."""
        return self._texts(name).each(self.places)

    def begin(self, name: str, text: str) -> bool:
        """Whether any text of a column begins with this one, in any row of the catalog."""
        column = self.columns[name]
        if not isinstance(column, Texts):
            raise TypeError(f"{name} is not a column of texts")
        return column.begin(text)

    def text(self, name: str, row: int) -> str:
        """One text of one row."""
        found: str = value_of(self.columns[name], self.places[row])
        return found

    def further_names(self) -> tuple[str, ...]:
        """The names of further columns of the source that occur in any of these rows, sorted."""
        firsts: dict[str, int] = {}
        for row in np.flatnonzero(self.lengths("extra")).tolist():
            firsts.setdefault(self.text("extra", row), row)
        return tuple(sorted({name for text, row in firsts.items() for name in meta_of(self.text("id", row), text)}))

    def blob(self, name: str, row: int) -> bytes:
        """One value of a column of bytes."""
        found: bytes = value_of(self.columns[name], self.places[row])
        return found

    def _texts(self, name: str) -> Blobs:
        column = self.columns[name]
        if not isinstance(column, Blobs):
            raise TypeError(f"{name} is not a column of texts")
        return column

    def _words(self, name: str) -> Words:
        column = self.columns[name]
        if not isinstance(column, Words):
            raise TypeError(f"{name} is not a column of words")
        return column


class ById(Mapping[str, VideoRow]):
    """Rows by their id, created on access."""

    def __init__(self, rows: Rows) -> None:
        """`rows`: sorted by id, as in catalogs and views."""
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[str]:
        return (str(name, "utf-8") for name in self._rows.encoded("id"))

    def __getitem__(self, video: str) -> VideoRow:
        return self._rows[self.place(video)]

    def place(self, video: str) -> int:
        """The index of a video among the rows. Raises `KeyError`."""
        rows = self._rows
        place = bisect_left(range(len(rows)), video, key=lambda row: rows.text("id", row))
        if place == len(rows) or rows.text("id", place) != video:
            raise KeyError(video)
        return place


class RowPieces:
    """Rows that come one after the other, in any order. They are held as columns, which take a tenth of the memory."""

    def __init__(self) -> None:
        self._rows: list[VideoRow] = []
        """The latest ones, which are not in the columns yet."""
        self._arrays: dict[str, list[Any]] = {name: [] for name in COLUMNS}

    def add(self, row: VideoRow) -> None:
        """Add a row."""
        self._rows.append(row)
        if len(self._rows) >= _AT_ONCE:
            self._store()

    def columns(self) -> dict[str, Column]:
        """All rows as columns. Nothing is left here."""
        if self._rows or not self._arrays["id"]:
            self._store()
        return {name: _column(name, self._arrays.pop(name)) for name in COLUMNS}

    def _store(self) -> None:
        for name, array in _arrays_of(self._rows).items():
            self._arrays[name].append(array)
        self._rows = []


def _columns_of(rows: Sequence[VideoRow]) -> dict[str, Column]:
    return {name: _column(name, [array]) for name, array in _arrays_of(rows).items()}


def _arrays_of(rows: Sequence[VideoRow]) -> dict[str, Any]:
    """The pyarrow array of each column."""
    values: dict[str, list[Any]] = {f.name: [getattr(row, f.name) for row in rows] for f in fields(VideoRow)}
    values["time_base_num"] = [row.time_base[0] for row in rows]
    values["time_base_den"] = [row.time_base[1] for row in rows]
    arrays = {name: pa.array(values[name], kind) for name, kind in COLUMNS.items()}
    return {name: array.dictionary_encode() if name in WORDS else array for name, array in arrays.items()}


def _column(name: str, arrays: Sequence[Any]) -> Column:
    return made_of(COLUMNS[name], arrays, name in WORDS, shared=name in SHARED).column


def _row(values: dict[str, Any]) -> VideoRow:
    if "time_base_num" in values:
        values["time_base"] = values.pop("time_base_num"), values.pop("time_base_den")
    return VideoRow(**values)
