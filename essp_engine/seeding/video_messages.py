"""The messages to decoders about videos, built directly from the columns of the catalog.

Catalogs have up to millions of videos, and a random order rarely returns to one. So neither a `VideoRow` nor a list of
keyframes is created for a video: its part of a message is serialized once and cached, and keyframes are looked up in
the column for all videos. `Told.row` exists for the few videos whose units are sent in several messages.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from essp_common.catalog.columns import value_of
from essp_common.catalog.label_sets import LabelledSpan, LabelSets
from essp_common.catalog.rows import VideoRow
from essp_common.catalog.view import CatalogView
from essp_common.job.data_spec import Targets
from essp_common.pb.v1.messages_pb2 import DecodeSeed, Seek, Video
from essp_engine.planning.work_units import is_divisible, parts_of

_KEPT = 2**17
"""Number of videos whose part of a message is cached: about 80 MB at most."""
_KEPT_BYTES = 2**26
"""Maximum bytes of the cached parts, because the checksums of large videos make them long."""
_NUMBERS = ("size_bytes", "frame_count", "width", "height", "seekable", "lookahead")


class Told(NamedTuple):
    """The common content of all messages about a video."""

    key: bytes
    message: bytes
    """A `DecodeSeed` with nothing but the video."""
    size_bytes: int
    frame_count: int
    last_frame: int
    begin: int
    """The index of its first keyframe in the columns."""
    end: int
    """The index after its last keyframe; equal to `begin` if decoding must begin at the start of the file."""
    row: VideoRow | None
    """The row of a video whose work units may be divided; None for other videos."""
    spans: tuple[LabelledSpan, ...] | None
    """The labelled spans from which clips get their labels; None if the job does not learn them."""


class VideoMessages:
    """The videos of one view. Not thread-safe."""

    def __init__(self, view: CatalogView, labels: tuple[str, ...] | None = None, targets: Targets = "class") -> None:
        """`labels`: the names of the labels that the job learns, by number; None: it learns classes."""
        self._rows = rows = view.rows
        self._labels = None if labels is None else LabelSets(rows, labels)
        self._targets = targets
        columns: Mapping[str, Any] = rows.columns
        self._texts = [columns[name] for name in ("id", "uri", "etag")]
        self._sums = columns.get("sums")
        self._places = _singly(rows.places)
        self._numbers = [_singly(columns[name]) for name in _NUMBERS]
        self._last_frame = _singly(columns["last_frame"])
        lists = [columns[name] for name in ("keyframe_frame", "keyframe_pts", "keyframe_offset")]
        self._edges = _singly(lists[0].edges)  # the same for all three lists
        self._frames, self._pts, self._offsets = (_singly(column.numbers) for column in lists)
        self._kept: dict[int, Told] = {}
        self._kept_bytes = 0
        """The bytes of the cached messages."""

    def told(self, video: int) -> Told:
        """The message content for a video of the view."""
        found = self._kept.get(video)
        if found is None:
            found = self._made(video)
            self._kept_bytes += len(found.message)
            if len(self._kept) == _KEPT or self._kept_bytes > _KEPT_BYTES:
                self._kept.clear()
                self._kept_bytes = len(found.message)
            self._kept[video] = found
        return found

    def seek_to(self, told: Told, first_frame: int, seek: Seek) -> bool:
        """Like `planning.plan.seek_to`: write into `seek` where decoding must begin; False for the start of the
        file."""
        place = bisect_right(self._frames, first_frame, told.begin, told.end) - 1
        if place < told.begin:
            return False
        offset = self._offsets[place]
        seek.pts = self._pts[place]
        seek.frame_index = self._frames[place]
        seek.byte_offset = offset if offset > 0 else 0
        place += 1
        if place < told.end:
            offset = self._offsets[place]
            seek.next_frame = self._frames[place]
            seek.next_offset = offset if offset > 0 else 0
        else:
            seek.next_frame, seek.next_offset = told.frame_count, told.size_bytes
        return True

    def parts_of(self, told: Told, frames: Sequence[int]) -> list[list[int]]:
        """The frames of a clip, divided into parts that are decoded from a keyframe each."""
        return parts_of(frames, self._frames, told.begin, told.end)

    def _made(self, video: int) -> Told:
        place = self._places[video]
        id_, uri, etag = (value_of(column, place) for column in self._texts)
        size_bytes, frame_count, width, height, seekable, lookahead = (column[place] for column in self._numbers)
        message = Video(
            id=id_,
            uri=uri,
            size_bytes=size_bytes,
            etag=etag,
            frame_count=frame_count,
            width=width,
            height=height,
            seekable=seekable,
            lookahead=lookahead,
            sums=value_of(self._sums, place) if self._sums is not None else b"",
            labels=self._labels.of(video) if self._labels is not None and self._targets == "labels" else (),
        )
        begin = self._edges[place]
        return Told(
            uri.encode(),
            DecodeSeed(video=message).SerializeToString(),
            size_bytes,
            frame_count,
            self._last_frame[place],
            begin,
            self._edges[place + 1] if seekable else begin,
            self._rows[video] if is_divisible(seekable, frame_count, height, width) else None,
            self._labels.spans(video) if self._labels is not None and self._targets == "spans" else None,
        )


def _singly(numbers: Any) -> Sequence[Any]:
    """A view of an array whose single elements are read ten times faster than by NumPy."""
    return memoryview(numbers)
