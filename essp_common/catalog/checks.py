"""Checks the rows of a catalog when it is read or written: values that a plan or a message cannot hold are refused,
with row and column.

A catalog is an ordinary file, and may come from another program or a damaged disk. Its numbers are used in plans and
messages, so wrong ones must be found before a job is announced. The checks run on whole columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from essp_common.catalog.columns import Column, Lists, Numbers, Texts, Words, value_of

LONGEST_TEXT = 4096
"""Maximum bytes of an id or a URI."""
LONGEST_NAME = 512
"""Maximum bytes of a class, a split or a group."""
LONGEST_EXTRA = 2**20
"""Maximum bytes of a row's further columns."""
LONGEST_SUMS = 2**19
"""Maximum bytes of the checksums of a file. The largest file needs half of it."""
LARGEST_COUNT = 2**31 - 1
"""Maximum frames of a file; messages use 32 bits."""
_LARGEST_FILE = 2**50
_LARGEST_SIDE = 2**16
_LARGEST_RATE = 1e6

_Bad = NDArray[np.bool_]


class Columns(NamedTuple):
    """The columns of a catalog, and their missing values. Columns that are `sound_alone` may be omitted."""

    by_name: dict[str, Column]
    empty: dict[str, NDArray[np.int64]]
    """Column -> the rows without a value."""
    holes: dict[str, NDArray[np.int64]]
    """Column of lists -> the rows in which an entry has no value."""

    def numbers(self, name: str) -> Numbers:
        """A column of numbers."""
        column = self.by_name[name]
        if not isinstance(column, np.ndarray):
            raise TypeError(f"{name} is not a column of numbers")
        return column

    def lengths(self, name: str) -> NDArray[Any]:
        """The length in bytes of each text of a column."""
        column = self.by_name[name]
        if isinstance(column, np.ndarray | Lists):
            raise TypeError(f"{name} is not a column of texts")
        return column.lengths


class Problem(NamedTuple):
    """A value that is not allowed in a catalog."""

    row: int
    column: str
    what: str


def type_problems(schema: pa.Schema, expected: Mapping[str, pa.DataType]) -> Iterator[str]:
    """Descriptions of columns that are missing or have another type."""
    for name, kind in expected.items():
        place = schema.get_field_index(name)
        if place < 0:
            yield f"column {name} is missing, or there twice" if name in schema.names else f"column {name} is missing"
        elif schema.field(place).type != kind:
            yield f"column {name} holds {schema.field(place).type}, not {kind}"


def sound_alone(name: str, column: Column) -> bool:
    """Whether a column that needs no comparison with others contains only valid values; False for all other columns."""
    if name in _COMPARED:
        return False
    if isinstance(column, np.ndarray):
        return name not in _NUMBERS or bool(_NUMBERS[name][0](column).all())
    return not isinstance(column, Lists) and not (column.lengths > _TEXTS.get(name, LARGEST_COUNT)).any()


def problems(columns: Columns, optional: str = "error") -> Iterator[Problem]:
    """The invalid values, column by column. Only `optional` may contain nulls."""
    empty = {name: rows for name, rows in columns.empty.items() if len(rows) and name != optional}
    for name, rows in empty.items():
        yield from (Problem(row, name, "it is empty") for row in rows.tolist())
    if empty:  # the checks below need every value
        return
    words = columns.by_name[optional]
    usable = words.codes < 0 if isinstance(words, Words) else np.ones(0, np.bool_)
    for name, what, bad in _bad(columns, usable):
        for row in np.flatnonzero(bad).tolist():
            yield Problem(row, name, f"{_shown(value_of(columns.by_name[name], row))} {what}")


def _bad(columns: Columns, usable: _Bad) -> Iterator[tuple[str, str, _Bad]]:
    for name, longest in _TEXTS.items():
        if name in columns.by_name:
            yield name, f"is longer than {longest} bytes", columns.lengths(name) > longest
    yield "id", "is not an id", columns.lengths("id") == 0
    yield "id", "is there twice", _repeated(columns.by_name["id"])
    yield "uri", "is not a URI", usable & (columns.lengths("uri") == 0)
    for name, (right, what) in _NUMBERS.items():
        if name in columns.by_name:
            yield name, what, ~right(columns.numbers(name))
    count, first, last = (columns.numbers(name) for name in ("frame_count", "first_frame", "last_frame"))
    for name in ("width", "height"):
        yield name, "is not the size of a picture", usable & (count > 0) & (columns.numbers(name) == 0)
    yield "first_frame", "is not a frame of the video", usable & ((first < 0) | (first > last))
    yield "last_frame", "is not a frame of the video", usable & (last >= np.maximum(count, 1))
    yield from _bad_views(columns)
    yield from _bad_keyframes(columns, usable)


