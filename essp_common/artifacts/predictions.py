"""The answers of a predict job for each video, as Parquet (`predictions.parquet` in the job's output).

One row per video, in catalog order: `video_id`, `class_name` (the likeliest; null if nothing of the video could be
decoded), `clips` (how many were scored), `scores` (list of float32, one per class), `error` (why clips are missing;
null: none are missing), `name` (for a record, the file that it was made from; null if that is unknown, and for a video,
whose id is its name). Class names are in the file's metadata.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from essp_common.artifacts.scores import CLASSES, VideoScores, classes_of
from essp_common.errors import PermanentError
from essp_common.objects import tables
from essp_common.objects.port import ObjectStore

_SCHEMA = pa.schema(
    [
        ("video_id", pa.string()),
        ("class_name", pa.string()),
        ("clips", pa.int32()),
        ("scores", pa.list_(pa.float32())),
        ("error", pa.string()),
        ("name", pa.string()),
    ]
)
_OPTIONAL = ("class_name", "error", "name")


@dataclass(frozen=True, slots=True)
class Prediction:
    """The answer for one video."""

    video_id: str
    class_name: str | None
    clips: int
    scores: tuple[float, ...]
    """Probability of each class; empty if nothing of the video could be decoded."""
    error: str | None
    name: str | None = None
    """The display name of a record: the file that it was made from, if known."""

    def top(self, classes: Sequence[str], count: int) -> list[tuple[str, float]]:
        """The likeliest classes with their probabilities, in descending order."""
        order = sorted(range(len(self.scores)), key=lambda c: -self.scores[c])
        return [(classes[c], self.scores[c]) for c in order[:count]]


def predictions(scores: VideoScores, clips: Mapping[str, int], errors: Mapping[str, str]) -> list[Prediction]:
    """Answers for everything that was scored, and the reasons for everything that was not."""
    found = {
        video: Prediction(
            video_id=video,
            # Compare at storage precision: of equal scores the first wins, as in `top`.
            class_name=scores.classes[int(row.astype(np.float32).argmax())],
            clips=clips[video],
            scores=tuple(float(value) for value in row),
            error=errors.get(video),
        )
        for video, row in zip(scores.video_id, scores.probabilities, strict=True)
    }
    lost = {video: Prediction(video, None, 0, (), error) for video, error in errors.items() if video not in found}
    return [prediction for _, prediction in sorted({**found, **lost}.items())]


def write_predictions(
    store: ObjectStore, key: str, parts: Iterable[Sequence[Prediction]], classes: Sequence[str]
) -> None:
    """Store the answers, which may come in parts so that they need not all be in memory. Equal parts give equal
    bytes."""
    schema = _SCHEMA.with_metadata({CLASSES: json.dumps(list(classes)).encode()})
    columns = ([[getattr(row, name) for row in rows] for name in schema.names] for rows in parts)
    store.put(key, tables.packed(schema, (pa.table(part, schema=schema) for part in columns)))


def read_predictions(store: ObjectStore, key: str) -> tuple[list[Prediction], tuple[str, ...]]:
    """The answers and the class names. Raises `NotFound`, or `PermanentError` for an object of another kind."""
    data = store.get(key)
    try:
        table = tables.unpacked(data)
        classes = classes_of(table.schema)
        if "name" not in table.column_names:  # written by a version that did not store names
            table = table.append_column("name", pa.nulls(len(table), pa.string()))
        filled = tables.filled(table, _SCHEMA, _OPTIONAL)
        rows = [Prediction(**{**row, "scores": tuple(row["scores"])}) for row in filled.to_pylist()]
    except tables.UNREADABLE as error:
        raise PermanentError(f"{store.uri(key)} holds no predictions: {tables.reason(error)}") from error
    return rows, classes
