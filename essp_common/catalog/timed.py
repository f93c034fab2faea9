"""The frames of clips that are chosen by time (`clip.fps`, `every_s`, `seconds`, `max_frames`, `spread`).

A clip begins at the moment when its first frame appears, and its other moments follow from there. Each moment shows the
last frame that has appeared by then: the one that a player shows. So the frames of a clip follow from the video, the
first frame and the job alone, in every process, and a clip is still identified by its first frame.

Frames are given as *offsets* from the first frame. At a constant rate they are the same for every clip of a video, and
for all videos of that rate. If the rate varies, the timestamps of the catalog give them. A moment after the end of the
video shows its last frame.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from essp_common.catalog.rows import Rows, VideoRow
from essp_common.catalog.timing import EARLY_S, Timing, edges_of, slack
from essp_common.errors import ConfigError
from essp_common.job.clip_spec import ClipSpec

Integers = NDArray[np.int64]
Edges = NDArray[np.float64]
"""When each frame of a file appears, and its end, in seconds."""
Offsets = tuple[int, ...]

_FARTHEST = 2**31 - 1
_KEPT = 4096
_KEPT_TIMES = 64
"""Videos of a varying rate whose times are cached."""


class TimedFrames:
    """The frames of clips of the videos of a table."""

    def __init__(self, rows: Rows, clip: ClipSpec) -> None:
        """`rows`: usable videos. Raises `ConfigError` if some of them do not give the times of their frames."""
        self._rows = rows
        self._clip = clip
        self._first, self._last = (rows.numbers(name).astype(np.int64) for name in ("first_frame", "last_frame"))
        self._fps = rows.numbers("fps").astype(np.float64)
        self._varies = rows.lengths("timestamps") > 0
        if clip.period_s is not None and len(unknown := np.flatnonzero(self._fps <= 0)):
            raise _untimed(clip, len(unknown), rows.text("id", int(unknown[0])))
        self._times = lru_cache(maxsize=_KEPT_TIMES)(self._read_times)
        self._at_rate = lru_cache(maxsize=_KEPT)(self._steady)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._rows, self._clip)

    @cached_property
    def places(self) -> tuple[Integers, Integers]:
        """For each video: the first frame at which a clip (or a snippet of one) can begin, and the number of such
        frames, which follow each other.

        A clip lies within the `part` of its video; if it is longer, it has one place, in the middle.
        """
        first, counts = _steady_places(self._clip, self._first, self._last, self._fps)
        if not self._clip.of_whole_video:
            part = within_part(self._first, self._last, self._clip, 1)
            for video in np.flatnonzero(self._varies).tolist():
                begin, count, first_frame, last = (int(of[video]) for of in (*part, self._first, self._last))
                bounds = _Bounds(first_frame, last, begin, begin + count)
                first[video], counts[video] = _varying_places(self._clip, bounds, self._times(video))
        return first, counts

    def offsets(self, video: int, first_frame: int) -> Offsets:
        """The frames of a clip (or a snippet of one) that begins with a frame of a video, ascending, from 0. Those
        after the end of the video have any number beyond its last frame."""
        end = int(self._ends[video])
        if self._varies[video]:
            return _varying_offsets(self._clip, self._times(video), first_frame, end)
        return self._at_rate(float(self._fps[video]), end - first_frame if self._clip.of_whole_video else 0)

    def times_s(self, video: int, first_frame: int) -> list[float]:
        """When each frame of a clip appears, in seconds of the file."""
        numbers = np.minimum(first_frame + np.array(self.offsets(video, first_frame)), self._last[video])
        edges = self._times(video) if self._varies[video] else None
        if edges is not None:
            shown: list[float] = edges[numbers].tolist()
            return shown
        fps = float(self._fps[video]) or np.nan
        steady: list[float] = (float(self._starts_s[video]) + numbers / fps).tolist()
        return steady

    @cached_property
    def _starts_s(self) -> NDArray[Any]:
        return self._rows.numbers("start_s")

    def _steady(self, fps: float, reach: int) -> Offsets:
        return _steady_offsets(self._clip, fps, reach)

    @cached_property
    def _ends(self) -> Integers:
        """The last frame that a clip of each video may show."""
        return _ends(self._clip, self._first, self._last)

    @cached_property
    def _facts(self) -> list[NDArray[Any]]:
        """What the times of a video follow from, in addition to its timestamps."""
        names = ("frame_count", "time_base_num", "time_base_den", "start_s", "duration_s")
        return [self._rows.numbers(name) for name in names]

    def _read_times(self, video: int) -> Edges:
        count, numerator, denominator, start_s, duration_s = (column[video].item() for column in self._facts)
        packed = self._rows.blob("timestamps", video)
        return edges_of(self._rows.text("id", video), packed, count, (numerator, denominator), start_s, duration_s)


def places_of(row: VideoRow, clip: ClipSpec) -> tuple[int, int]:
    """`TimedFrames.places` of one video."""
    _check(row, clip)
    edges = Timing(row).edges
    limits = [np.array([number], np.int64) for number in (row.first_frame, row.last_frame)]
    if edges is not None and not clip.of_whole_video:
        [begin], [count] = within_part(*limits, clip, 1)
        bounds = _Bounds(row.first_frame, row.last_frame, int(begin), int(begin + count))
        return _varying_places(clip, bounds, edges)
    [first], [count] = _steady_places(clip, *limits, np.array([row.fps]))
    return int(first), int(count)


def offsets_of(row: VideoRow, clip: ClipSpec, first_frame: int) -> Offsets:
    """`TimedFrames.offsets` of one video."""
    _check(row, clip)
    [end] = _ends(clip, np.array([row.first_frame]), np.array([row.last_frame])).tolist()
    edges = Timing(row).edges
    if edges is None:
        return _steady_offsets(clip, row.fps, end - first_frame)
    return _varying_offsets(clip, edges, first_frame, end)


def within_part(first: Integers, last: Integers, clip: ClipSpec, span: int | Integers) -> tuple[Integers, Integers]:
    """For videos with these first and last frames, the first place of a snippet of `span` frames inside the part of the
    video from which clips are drawn, and the number of places.

    A snippet longer than the part has one place: centred on the part, and within the video.
    """
    lengths = last - first + 1
    begin = np.floor(lengths * clip.part[0]).astype(np.int64)
    end = np.ceil(lengths * clip.part[1]).astype(np.int64)
    over = np.clip((begin + end - span) // 2, 0, np.maximum(lengths - span, 0))
    return first + np.where(end - begin >= span, begin, over), np.maximum(end - begin - span, 0) + 1


def _steady_places(
    clip: ClipSpec, first: Integers, last: Integers, fps: NDArray[np.float64]
) -> tuple[Integers, Integers]:
    if clip.of_whole_video:
        begin, _ = within_part(first, last, clip, 1)
        return begin, np.ones_like(begin)
    reach_s = (clip.snippet_frames - 1) * (clip.period_s or 0.0)
    reach = np.floor(np.minimum(reach_s * fps + slack(fps), _FARTHEST)).astype(np.int64)
    return within_part(first, last, clip, reach + 1)


class _Bounds(NamedTuple):
    """Frames of a file."""

    first: int
    last: int
    """Of the video or segment."""
    begin: int
    end: int
    """Of the part of it from which clips are drawn; `end` is the frame after the last one."""


def _varying_places(clip: ClipSpec, bounds: _Bounds, edges: Edges) -> tuple[int, int]:
    first, last, begin, end = bounds
    reach_s = (clip.snippet_frames - 1) * (clip.period_s or 0.0)
    places = int(np.searchsorted(edges[begin:end], edges[end] - reach_s - EARLY_S, side="left"))
    if places:
        return begin, places
    middle_s = (edges[begin] + edges[end] - reach_s) / 2
    latest_s = max(edges[last + 1] - reach_s - 2 * EARLY_S, edges[first])
    over = int(np.searchsorted(edges[:-1], min(max(middle_s, edges[first]), latest_s) + EARLY_S, side="right")) - 1
    return min(max(over, first), last), 1


def _steady_offsets(clip: ClipSpec, fps: float, reach: int) -> Offsets:
    """`reach`: frames from the first one to the last one of the video, or of its part."""
    wanted = np.arange(clip.snippet_frames, dtype=np.int64)
    if clip.period_s is None or (clip.of_whole_video and (reach + 1) / fps > clip.frames * clip.period_s + EARLY_S):
        return tuple((wanted * reach // (len(wanted) - 1)).tolist())
    most = reach if clip.of_whole_video else _FARTHEST
    return _as_offsets(np.minimum(np.floor(wanted * (clip.period_s * fps) + slack(fps)), most))


def _varying_offsets(clip: ClipSpec, edges: Edges, first_frame: int, end: int) -> Offsets:
    """`end`: the last frame of the video, or of its part."""
    wanted = np.arange(clip.snippet_frames)
    length_s = edges[end + 1] - edges[first_frame]
    if clip.period_s is None or (clip.of_whole_video and length_s > clip.frames * clip.period_s + EARLY_S):
        moments = wanted * ((edges[end] - edges[first_frame]) / (len(wanted) - 1))
    else:
        moments = wanted * clip.period_s
    shown = np.searchsorted(edges[:-1], edges[first_frame] + moments + EARLY_S, side="right") - 1
    shown[0] = first_frame  # even if the next one has the same timestamp
    return _as_offsets(np.minimum(shown, end) - first_frame)


def _as_offsets(found: NDArray[np.float64] | Integers) -> Offsets:
    return tuple(found.astype(np.int64).tolist())


def _ends(clip: ClipSpec, first: Integers, last: Integers) -> Integers:
    """For videos with these first and last frames, the last frame that a clip may show."""
    if not clip.of_whole_video:
        return last
    begin, count = within_part(first, last, clip, 1)
    return begin + count - 1


def _check(row: VideoRow, clip: ClipSpec) -> None:
    if clip.period_s is not None and row.fps <= 0:
        raise _untimed(clip, 1, row.id)


def _untimed(clip: ClipSpec, count: int, example: str) -> ConfigError:
    field = next(name for name in ("fps", "every_s", "seconds") if getattr(clip, name) is not None)
    return ConfigError(
        f"{count} of the videos, such as {example}, do not give the times of their frames; leave them out, or choose "
        "frames by stride",
        field=f"clip.{field}",
        code="unsupported",
    )