def _bad_views(columns: Columns) -> Iterator[tuple[str, str, _Bad]]:
    events, views = columns.by_name["event"], columns.by_name["view"]
    if not isinstance(events, Texts) or not isinstance(views, Words):
        raise TypeError("event is a column of texts, and view one of words")
    named = views.lengths > 0
    yield "view", "is a view of no event", named & (events.lengths == 0)
    yield "event", "has a row without a view", ~named & (events.lengths > 0)
    shown = np.flatnonzero(named)
    keys = events.alike(shown).astype(np.int64) * (len(views.words) + 1) + views.codes[shown]
    _, first = np.unique(keys, return_index=True)
    again = np.ones(len(shown), np.bool_)
    again[first] = False
    yield "view", "is there twice in its event", _rows(len(named), shown[again])


def _bad_keyframes(columns: Columns, usable: _Bad) -> Iterator[tuple[str, str, _Bad]]:
    lists = {name: column for name in _KEYFRAMES if isinstance(column := columns.by_name[name], Lists)}
    frames = lists["keyframe_frame"]
    for name, column in lists.items():
        numbers, edges = column.numbers, column.edges
        if len(columns.holes.get(name, ())):
            yield name, "holds an empty entry", _rows(len(column), columns.holes[name])
            return
        if name != "keyframe_offset":
            falls = numbers[1:] <= numbers[:-1]
            begins = edges[1:-1]
            # the first entry of a list has no predecessor
            falls[begins[(begins > 0) & (begins < len(numbers))] - 1] = False
            yield name, "does not rise", _rows(len(column), column.owners(1 + np.flatnonzero(falls)))
        if name == "keyframe_frame":
            yield name, "begins before the video", _rows(len(column), column.owners(np.flatnonzero(numbers < 0)))
            held = np.flatnonzero(np.diff(edges))
            beyond = numbers[edges[1:][held] - 1] >= np.maximum(columns.numbers("frame_count")[held], 1)
            yield name, "goes beyond the video", usable & _rows(len(column), held[beyond])
        if name == "keyframe_offset":
            outside = (numbers < -1) | (numbers >= _LARGEST_FILE)
            yield name, "is not a place in the file", _rows(len(column), column.owners(np.flatnonzero(outside)))
        if edges is not frames.edges:
            yield name, "is not as long as keyframe_frame", np.diff(edges) != np.diff(frames.edges)


def _between(low: float, high: float) -> Callable[[NDArray[Any]], _Bad]:
    return lambda values: (values >= low) & (values <= high)  # false for NaN


_TEXTS = {
    **dict.fromkeys(("id", "uri", "etag", "event"), LONGEST_TEXT),
    **dict.fromkeys(("notes", "error"), LONGEST_TEXT * 16),
    "extra": LONGEST_EXTRA,
    "sums": LONGEST_SUMS,
    **dict.fromkeys(("class_name", "split", "group", "view", "container", "codec", "pixel_format"), LONGEST_NAME),
}
_NUMBERS: dict[str, tuple[Callable[[NDArray[Any]], _Bad], str]] = {
    "size_bytes": (_between(0, _LARGEST_FILE), "is not the size of a file"),
    "width": (_between(0, _LARGEST_SIDE), "is not a width"),
    "height": (_between(0, _LARGEST_SIDE), "is not a height"),
    "rotation": (lambda values: np.isin(values, (0, 90, 180, 270)), "is not 0, 90, 180 or 270"),
    "fps": (_between(0, _LARGEST_RATE), "is not a frame rate"),
    "duration_s": (_between(0, 1e9), "is not a duration"),
    "start_s": (_between(-1e9, 1e9), "is not a time"),
    "origin_s": (_between(-1e9, 1e9), "is not a time"),
    "time_base_num": (_between(0, LARGEST_COUNT), "is not a time base"),
    "time_base_den": (_between(1, LARGEST_COUNT), "is not a time base"),
    "frame_count": (_between(0, LARGEST_COUNT), "is not a number of frames"),
    "lookahead": (_between(0, 1024), "is not a number of packets"),
}
_COMPARED = frozenset(
    {"id", "uri", "width", "height", "frame_count", "first_frame", "last_frame", "event", "view", "error"}
)
_KEYFRAMES = ("keyframe_frame", "keyframe_pts", "keyframe_offset")


def _repeated(ids: Column) -> _Bad:
    """Which ids repeat the id of an earlier row."""
    array = ids.arrow()  # type: ignore[union-attr]
    bad = np.zeros(len(array), np.bool_)
    if pc.all(pc.less(array[:-1], array[1:]), min_count=0).as_py():  # the order in which catalogs are written
        return bad
    order = pc.array_sort_indices(array)
    ordered = array.take(order)
    equal = pc.equal(ordered[:-1], ordered[1:]).to_numpy(False)
    bad[order.to_numpy()[1:][equal]] = True
    return bad


def _rows(count: int, found: NDArray[Any]) -> _Bad:
    bad = np.zeros(count, np.bool_)
    bad[found] = True
    return bad


def _shown(value: object) -> str:
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"
