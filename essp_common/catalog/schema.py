"""The columns of a catalog: the fields of a `VideoRow`, with `time_base` as two columns, and their properties.

The file's metadata contains the version of the schema. A file of another version is refused, because one command can
build it again.
"""

from __future__ import annotations

import pyarrow as pa

VERSION = "5"
VERSION_KEY = b"essp.catalog.version"
SOURCE_KEY = b"essp.catalog.source"
_INTEGERS, _STRING = pa.list_(pa.int64()), pa.string()
COLUMNS: dict[str, pa.DataType] = {
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
    "event": _STRING,
    "view": _STRING,
    "origin_s": pa.float64(),
    "extra": _STRING,
    "targets": pa.binary(),
    "notes": _STRING,
    "sums": pa.binary(),
    "unproven": _STRING,
    "error": _STRING,
}
"""Every column, by its name, in the order of the file."""
KEYFRAMES = ("keyframe_pts", "keyframe_frame", "keyframe_offset")
"""One list per video, all of the same length: an entry for each keyframe."""
WORDS = frozenset(
    {"class_name", "split", "container", "codec", "pixel_format", "group", "view", "notes", "unproven", "error"}
)
"""The columns stored as `Words`."""
SHARED = frozenset({"timestamps", "sums"})
"""The columns with equal bytes in all rows of a file."""
LATER = frozenset({"notes", "sums", "unproven"})
"""Columns that were added later and may be missing from catalogs of this version: texts and bytes, which are then
empty."""
SCHEMA = pa.schema(list(COLUMNS.items()), metadata={VERSION_KEY: VERSION})
"""The file's columns."""
PLANNED = (
    *("width", "height", "fps", "frame_count", "first_frame", "last_frame", "seekable", "lookahead", "group", "view"),
    "unproven",
    *KEYFRAMES,
)
"""The columns that plans and messages need, in addition to those that identify a video."""
TIMED = ("start_s", "duration_s", "timestamps", "time_base")
"""The columns that plans also need if the frames of clips are chosen by time."""
OF_EVENTS = ("event", "view", "origin_s", *TIMED, "fps", "frame_count", "first_frame", "last_frame")
"""The columns that bring the views of one event into step."""
CHECKED = ("sums",)
"""The column that messages also need, so that decoders can compare what they read. It is read only for them."""
HANDED = ("extra", "targets", "origin_s", *TIMED)
"""The columns that the user's own loops get in addition."""
REMEDY = "make it again with `essp catalog build`"
"""What users should do about an unusable catalog."""
