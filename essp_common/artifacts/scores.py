"""Class probabilities: by clip as a trainer writes them (Parquet), by video as fusion and reports read them.

The file has one row per clip. Columns: `video_id` string, `class_id` int32 (the label; -1: not known), `clip_index`
int64 (the clip's index in its phase), `scores` fixed-size list of floats (class probabilities, summing to 1), in the
precision of the model: float32, unless it computes in double precision. Class names are in the file's metadata, so a
score table can be read without its job. If strategies learn from features, `features` is a fixed-size list of float16:
the input of the network's last layer for the clip.

In a job that learns labels independently (`data.targets: labels`, `spans`) scores need not sum to 1, and `labels` is a
list of int32, the ids of all labels of the clip's video, or of the clip. Its `class_id` refers to the classes of the
catalog, which may differ from the labels.

With `spans`, clips of one video have different labels, so each clip is treated as a separate video: its `video_id` is
`VIDEO frame N`.

Skipped clips have no row. Rows are written in index order, so equal phases give equal files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from essp_common.artifacts.figures import Labels, relevance
from essp_common.errors import PermanentError
from essp_common.objects import tables
from essp_common.objects.port import ObjectStore

CLASSES = b"essp.classes"
"""The metadata key for the class names of a table."""
_NO_VETO = 1e-4
"""In a product, scores below this count as this, so that a single model that is sure and wrong can be outvoted."""

Rule = Literal["mean", "product"]
"""How the scores of several models are combined."""

_COLUMNS = pa.schema([("video_id", pa.string()), ("class_id", pa.int32()), ("clip_index", pa.int64())])
_SCORES = "scores"
_FEATURES = "features"
_LABELS = "labels"
_MOST = 1.001
"""Rounding may make a score slightly larger than 1."""


_OF_CLIP = re.compile(r"(.*) frame ([0-9]{1,18})", re.DOTALL)


def name_of_clip(video: str, first_frame: int) -> str:
    """The `video_id` of a clip that is treated as a separate video."""
    return f"{video} frame {first_frame}"


def clip_named(name: str) -> tuple[str, int]:
    """The inverse of `name_of_clip`: the video and the clip's first frame. Raises `PermanentError` for another name."""
    match = _OF_CLIP.fullmatch(name)
    if match is None:
        raise PermanentError(f"{name!r:.200} names no clip; a job with `targets: spans` scores each clip for itself")
    return match[1], int(match[2])


@dataclass(frozen=True)
class ScoreTable:
    """The scores of one phase, one row per clip."""

    video_id: tuple[str, ...]
    class_id: NDArray[np.int32]
    """(N,) label of each clip, -1 if unknown. With `labels`, the class in the catalog."""
    clip_index: NDArray[np.int64]
    """(N,) index of each clip in its phase."""
    probabilities: NDArray[np.floating[Any]]
    """(N, C) class probabilities of each clip."""
    classes: tuple[str, ...]
    """Names of the C classes, by class id."""
    features: NDArray[np.floating[Any]] | None = None
    """(N, D) input of the network's last layer for each clip; None: not kept. In parts of an extract job, its vectors,
    of any floating-point type."""
    labels: NDArray[np.bool_] | None = None
    """(N, C) labels of each clip, if they are learned independently; None if classes are learned."""

    def __post_init__(self) -> None:
        rows = len(self.video_id)
        if self.class_id.shape != (rows,) or self.clip_index.shape != (rows,):
            raise ValueError("class_id and clip_index have one entry a row")
        if self.probabilities.shape != (rows, len(self.classes)):
            raise ValueError(f"probabilities are {self.probabilities.shape}, not ({rows}, {len(self.classes)})")
        if self.features is not None and (self.features.ndim != 2 or len(self.features) != rows):
            raise ValueError(f"features are {self.features.shape}, and there are {rows} clips")
        if self.labels is not None and self.labels.shape != self.probabilities.shape:
            raise ValueError(f"labels are {self.labels.shape}, and probabilities {self.probabilities.shape}")

    def __len__(self) -> int:
        return len(self.video_id)

    @property
    def truth(self) -> Labels:
        """The ground truth for metrics: `(N,)` class ids, or `(N, C)` labels."""
        return self.class_id if self.labels is None else self.labels

    def at(self, rows: NDArray[np.intp]) -> ScoreTable:
        """The clips of these rows."""
        return ScoreTable(
            tuple(self.video_id[row] for row in rows.tolist()),
            self.class_id[rows],
            self.clip_index[rows],
            self.probabilities[rows],
            self.classes,
            None if self.features is None else self.features[rows],
            None if self.labels is None else self.labels[rows],
        )


