"""When the frames of a video are shown.

Most files have a constant frame rate: frame i is shown `i / fps` after the first one, to within a tick of the file's
clock. For other files (phones, screen recordings, WebM from browsers) the catalog row contains the timestamps
themselves, packed. Seconds count from the beginning of the file, as in players; a video may begin slightly after its
sound.
"""

from __future__ import annotations

import math
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from essp_common.catalog.rows import Rows, VideoRow
from essp_common.errors import ConfigError


def unpack(packed: bytes, count: int) -> NDArray[np.int64]:
    """`(count,)` ticks since the first frame: the inverse of `essp_engine.video.clock.pack`.

    Raises `ValueError` for anything but `count` frames in ascending order.
    """
    reader = zlib.decompressobj()
    try:
        data = reader.decompress(packed, max(1, 8 * count))  # never more than expected; 0 would mean no limit
    except zlib.error as error:
        raise ValueError(f"they cannot be unpacked ({error})") from error
    steps = np.frombuffer(data[: len(data) // 8 * 8], "<i8")
    if len(data) != 8 * (count - 1) or not reader.eof or (steps < 0).any():
        raise ValueError(f"they do not describe {count} frames")
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(steps, dtype=np.int64)])


EARLY_S = 1e-6
"""A moment this much before a frame appears still shows the frame: times are often written with six decimals, as by
ffprobe, and sums of fractions are not exact."""
_MOST_OF_A_FRAME = 1e-3
_HALF = 0.5


def slack(fps: float | NDArray[np.float64]) -> NDArray[np.float64]:
    """`EARLY_S` in frames."""
    return np.minimum(np.multiply(fps, EARLY_S), _MOST_OF_A_FRAME)


class Timing:
    """The times of a file's frames."""

    def __init__(self, row: VideoRow) -> None:
        """`row`: of the file or of a segment of it; only the facts of the file are used."""
        self._row = row
        self._count = max(1, row.frame_count)

    @property
    def known(self) -> bool:
        """Whether the file gives the times of its frames."""
        return self._row.fps > 0

    def shown_s(self, frame: int) -> float:
        """When a frame appears, in seconds. The number after the last frame gives the end of the video."""
        if self._row.timestamps:
            return float(self._edges[min(frame, self._count)])
        return self._row.start_s + frame / (self._row.fps or 1.0)

    @property
    def edges(self) -> NDArray[np.float64] | None:
        """`(frame_count + 1,)` times at which each frame appears, and the end; None: the rate is constant. Raises
        `ConfigError` for damaged timestamps."""
        return self._edges if self._row.timestamps else None

    def last_shown(self, second: float) -> int | None:
        """The frame that is shown at this time: the last one that has appeared. None: before the first frame, and
        after the end."""
        end_s, last_s = self.shown_s(self._count), self.shown_s(self._count - 1)
        if second < self.shown_s(0) - EARLY_S or second >= max(end_s, last_s + 2 * EARLY_S) - EARLY_S:
            return None
        return self._at(second)

    def frames(self, start_s: float, end_s: float | None) -> range:
        """The frames of [start_s, end_s); empty if the video ends before.

        Both times are rounded to the nearest frame change. A segment shorter than a frame becomes the frame shown at
        its start.
        """
        if start_s >= self.shown_s(self._count):
            return range(self._count, self._count)
        first = self._change(start_s)
        stop = self._count if end_s is None else self._change(end_s)
        if first >= stop:
            first = self._at(start_s)
            stop = first + 1
        return range(first, stop)

    def _change(self, second: float) -> int:
        """The frame that appears nearest to this time."""
        if self._row.timestamps:
            return int(np.searchsorted((self._edges[:-1] + self._edges[1:]) / 2, second, side="left"))
        place = math.ceil((second - self._row.start_s) * self._row.fps - 0.5) if self.known else 0
        return min(max(place, 0), self._count)

    def _at(self, second: float) -> int:
        """The frame that is shown at this time."""
        if self._row.timestamps:
            place = int(np.searchsorted(self._edges, second + EARLY_S, side="right")) - 1
        else:
            place = math.floor((second - self._row.start_s) * self._row.fps + self._slack)
        return min(max(place, 0), self._count - 1)

    @property
    def _slack(self) -> float:
        """In frames, how much before a frame appears by its rate it may be shown: half a tick, to which containers
        round its timestamp."""
        numerator, denominator = self._row.time_base
        return min(max(float(slack(self._row.fps)), numerator / denominator * self._row.fps / 2), _HALF)

    @cached_property
    def _edges(self) -> NDArray[np.float64]:
        """`(frame_count + 1,)` times at which each frame appears, and the end. Raises `ConfigError` for damaged
        timestamps."""
        row = self._row
        return edges_of(row.id, row.timestamps, row.frame_count, row.time_base, row.start_s, row.duration_s)


