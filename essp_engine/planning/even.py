"""Deterministic plans: segments evenly spaced over each video, for evaluation and for walks over all videos."""

from __future__ import annotations

from abc import abstractmethod
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from essp_common.catalog.view import CatalogView
from essp_common.errors import ConfigError
from essp_common.job.clip_spec import ClipSpec
from essp_common.job.data_spec import MOST_CLIPS
from essp_engine.planning.planned_clip import PlanBase, PlannedClip

T = TypeVar("T", int, NDArray[np.int64])

_FPS = 25.0
"""Assumed frame rate of a video that does not give one."""
_ROUNDING = 1e-6
"""In frames: products of a rate and seconds are not exact."""


def _frames_of(view: CatalogView, seconds: float) -> NDArray[np.float64]:
    """(n,) how many frames of each video are shown in this time, by its mean rate."""
    fps = view.rows.numbers("fps").astype(np.float64)
    frames: NDArray[np.float64] = seconds * np.where(fps > 0, fps, _FPS)
    return frames


def _checked_size(edges: NDArray[np.int64], what: str, field: str) -> int:
    """The number of clips. Raises `ConfigError` for more than a job may have."""
    if (size := int(edges[-1])) > MOST_CLIPS:
        raise ConfigError(
            f"{what} makes {size} clips, and a job may have {MOST_CLIPS}; take fewer, or make several jobs",
            field=field,
            code="range",
        )
    return size


class _Even(PlanBase):
    """Evenly spaced segments: clip `j` of `k` starts in the middle of the j-th of k equal parts of its possible
    starts."""

    def __init__(self, view: CatalogView, clip: ClipSpec, segments: int, size: int, locality: int) -> None:
        super().__init__(view, clip, size, locality)
        self._segments = segments

    def _count(self, videos: T) -> T | int:
        """The number of segments of these videos."""
        return self._segments

    def _stretch(self, start: int, stop: int) -> list[PlannedClip]:
        indices = np.arange(max(start, 0), min(stop, self._size))
        videos, segments = self._places(indices)
        offsets = (2 * segments + 1) * self._starts[videos] // (2 * self._count(videos))
        return self._planned_all(indices.tolist(), videos, offsets)

    def clip(self, index: int, attempt: int = 0) -> PlannedClip:
        self._check(index)
        if attempt:
            raise LookupError("this plan takes each video in turn; none stands in for another")
        video, segment = self._places(index)
        return self._planned(index, 0, video, (2 * segment + 1) * int(self._starts[video]) // (2 * self._count(video)))

    @abstractmethod
    def _places(self, index: T) -> tuple[T, T]:
        """The video at an index, and which of its segments; also for arrays of indices."""


class Uniform(_Even):
    """`clips_per_video` evenly spaced clips of each video, video by video, in time order. There are no replacements."""

    def __init__(self, view: CatalogView, clip: ClipSpec, clips_per_video: int, locality: int = 0) -> None:
        super().__init__(view, clip, clips_per_video, len(view) * clips_per_video, locality)

    def _places(self, index: T) -> tuple[T, T]:
        return index // self._segments, index % self._segments


class RoundRobin(_Even):
    """`size` clips of the videos in turn, each turn at the next of `clips_per_video` segments.

    An epoch continues where the previous one stopped. There are no replacements, because other videos have their own
    turn.
    """

    def __init__(
        self, view: CatalogView, clip: ClipSpec, clips_per_video: int, size: int, epoch: int, locality: int = 0
    ) -> None:
        super().__init__(view, clip, clips_per_video, size, locality)
        self._start = epoch * size

    def _places(self, index: T) -> tuple[T, T]:
        turn = self._start + index
        return turn % len(self._first), turn // len(self._first) % self._segments


class Regular(PlanBase):
    """Clips that start `every_frames` frames, or `every_s` seconds, apart, from the beginning of each video as far as
    they fit, video by video, in time order; at least one of each. There are no replacements.

    Seconds are counted in frames of the video's mean rate. Raises `ConfigError` for more clips than a job may have.
    """

    def __init__(
        self,
        view: CatalogView,
        clip: ClipSpec,
        *,
        every_s: float | None = None,
        every_frames: int = 1,
        locality: int = 0,
    ) -> None:
        super().__init__(view, clip, 0, locality)
        frames = np.full(len(view), float(every_frames)) if every_s is None else _frames_of(view, every_s)
        field = "sampling.every_frames" if every_s is None else "sampling.every_s"
        self._apart = np.maximum(frames, 1.0)
        """(n,) frames from one start to the next, of each video."""
        counts = np.ceil(self._starts / self._apart - _ROUNDING).astype(np.int64)
        self._edges = np.concatenate([[0], np.cumsum(np.maximum(counts, 1))])
        """The first index of each video, and the end of the last one."""
        self._size = _checked_size(self._edges, f"a clip every {np.min(self._apart):g} frames", field)

    def _stretch(self, start: int, stop: int) -> list[PlannedClip]:
        indices = np.arange(max(start, 0), min(stop, self._size))
        videos = np.searchsorted(self._edges, indices, "right") - 1
        offsets = np.floor((indices - self._edges[videos]) * self._apart[videos] + _ROUNDING).astype(np.int64)
        return self._planned_all(indices.tolist(), videos, np.minimum(offsets, self._starts[videos] - 1))

    def clip(self, index: int, attempt: int = 0) -> PlannedClip:
        self._check(index)
        if attempt:
            raise LookupError("this plan takes each video in turn; none stands in for another")
        return self._stretch(index, index + 1)[0]


class Dense(_Even):
    """Evenly spaced clips at most `every_s` seconds apart, video by video, in time order. There are no replacements.

    Raises `ConfigError` for more clips than a job may have.
    """

    def __init__(self, view: CatalogView, clip: ClipSpec, every_s: float, locality: int = 0) -> None:
        super().__init__(view, clip, 0, 0, locality)
        frames = _frames_of(view, every_s)
        starts = self._starts.astype(np.int64)
        counts = np.clip(np.ceil(starts / frames), 1, starts).astype(np.int64)
        self._edges = np.concatenate([[0], np.cumsum(counts)])
        """The first index of each video, and the end of the last one."""
        self._size = _checked_size(self._edges, f"a clip every {every_s:g} s", "sampling.every_s")

    def _count(self, videos: T) -> T | int:
        counts: NDArray[np.int64] = self._edges[1:][videos] - self._edges[videos]
        return counts if isinstance(videos, np.ndarray) else int(counts)

    def _places(self, index: T) -> tuple[T, T]:
        videos = np.searchsorted(self._edges, index, "right") - 1
        places = index - self._edges[videos]
        return (videos, places) if isinstance(index, np.ndarray) else (int(videos), int(places))
