"""The input of plans: the usable videos of one split, as arrays, in an order that depends only on the rows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from essp_common.catalog.checks import LARGEST_COUNT
from essp_common.catalog.columns import Lists, narrow
from essp_common.catalog.rows import Rows
from essp_common.catalog.source_columns import values_of
from essp_common.catalog.timed import TimedFrames
from essp_common.job.clip_spec import ClipSpec

_SAMPLED, _NEARLY_ALL = 1000, 0.9
"""Number of videos examined for a common property, and the fraction of them that must have it."""


class Events(NamedTuple):
    """What further views show of the events of some rows (`events.py`)."""

    further: Mapping[str, Rows]
    """View -> its row for each of the rows."""
    first_frame: NDArray[np.int64]
    last_frame: NDArray[np.int64]
    """The frames of each row that appear while all views show the event; beyond them, one of them stands still."""

    def where(self, chosen: NDArray[Any]) -> Events:
        """The same for some of the rows: indices among them, or a boolean for each."""
        further = {view: rows.where(chosen) for view, rows in self.further.items()}
        return Events(further, self.first_frame[chosen], self.last_frame[chosen])


class CatalogView:
    """The usable videos of one split, indexed 0..n-1."""

    def __init__(
        self,
        rows: Rows,
        classes: tuple[str, ...],
        class_id: NDArray[np.int32],
        events: Events | None = None,
    ) -> None:
        self.rows = rows
        """Sorted by id."""
        self.events = events
        """What further views show meanwhile, if clips have several."""
        self.classes = classes
        """All class names of the catalog, sorted; a class id is an index into them, the same for every split."""
        self.class_id = class_id
        """(n,) class of each video."""
        self.in_classes = np.argsort(narrow(class_id), kind="stable").astype(np.int32)
        """(n,) the videos, ordered by class."""
        self.class_begin = np.searchsorted(class_id[self.in_classes], np.arange(len(classes) + 1)).astype(np.int64)
        """(classes + 1,) where each class begins in `in_classes`, and the end of the last one."""
        self._starts: tuple[int, NDArray[Any]] | None = None
        self._timed: tuple[ClipSpec, TimedFrames] | None = None
        self._values: dict[str, list[str]] = {}

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def further(self) -> Mapping[str, Rows]:
        """View -> its row for each video; empty if clips have one view."""
        return {} if self.events is None else self.events.further

    @cached_property
    def by_class(self) -> tuple[NDArray[np.int32], ...]:
        """For each class id, the videos in it (may be empty)."""
        return tuple(np.split(self.in_classes, self.class_begin[1:-1])) if self.classes else ()

    def values(self, column: str, field: str) -> list[str]:
        """The value of each video in a column of the catalog's source, as `values_of`."""
        if column not in self._values:
            self._values[column] = values_of(self.rows, column, field)
        return self._values[column]

    @cached_property
    def file(self) -> NDArray[Any] | None:
        """(n,) equal numbers for records of one file, which may share a work unit; None for videos, each of which has
        its own work units."""
        return self.rows.numbers("file") if "file" in self.rows.columns else None

    @cached_property
    def first_frame(self) -> NDArray[Any]:
        """(n,) first frame of each video's segment, or of the part that further views show, too."""
        return _frames(self.rows.numbers("first_frame") if self.events is None else self.events.first_frame)

    @cached_property
    def length(self) -> NDArray[Any]:
        """(n,) frames of each video's segment, or of the part that further views show, too; at least 1."""
        first, last = self.rows.numbers("first_frame"), self.rows.numbers("last_frame")
        if self.events is not None:
            first, last = self.events.first_frame, self.events.last_frame
        return _frames(last.astype(np.int64) - first + 1)

    @cached_property
    def sizes(self) -> dict[tuple[int, int], int]:
        """Height and width of the videos -> the first video of that size."""
        return self._sizes(len(self))

    @property
    def a_size(self) -> dict[tuple[int, int], int]:
        """The same for the first video alone."""
        return self._sizes(1)

    def _sizes(self, videos: int) -> dict[tuple[int, int], int]:
        rows = self.rows[:videos]
        sizes = rows.numbers("height").astype(np.int64) << 32 | rows.numbers("width")
        found, first = np.unique(sizes, return_index=True)
        pairs = ((size >> 32, size & 0xFFFFFFFF) for size in found.tolist())
        return dict(zip(pairs, first.tolist(), strict=True))

    def keyframe_before(self, videos: NDArray[Any], frames: NDArray[Any]) -> NDArray[np.int64]:
        """For each video and a frame of it, the index in `keyframes` of the last keyframe at or before the frame; -1 if
        decoding must begin at the start of the file."""
        numbers, edges = self.keyframes("keyframe_frame"), self._lists("keyframe_frame").edges
        rows = self.rows.places[videos]
        begins = edges[rows].astype(np.int64)
        low, high = begins - 1, edges[1:][rows].astype(np.int64)
        # A binary search in all lists at once: the answer is at or after `low`, and before `high`.
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
        """Average number of frames in a group of pictures; a file without usable keyframes counts as one group."""
        edges, rows = self._lists("keyframe_frame").edges.astype(np.int64), self.rows.places
        groups = np.where(self.rows.numbers("seekable"), np.maximum(edges[1:][rows] - edges[rows], 1), 1)
        return float(self.rows.numbers("frame_count").sum(dtype=np.int64) / groups.sum())

    @property
    def keyframe_distance(self) -> int:
        """Frames from one keyframe to the next, if nearly all have the same distance; otherwise 0.

        Computed from the first videos of the catalog, whether or not they are in the view.
        """
        column = self._lists("keyframe_frame")
        edges = column.edges[: _SAMPLED + 1].astype(np.int64)
        frames = np.diff(column.numbers[: edges[-1]].astype(np.int64))
        # without the steps from one video to the next
        frames = np.delete(frames, edges[(edges > 0) & (edges < edges[-1])] - 1)
        distances, counts = np.unique(frames, return_counts=True)
        if not len(frames) or counts.max() < _NEARLY_ALL * len(frames):
            return 0
        return int(distances[counts.argmax()])

    def keyframes(self, name: str) -> NDArray[Any]:
        """One of the keyframe columns, concatenated over all videos."""
        return self._lists(name).numbers

    def _lists(self, name: str) -> Lists:
        column = self.rows.columns[name]
        if not isinstance(column, Lists):
            raise TypeError(f"{name} is not a column of lists")
        return column

    def starts(self, span: int) -> NDArray[Any]:
        """(n,) the number of possible starts of a clip of this span in frames; one for a shorter video, whose last
        frame is repeated."""
        if self._starts is None or self._starts[0] != span:
            most = min(span, LARGEST_COUNT)
            self._starts = span, np.maximum(self.length, most) - (most - 1)
        return self._starts[1]

    def timed(self, clip: ClipSpec) -> TimedFrames:
        """The frames of clips that are chosen by time. Raises `ConfigError`, as `TimedFrames` does."""
        if self._timed is None or self._timed[0] != clip:
            bounds = None if self.events is None else (self.events.first_frame, self.events.last_frame)
            self._timed = clip, TimedFrames(self.rows, clip, bounds)
        return self._timed[1]


def _frames(numbers: NDArray[Any]) -> NDArray[Any]:
    """Frame numbers in a small type; they fit into 32 bits in any checked catalog."""
    found = narrow(numbers)
    return found if found.dtype == np.int64 else found.astype(np.int32)