SAME_MOMENT_S = 1e-3
"""Frames of two views that appear at most this long one after the other show the same moment: a tick of Matroska and
WebM."""


class Clock:
    """When the frames of one row appear, in seconds from the beginning of its event."""

    def __init__(self, rows: Rows, row: int) -> None:
        """`rows`: with the columns `schema.OF_EVENTS`. Raises `ConfigError` for damaged timestamps."""
        numbers = {name: rows.number(name, row) for name in _CLOCK}
        self._first, self._last = int(numbers["first_frame"]), int(numbers["last_frame"])
        self._fps = float(numbers["fps"]) or 1.0
        self._start_s = float(numbers["start_s"]) - float(numbers["origin_s"])
        self._appears_s: list[float] = []
        """When each frame of a varying rate appears, from the first frame of the row to its last; otherwise empty."""
        self._end_s = self._start_s + (self._last + 1) / self._fps
        if packed := rows.blob("timestamps", row):
            time_base = int(numbers["time_base_num"]), int(numbers["time_base_den"])
            times = float(numbers["start_s"]), float(numbers["duration_s"])
            edges = edges_of(rows.text("id", row), packed, int(numbers["frame_count"]), time_base, *times)
            *self._appears_s, self._end_s = (edges[self._first : self._last + 2] - float(numbers["origin_s"])).tolist()

    def appears_s(self, frame: int) -> float:
        """When a frame of the file appears; beyond the row, its first or last frame."""
        frame = min(max(frame, self._first), self._last)
        if self._appears_s:
            return self._appears_s[frame - self._first]
        return self._start_s + frame / self._fps

    @property
    def shows_s(self) -> tuple[float, float]:
        """From when to when the row shows something."""
        return self.appears_s(self._first), self._end_s

    def frames(self, begin_s: float, end_s: float) -> tuple[int, int]:
        """The first frame of the row that appears at or after one time, and the last one that appears before another,
        both to within `SAME_MOMENT_S`."""
        times = self._appears_s or [self.appears_s(frame) for frame in range(self._first, self._last + 1)]
        first, stop = (bisect_left(times, second - SAME_MOMENT_S) for second in (begin_s, end_s))
        return self._first + first, self._first + stop - 1

    def shown(self, seconds: Sequence[float]) -> list[int]:
        """The last frame of the row that has appeared at each of these times, to within `SAME_MOMENT_S`; before the
        first one, the first one."""
        first, last, late_s = self._first, self._last, SAME_MOMENT_S
        if self._appears_s:
            places = (bisect_right(self._appears_s, second + late_s) - 1 for second in seconds)
            return [first + max(place, 0) for place in places]
        start_s, fps = self._start_s - late_s, self._fps
        return [min(max(math.floor((second - start_s) * fps), first), last) for second in seconds]

    def nearest(self, seconds: Sequence[float]) -> list[int]:
        """The frame of the file that appears nearest to each of these times. Times outside the row have numbers outside
        it, at the mean rate."""
        if not self._appears_s:
            return [round((second - self._start_s) * self._fps) for second in seconds]
        wanted, appears = np.array(seconds), np.array(self._appears_s)
        inside = np.clip(wanted, appears[0], appears[-1])
        found = np.searchsorted((appears[:-1] + appears[1:]) / 2, inside)
        outside = np.rint((wanted - inside) * self._fps).astype(np.int64)
        numbers: list[int] = (self._first + found + outside).tolist()
        return numbers


_CLOCK = (
    *("first_frame", "last_frame", "frame_count", "fps", "start_s", "duration_s", "origin_s"),
    *("time_base_num", "time_base_den"),
)


@lru_cache(maxsize=4)  # segments of one file come consecutively
def edges_of(
    name: str, packed: bytes, count: int, time_base: tuple[int, int], start_s: float, duration_s: float
) -> NDArray[np.float64]:
    """The same from the fields of a row. Raises `ConfigError` for damaged timestamps."""
    try:
        ticks = unpack(packed, count)
    except ValueError as error:
        raise ConfigError(
            f"the catalog's timestamps of {name}: {error}; build the catalog again", code="unreadable"
        ) from error
    numerator, denominator = time_base
    shown = start_s + ticks * (numerator / denominator)
    edges = np.append(shown, max(start_s + duration_s, shown[-1]))
    edges.flags.writeable = False
    return edges
