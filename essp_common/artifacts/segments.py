"""Where in each video its classes are seen, as Parquet (`segments.parquet` in a predict job's output, if requested).

One row per segment, the highest score of each video first, videos in catalog order: `video_id`, `class_name`,
`first_frame` and `last_frame` (both inclusive, as counted in the file), `score` (in 0..1; how much more certain the
model is inside than around it).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from essp_common.errors import PermanentError
from essp_common.objects import tables
from essp_common.objects.port import ObjectStore

_SCHEMA = pa.schema(
    [
        ("video_id", pa.string()),
        ("class_name", pa.string()),
        ("first_frame", pa.int64()),
        ("last_frame", pa.int64()),
        ("score", pa.float32()),
    ]
)


@dataclass(frozen=True, slots=True)
class Segment:
    """One class in one segment of a video."""

    video_id: str
    class_name: str
    first_frame: int
    last_frame: int
    """Inclusive."""
    score: float


def write_segments(store: ObjectStore, key: str, parts: Iterable[Sequence[Segment]]) -> None:
    """Store segments, which may come in parts. Equal parts give equal bytes."""
    columns = ([[getattr(row, name) for row in rows] for name in _SCHEMA.names] for rows in parts)
    store.put(key, tables.packed(_SCHEMA, (pa.table(part, schema=_SCHEMA) for part in columns)))


def read_segments(store: ObjectStore, key: str) -> list[Segment]:
    """The segments of a job. Raises `NotFound`, or `PermanentError` for an object of another kind."""
    data = store.get(key)
    try:
        return [Segment(**row) for row in tables.filled(tables.unpacked(data), _SCHEMA).to_pylist()]
    except tables.UNREADABLE as error:
        raise PermanentError(f"{store.uri(key)} holds no segments: {tables.reason(error)}") from error