@dataclass(frozen=True)
class VideoScores:
    """Scores by video: the mean of its clips' probabilities. Videos are sorted by id."""

    video_id: tuple[str, ...]
    class_id: NDArray[np.int32]
    """(V,)"""
    probabilities: NDArray[np.float64]
    """(V, C)"""
    classes: tuple[str, ...]
    labels: NDArray[np.bool_] | None = None
    """(V, C) labels of each video, if they are learned independently; None if classes are learned or nothing is
    known."""

    @property
    def truth(self) -> Labels:
        """The ground truth for metrics: `(V,)` class ids, or `(V, C)` labels."""
        return self.class_id if self.labels is None else self.labels

    @property
    def right(self) -> NDArray[np.bool_]:
        """(V,) whether the highest score belongs to the video's class, or to one of its labels."""
        best = self.probabilities.argmax(axis=1)
        found: NDArray[np.bool_] = relevance(self.truth, len(self.classes))[np.arange(len(self)), best]
        return found

    def __len__(self) -> int:
        return len(self.video_id)

    def select(self, video_ids: Sequence[str]) -> VideoScores:
        """Only these videos, in this order. Raises `KeyError` for a missing one."""
        row_of = {video: row for row, video in enumerate(self.video_id)}
        rows = np.array([row_of[video] for video in video_ids], dtype=np.intp)
        return self.at(rows)

    def at(self, videos: NDArray[np.intp]) -> VideoScores:
        """The videos with these numbers."""
        names = tuple(self.video_id[row] for row in videos.tolist())
        labels = None if self.labels is None else self.labels[videos]
        return VideoScores(names, self.class_id[videos], self.probabilities[videos], self.classes, labels)


@dataclass(frozen=True)
class ClipScores:
    """Scores of every clip, grouped by video. Videos are sorted by id, the clips of each by time."""

    means: VideoScores
    """The mean over the clips of each video, weighted if some clips count more."""
    clips: NDArray[np.floating[Any]]
    """(R, C) class probabilities of the R clips of all videos."""
    first: NDArray[np.intp]
    """(V + 1,): video `v` has the rows from `first[v]` to `first[v + 1]` (exclusive) of `clips`, at least one."""
    features: NDArray[np.float16] | None = None
    """(R, D) input of the network's last layer for each clip; None: not kept."""

    def __len__(self) -> int:
        return len(self.means)

    @property
    def counts(self) -> NDArray[np.intp]:
        """(V,) number of clips of each video."""
        return np.diff(self.first)

    def select(self, video_ids: Sequence[str]) -> ClipScores:
        """Only these videos, in this order. Raises `KeyError` for a missing one."""
        row_of = {video: row for row, video in enumerate(self.means.video_id)}
        return self.at(np.array([row_of[video] for video in video_ids], dtype=np.intp))

    def at(self, videos: NDArray[np.intp]) -> ClipScores:
        """The videos with these numbers."""
        counts = self.counts[videos]
        first = np.concatenate([[0], np.cumsum(counts)])
        rows = np.repeat(self.first[videos] - first[:-1], counts) + np.arange(first[-1])
        features = None if self.features is None else self.features[rows]
        return ClipScores(self.means.at(videos), self.clips[rows], first, features)

    def unlabelled(self) -> ClipScores:
        """The same scores without labels."""
        unknown = np.full(len(self), -1, dtype=np.int32)
        return replace(self, means=replace(self.means, class_id=unknown, labels=None))

    def pooled(self, probabilities: NDArray[np.float64]) -> VideoScores:
        """The videos with scores `(V, C)` instead of the means."""
        return replace(self.means, probabilities=probabilities)


def numbered(names: Sequence[str]) -> tuple[tuple[str, ...], NDArray[np.intp]]:
    """The distinct names, sorted, and the number of each name among them.

    Not `np.unique`: an array of texts takes four bytes for each character of the longest one, in every row.
    """
    distinct = tuple(sorted(set(names)))
    number = {name: place for place, name in enumerate(distinct)}
    return distinct, np.fromiter(map(number.__getitem__, names), np.intp, len(names))


