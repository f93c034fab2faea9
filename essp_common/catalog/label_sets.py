"""The labels of clips, for jobs that learn labels independently (`data.targets`): of whole videos, or of spans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from essp_common.catalog.catalog import Catalog
from essp_common.catalog.columns import Blobs
from essp_common.catalog.rows import Rows
from essp_common.catalog.targets import Targets, unpack

COLUMN = "targets"


class LabelledSpan(NamedTuple):
    """Frames `first_frame` to `last_frame` of the file, both inclusive, have a label."""

    first_frame: int
    last_frame: int
    label: int
    """The number of the label."""


def label_names(catalog: Catalog, *, of_spans: bool) -> tuple[str, ...]:
    """The labels to learn, sorted: classes and labels of all videos, or names of their spans.

    Unusable videos are included, so that repairing a file does not change the numbering.
    """
    found: set[str] = set() if of_spans else set(catalog.classes) - {""}
    packed = _packed(catalog.rows)
    for place in catalog.rows.places[packed.lengths[catalog.rows.places] > 0].tolist():
        targets = unpack(packed.encoded(place), names_only=True)
        found.update((span.name for span in targets.spans) if of_spans else targets.labels)
    return tuple(sorted(found))


def has_several_labels(rows: Rows) -> bool:
    """Whether any video has more than one label."""
    packed = _packed(rows)
    labelled = rows.places[packed.lengths[rows.places] > 0].tolist()
    return any(len(set(unpack(packed.encoded(place), names_only=True).labels)) > 1 for place in labelled)


class LabelSets:
    """The labels of the videos of one view."""

    def __init__(self, rows: Rows, names: tuple[str, ...]) -> None:
        """`names`: the labels of the catalog, in the order of their numbers."""
        self._rows = rows
        self._packed = _packed(rows)
        self._number = {name: number for number, name in enumerate(names)}

    def of(self, video: int) -> tuple[int, ...]:
        """The label numbers of a video, ascending; for a video without labels, the number of its class."""
        shown = self._targets(video).labels or (self._rows.text("class_name", video),)
        return tuple(sorted({self._number[name] for name in shown if name}))

    def spans(self, video: int) -> tuple[LabelledSpan, ...]:
        """The spans of a video."""
        spans = self._targets(video).spans
        return tuple(LabelledSpan(span.first_frame, span.last_frame, self._number[span.name]) for span in spans)

    def _targets(self, video: int) -> Targets:
        return unpack(self._packed.encoded(int(self._rows.places[video])), names_only=True)


def labels_at(spans: Sequence[LabelledSpan], first_frame: int, frames: int, stride: int, last_frame: int) -> list[int]:
    """The label numbers of a clip, ascending: the labels of all spans that contain one of its frames.

    After `last_frame` of the video, a clip repeats that frame.
    """
    end = first_frame + (frames - 1) * stride
    found = set()
    for begin, stop, label in spans:
        steps = max(0, -(-(begin - first_frame) // stride))
        seen = first_frame + steps * stride
        if (steps < frames and seen <= min(stop, last_frame)) or (end > last_frame and begin <= last_frame <= stop):
            found.add(label)
    return sorted(found)


def labels_of(spans: Sequence[LabelledSpan], frames: Sequence[int]) -> list[int]:
    """The label numbers of a clip with these frames, ascending."""
    found = {label for begin, stop, label in spans if any(begin <= frame <= stop for frame in frames)}
    return sorted(found)


def _packed(rows: Rows) -> Blobs:
    column = rows.columns[COLUMN]
    if not isinstance(column, Blobs):
        raise TypeError(f"{COLUMN} is not a column of bytes")
    return column
