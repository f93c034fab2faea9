"""The interface of plans: the clip at each index, and the order in which clips are issued."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from essp_common.catalog.rows import VideoRow
from essp_common.catalog.timed import Offsets, TimedFrames, places_of, within_part
from essp_common.catalog.view import CatalogView
from essp_common.errors import ConfigError
from essp_common.job.clip_spec import ClipSpec

WHOLE = (0.0, 1.0)
"""The whole of a video."""


class PlannedClip(NamedTuple):
    """The clip at one index of a plan."""

    index: int  # type: ignore[assignment]  # hides a tuple method that clips do not need
    attempt: int
    class_id: int
    video: int
    """Index in the plan's `CatalogView`."""
    first_frame: int
    frame_count: int
    stride: int
    """0: the frames are chosen by time, and are at `offsets`."""
    later: tuple[int, ...] = ()
    """The first frame of each snippet except the first snippet."""
    offsets: tuple[Offsets, ...] = ()
    """For each snippet, its frames, counted from its first one; empty: they are `stride` apart."""

    @property
    def reach(self) -> int:
        """Frames from the first frame to the last one, of the first snippet."""
        return self.offsets[0][-1] if self.offsets else (self.frame_count // (1 + len(self.later)) - 1) * self.stride


class Plan(Protocol):
    """The clips of one phase."""

    def __len__(self) -> int: ...

    def clip(self, index: int, attempt: int = 0) -> PlannedClip:
        """The clip at `index`; `attempt` > 0 gives the n-th replacement, from the same class. O(1).

        Raises `IndexError` outside the plan, and `LookupError` if there is no replacement.
        """

    def units(self, start: int, stop: int) -> Sequence[Sequence[PlannedClip]]:
        """The clips `start..stop` in the order of issue, grouped into work units of one video each.

        Without locality the order is the index order, and a unit is a run of clips of one video. With a window of
        W, clips of one video within the indices [kW, (k+1)W) form one unit. The clip at an index is the same in both
        cases, and consumers still take clips in index order, so W clips must fit into the job's budget. For records,
        units are grouped by file instead of by video.
        """


class PlanBase(ABC):
    """The common base of all plans: the geometry of the clips, bounds, and the order of issue."""

    def __init__(self, view: CatalogView, clip: ClipSpec, size: int, locality: int) -> None:
        if not len(view):
            raise ConfigError(
                "the plan has no usable video to draw from; `essp catalog show --problems` says why", code="empty"
            )
        self._size = size
        self._frames = clip.frames
        self._timed: TimedFrames | None = view.timed(clip) if clip.by_time else None
        self._stride = 0 if clip.by_time else clip.stride
        self._snippets = clip.snippets
        self._locality = locality
        self._class_id = view.class_id
        self._first, self._whole = view.first_frame, view.starts(clip.span)
        """For each video, the first possible start of a snippet, and the number of possible starts."""
        if self._timed is not None:
            self._first, self._whole = self._timed.places
        elif clip.part != WHOLE:
            offsets, self._whole = places_in_part(view.length.astype(np.int64), clip)
            self._first = self._first.astype(np.int64) + offsets
        self._starts = self._whole if clip.snippets == 1 else np.maximum(self._whole // clip.snippets, 1)
        """The number of possible starts for the first snippet of a clip, which is in the first of the equal parts."""
        self._file = view.file

    def __len__(self) -> int:
        return self._size

    @abstractmethod
    def clip(self, index: int, attempt: int = 0) -> PlannedClip:
        """See `Plan.clip`."""

    def units(self, start: int, stop: int) -> list[list[PlannedClip]]:
        """See `Plan.units`."""
        clips = self._stretch(start, stop)
        owners = [clip.video for clip in clips]
        if self._file is not None:
            owners = self._file[owners].tolist()
        if not self._locality:
            return _runs(clips, owners)
        windows: dict[tuple[int, int], list[PlannedClip]] = {}
        for clip, owner in zip(clips, owners, strict=True):
            windows.setdefault((clip.index // self._locality, owner), []).append(clip)
        return list(windows.values())

    def _stretch(self, start: int, stop: int) -> list[PlannedClip]:
        """The clips `start..stop`."""
        return [self.clip(index) for index in range(start, stop)]

    def _check(self, index: int) -> None:
        if not 0 <= index < self._size:
            raise IndexError(f"the plan has clips 0..{self._size - 1}, not {index}")

    def _planned(self, index: int, attempt: int, video: int, offset: int) -> PlannedClip:
        first_frame, class_id = int(self._first[video]) + offset, int(self._class_id[video])
        later = () if self._snippets == 1 else self._later(index, attempt, video, offset)
        offsets = () if self._timed is None else self._offsets(video, first_frame, later)
        return PlannedClip(index, attempt, class_id, video, first_frame, self._frames, self._stride, later, offsets)

    def _planned_all(
        self, indices: Iterable[int], videos: NDArray[np.int64], offsets: NDArray[np.int64]
    ) -> list[PlannedClip]:
        """`_planned` for many clips, none of which is a replacement."""
        indices, shown = list(indices), videos.tolist()
        first_frames = (self._first[videos] + offsets).tolist()
        later: Iterable[tuple[int, ...]] = repeat(())
        if self._snippets > 1:
            later = list(map(self._later, indices, repeat(0), shown, offsets))
        columns = (
            indices,
            repeat(0),
            self._class_id[videos].tolist(),
            shown,
            first_frames,
            repeat(self._frames),
            repeat(self._stride),
            later,
            repeat(()) if self._timed is None else self._all_offsets(shown, first_frames, later),
        )
        return list(map(PlannedClip._make, zip(*columns, strict=False)))

    def _all_offsets(
        self, videos: Sequence[int], first_frames: Sequence[int], later: Iterable[tuple[int, ...]]
    ) -> list[tuple[Offsets, ...]]:
        """`_offsets` for many clips, video by video, because the times of a video are read once."""
        asked = list(zip(videos, first_frames, later, strict=False))
        found: list[tuple[Offsets, ...]] = [()] * len(asked)
        for place in sorted(range(len(asked)), key=videos.__getitem__):
            found[place] = self._offsets(*asked[place])
        return found

    def _offsets(self, video: int, first_frame: int, later: Sequence[int]) -> tuple[Offsets, ...]:
        """The frames of each snippet of a clip, which are chosen by time."""
        timed = self._timed
        return () if timed is None else tuple(timed.offsets(video, frame) for frame in (first_frame, *later))

    def _later(self, index: int, attempt: int, video: int, offset: int) -> tuple[int, ...]:
        """The first frames of a clip's later snippets: each has the same offset in its part as the first snippet in its
        own."""
        del index, attempt
        begins = snippet_begins(int(self._whole[video]), self._snippets)[1:]
        return tuple((begins + int(self._first[video]) + int(offset)).tolist())


def even_snippets(row: VideoRow, clip: ClipSpec, first_frame: int) -> list[int]:
    """The first frames of a clip's later snippets: each has the same offset in its part as the first snippet in its
    own.

    Raises `ConfigError` if the first snippet is outside the first part.
    """
    first, places = places_in(row, clip)
    begins = snippet_begins(places, clip.snippets).tolist()
    offset, begin = first_frame - row.first_frame, first - row.first_frame
    end = begin + max(places // clip.snippets, 1)
    if clip.snippets > 1 and not begin <= offset < end:
        raise ConfigError(
            f"start={offset}: of {clip.snippets} snippets of {row.id}, the first begins at frames {begin} to {end - 1}",
            code="range",
        )
    return [first_frame + begin for begin in begins[1:]]


def places_in_part(lengths: NDArray[np.int64], clip: ClipSpec) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For videos of these lengths, the first start of a snippet inside the part of the video from which clips are
    drawn, and the number of such starts.

    A snippet longer than the part has one start: centred on the part, and within the video.
    """
    return within_part(np.zeros_like(lengths), lengths - 1, clip, clip.span)


def places_in(row: VideoRow, clip: ClipSpec) -> tuple[int, int]:
    """The first frame of a video at which a snippet can begin, and the number of such frames."""
    if clip.by_time:
        return places_of(row, clip)
    [begin], [places] = places_in_part(np.array([row.last_frame - row.first_frame + 1]), clip)
    return row.first_frame + int(begin), int(places)


def snippet_begins(places: int, snippets: int) -> NDArray[np.int64]:
    """The beginnings of the equal parts of a video with this many possible starts."""
    return np.arange(snippets) * places // snippets


def _runs(clips: Sequence[PlannedClip], owners: Sequence[int]) -> list[list[PlannedClip]]:
    """Consecutive clips, grouped by owner."""
    runs: list[list[PlannedClip]] = []
    last = -1
    for clip, owner in zip(clips, owners, strict=True):
        if owner == last:
            runs[-1].append(clip)
        else:
            runs.append([clip])
            last = owner
    return runs
