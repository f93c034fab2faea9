"""Checks of a catalog's rows, read or written: what a plan or a message cannot hold is refused, by row and column.

A catalog is a file like any other, and may come from another program or a damaged disk. Its numbers go into plans and
messages, so a wrong one has to be found before a job is announced. The checks run over whole columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

LONGEST_TEXT = 4096
"""Bytes of an id or a URI."""
LONGEST_NAME = 512
"""Bytes of a class, a split or a group."""
LARGEST_COUNT = 2**31 - 1
"""Frames of a file; messages hold 32 bits."""
_LARGEST_FILE = 2**50
_LARGEST_SIDE = 2**16
_LARGEST_RATE = 1e6

Columns = Mapping[str, Any]
"""Name -> `pyarrow.ChunkedArray`."""
_Bad = NDArray[np.bool_]


class Problem(NamedTuple):
    """A value that a catalog cannot have."""

    row: int
    column: str
    what: str


def type_problems(schema: pa.Schema, expected: Mapping[str, pa.DataType]) -> Iterator[str]:
    """Columns that are missing or of another type, in words."""
    for name, kind in expected.items():
        place = schema.get_field_index(name)
        if place < 0:
            yield f"column {name} is missing, or there twice" if name in schema.names else f"column {name} is missing"
        elif schema.field(place).type != kind:
            yield f"column {name} holds {schema.field(place).type}, not {kind}"


def problems(columns: Columns, optional: str = "error") -> Iterator[Problem]:
    """The values that cannot be, column by column. Only `optional` may hold nulls."""
    empty = [name for name, column in columns.items() if column.null_count and name != optional]
    for name in empty:
        yield from (Problem(int(row), name, "it is empty") for row in np.flatnonzero(_array(columns[name].is_null())))
    if empty:  # the checks below need every value
        return
    usable = _array(columns[optional].is_null())
    for name, what, bad in _bad(columns, usable):
        for row in np.flatnonzero(bad).tolist():
            yield Problem(row, name, f"{_shown(columns[name][row].as_py())} {what}")


def _bad(columns: Columns, usable: _Bad) -> Iterator[tuple[str, str, _Bad]]:
    for name, longest in _TEXTS.items():
        if name in columns:
            yield name, f"is longer than {longest} bytes", _array(pc.binary_length(columns[name])) > longest
    yield "id", "is no id", _array(pc.binary_length(columns["id"])) == 0
    yield "id", "is there twice", _repeated(columns["id"])
    yield "uri", "is no URI", usable & (_array(pc.binary_length(columns["uri"])) == 0)
    for name, (right, what) in _NUMBERS.items():
        if name in columns:
            yield name, what, ~right(_array(columns[name]))
    if {"width", "height", "frame_count"} <= columns.keys():
        for name in ("width", "height"):
            shown = usable & (_array(columns["frame_count"]) > 0)
            yield name, "is not the size of a picture", shown & (_array(columns[name]) == 0)
    yield from _bad_frames(columns, usable)
    yield from _bad_keyframes(columns, usable)


def _bad_frames(columns: Columns, usable: _Bad) -> Iterator[tuple[str, str, _Bad]]:
    if {"frame_count", "first_frame", "last_frame"} <= columns.keys():
        count, first, last = (_array(columns[name]) for name in ("frame_count", "first_frame", "last_frame"))
        yield "first_frame", "is not a frame of the video", usable & ((first < 0) | (first > last))
        yield "last_frame", "is not a frame of the video", usable & (last >= np.maximum(count, 1))


def _bad_keyframes(columns: Columns, usable: _Bad) -> Iterator[tuple[str, str, _Bad]]:
    lists = {name: columns[name].combine_chunks() for name in _KEYFRAMES if name in columns}
    counts = {name: _array(pc.list_value_length(values)) for name, values in lists.items()}
    for name, values in lists.items():
        inner = values.flatten()
        owner = np.repeat(np.arange(len(values)), counts[name])
        if inner.null_count:
            yield name, "holds an empty entry", _rows(len(values), owner[_array(inner.is_null())])
            return
        numbers = inner.to_numpy(zero_copy_only=False)
        if name != "keyframe_offset":
            falls = (np.diff(numbers) <= 0) & (np.diff(owner) == 0)
            yield name, "does not rise", _rows(len(values), owner[1:][falls])
        if name == "keyframe_frame":
            yield name, "begins before the video", _rows(len(values), owner[numbers < 0])
            if "frame_count" in columns:
                beyond = numbers >= np.maximum(_array(columns["frame_count"]), 1)[owner]
                yield name, "goes beyond the video", usable & _rows(len(values), owner[beyond])
        if name == "keyframe_offset":
            beyond = (numbers < -1) | (numbers >= _LARGEST_FILE)
            yield name, "is not a place in the file", _rows(len(values), owner[beyond])
        if "keyframe_frame" in counts:
            yield name, "is not as long as keyframe_frame", counts[name] != counts["keyframe_frame"]


def _between(low: float, high: float) -> Callable[[NDArray[Any]], _Bad]:
    return lambda values: (values >= low) & (values <= high)  # false for NaN


_TEXTS = {"id": LONGEST_TEXT, "uri": LONGEST_TEXT, "etag": LONGEST_TEXT, "error": LONGEST_TEXT * 16} | dict.fromkeys(
    ("class_name", "split", "group", "container", "codec", "pixel_format"), LONGEST_NAME
)
_NUMBERS: dict[str, tuple[Callable[[NDArray[Any]], _Bad], str]] = {
    "size_bytes": (_between(0, _LARGEST_FILE), "is not the size of a file"),
    "width": (_between(0, _LARGEST_SIDE), "is not a width"),
    "height": (_between(0, _LARGEST_SIDE), "is not a height"),
    "rotation": (lambda values: np.isin(values, (0, 90, 180, 270)), "is not 0, 90, 180 or 270"),
    "fps": (_between(0, _LARGEST_RATE), "is not a frame rate"),
    "duration_s": (_between(0, 1e9), "is not a duration"),
    "start_s": (_between(-1e9, 1e9), "is not a time"),
    "time_base_num": (_between(0, LARGEST_COUNT), "is not a time base"),
    "time_base_den": (_between(1, LARGEST_COUNT), "is not a time base"),
    "frame_count": (_between(0, LARGEST_COUNT), "is not a number of frames"),
    "lookahead": (_between(0, 1024), "is not a number of packets"),
}
_KEYFRAMES = ("keyframe_frame", "keyframe_pts", "keyframe_offset")


def _repeated(column: Any) -> _Bad:
    codes = column.combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)
    _, first = np.unique(codes, return_index=True)
    bad = np.ones(len(codes), np.bool_)
    bad[first] = False
    return bad


def _rows(count: int, found: NDArray[Any]) -> _Bad:
    bad = np.zeros(count, np.bool_)
    bad[found] = True
    return bad


def _array(column: Any) -> NDArray[Any]:
    """Without nulls: a null is 0."""
    values = column.fill_null(False if pa.types.is_boolean(column.type) else 0)
    found: NDArray[Any] = values.to_numpy() if isinstance(values, pa.ChunkedArray) else values.to_numpy(False)
    return found


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"