def by_video(table: ScoreTable, weights: NDArray[np.float64] | None = None) -> VideoScores:
    """Average the clips of each video. The order of the rows does not matter, not even for the last bit.

    `weights`: `(N,)` weight of each clip, above 0; None: equal weights.
    """
    order = np.argsort(table.clip_index, kind="stable")
    videos, row_of_clip = numbered(table.video_id)
    row = row_of_clip[order]
    _, first = np.unique(row, return_index=True)
    total = np.zeros((len(videos), len(table.classes)))
    each = table.probabilities[order].astype(np.float64)
    counted = None if weights is None else weights[order]
    np.add.at(total, row, each if counted is None else each * counted[:, None])
    clips = np.bincount(row, counted, minlength=len(videos))
    return VideoScores(
        video_id=videos,
        class_id=table.class_id[order][first],
        probabilities=total / clips[:, None],
        classes=table.classes,
        labels=None if table.labels is None else table.labels[order][first],
    )


def clips_by_video(table: ScoreTable, weights: NDArray[np.float64] | None = None) -> ClipScores:
    """The clips of each video together, in time order, which is the order of their indices, because a plan numbers
    clips along each video.

    `weights`: as for `by_video`, which computes the means.
    """
    means = by_video(table, weights)
    _, row = numbered(table.video_id)
    order = np.lexsort((table.clip_index, row))
    first = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=len(means)))])
    features = None if table.features is None else table.features[order]
    return ClipScores(means, table.probabilities[order], first, features)


def fuse(parts: Mapping[str, VideoScores], weights: Mapping[str, float], rule: Rule) -> VideoScores:
    """Fuse the scores of several models, for every video that at least one of them (with weight > 0) has scored.

    If some models have not scored a video, the weights of the others are scaled up accordingly.
    """
    used = {name: part for name, part in parts.items() if weights[name] > 0}
    if not used:
        raise ValueError("no weight is positive")
    classes = next(iter(used.values())).classes
    videos = sorted({video for part in used.values() for video in part.video_id})
    row_of = {video: row for row, video in enumerate(videos)}
    stacked = np.ones((len(used), len(videos), len(classes)))
    weight = np.zeros((len(used), len(videos)))
    class_id = np.full(len(videos), -1, dtype=np.int32)
    known = all(part.labels is not None for part in used.values())
    labels = np.zeros((len(videos), len(classes)), np.bool_) if known else None
    for number, (name, part) in enumerate(used.items()):
        if part.classes != classes:
            raise ValueError(f"{name} was trained for other classes than the rest")
        rows = np.array([row_of[video] for video in part.video_id], dtype=np.intp)
        stacked[number, rows] = part.probabilities
        weight[number, rows] = weights[name]
        class_id[rows] = part.class_id
        if labels is not None and part.labels is not None:
            labels[rows] = part.labels
    return VideoScores(tuple(videos), class_id, mix(stacked, weight / weight.sum(axis=0), rule), classes, labels)


def mix(probabilities: NDArray[np.float64], weights: NDArray[np.float64], rule: Rule) -> NDArray[np.float64]:
    """Combine scores `(N, V, C)` of N models, with weights `(N, V)` or `(N, 1)` that sum to 1 over N, into `(V, C)`.

    `mean`: the weighted mean. `product`: the product of the scores, each to the power of its weight times the effective
    number of models (1 / sum of squared weights), so that equal weights give the plain product and a single model its
    own scores. It is Bayes' rule for models whose errors are independent given the class (Kittler et al., "On combining
    classifiers", PAMI 1998), and equivalent to averaging the scores before the softmax.
    """
    if rule == "mean":
        mean: NDArray[np.float64] = np.sum(weights[..., None] * probabilities, axis=0)
        return mean
    taking_part = 1 / np.sum(weights**2, axis=0)
    total = np.sum(weights[..., None] * logs(probabilities), axis=0) * taking_part[:, None]
    odds = np.exp(total - total.max(axis=1, keepdims=True))
    product: NDArray[np.float64] = odds / odds.sum(axis=1, keepdims=True)
    return product


def logs(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """The logarithms that a product sums."""
    found: NDArray[np.float64] = np.log(np.maximum(probabilities, _NO_VETO))
    return found


def write(store: ObjectStore, key: str, table: ScoreTable) -> None:
    """Store a score table. Equal tables give equal bytes."""
    store.put(key, packed(table))


def read(store: ObjectStore, key: str) -> ScoreTable:
    """Load a score table. Raises `NotFound`, or `PermanentError` for an object of another kind."""
    try:
        return unpacked(store.get(key))
    except ValueError as error:
        raise PermanentError(f"{store.uri(key)} is not a score table: {error}; restore it from a backup") from error


def packed(table: ScoreTable) -> bytes:
    """A score table as Parquet."""
    columns = {
        "video_id": pa.array(table.video_id, pa.string()),
        "class_id": pa.array(table.class_id, pa.int32()),
        "clip_index": pa.array(table.clip_index, pa.int64()),
        _SCORES: _lists(table.probabilities),
    }
    if table.features is not None:
        columns[_FEATURES] = _lists(table.features)
    if table.labels is not None:
        columns[_LABELS] = _sets(table.labels)
    arrow = pa.table(columns).replace_schema_metadata({CLASSES: json.dumps(table.classes).encode()})
    return tables.packed(arrow.schema, [arrow])


def _lists(rows: NDArray[Any]) -> pa.FixedSizeListArray:
    values = pa.array(np.ascontiguousarray(rows).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(values, max(1, rows.shape[1]))


def _sets(labels: NDArray[np.bool_]) -> pa.ListArray:
    """The ids of the labels of each row."""
    offsets = np.concatenate([[0], np.cumsum(labels.sum(axis=1))])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(np.nonzero(labels)[1], pa.int32()))


def _labels(column: pa.ListArray, classes: int) -> NDArray[np.bool_]:
    """The inverse of `_sets`. Raises `IndexError` for an id without a class."""
    labels, numbers = np.zeros((len(column), classes), np.bool_), column.flatten().to_numpy()
    if len(numbers) and numbers.min() < 0:
        raise IndexError("a label has a number below 0")
    labels[column.value_parent_indices().to_numpy(), numbers] = True
    return labels


def classes_of(schema: pa.Schema) -> tuple[str, ...]:
    """The classes in a table's metadata. Raises `ValueError` if it has none."""
    found = json.loads((schema.metadata or {}).get(CLASSES, b"null"))
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found) or len(set(found)) < len(found):
        raise ValueError("its metadata name no classes")
    return tuple(found)


def _rows(column: pa.ChunkedArray, rows: int, width: int) -> NDArray[Any]:
    values: NDArray[Any] = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return values.reshape(rows, width)


def unpacked(data: bytes) -> ScoreTable:
    """The inverse of `packed`. Raises `ValueError`."""
    try:
        arrow = tables.unpacked(data)
        classes = classes_of(arrow.schema)
        scores = pa.field(_SCORES, pa.list_(_kind_of_scores(arrow), len(classes)))
        filled = tables.filled(arrow, _COLUMNS.append(scores))
        columns = [column.combine_chunks() for column in filled.columns[:3]]
        features = None
        if _FEATURES in arrow.column_names:
            column = arrow.column(_FEATURES)
            features = _rows(column, arrow.num_rows, column.type.list_size if arrow.num_rows else 0)
        labels = None
        if _LABELS in arrow.column_names:
            labels = _labels(arrow.column(_LABELS).combine_chunks(), len(classes))
        found = ScoreTable(
            video_id=tuple(columns[0].to_pylist()),
            class_id=columns[1].to_numpy(zero_copy_only=False),
            clip_index=columns[2].to_numpy(zero_copy_only=False),
            probabilities=_rows(filled.column(_SCORES), arrow.num_rows, len(classes)),
            classes=classes,
            features=features,
            labels=labels,
        )
        if (found.class_id < -1).any() or (labels is None and (found.class_id >= len(classes)).any()):
            raise ValueError(f"class_id is not one of {len(classes)} classes")
        if ((found.probabilities < 0) | (found.probabilities > _MOST)).any():
            raise ValueError("scores are not probabilities")
        return found
    except tables.UNREADABLE as error:
        raise ValueError(tables.reason(error)) from error


def _kind_of_scores(table: pa.Table) -> pa.DataType:
    """The type of the scores. Raises `ValueError` if they are not lists of floating-point numbers."""
    kind = table.schema.field(_SCORES).type
    if not pa.types.is_fixed_size_list(kind) or not pa.types.is_floating(kind.value_type):
        raise ValueError(f"column {_SCORES} holds {kind}, not as many numbers in each row")
    return kind.value_type


def joined(tables: Sequence[ScoreTable]) -> ScoreTable:
    """Parts of one phase, at least one, as a single table in index order."""
    order = np.argsort(np.concatenate([table.clip_index for table in tables]))
    videos = [video for table in tables for video in table.video_id]
    features = [table.features for table in tables if table.features is not None and len(table)]
    labels = [table.labels for table in tables if table.labels is not None]
    return ScoreTable(
        video_id=tuple(videos[row] for row in order),
        class_id=np.concatenate([table.class_id for table in tables])[order],
        clip_index=np.concatenate([table.clip_index for table in tables])[order],
        probabilities=np.concatenate([table.probabilities for table in tables])[order],
        classes=tables[0].classes,
        features=np.concatenate(features)[order] if features else None,
        labels=np.concatenate(labels)[order] if labels else None,
    )
