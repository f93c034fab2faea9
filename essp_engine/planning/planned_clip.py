"""What a plan is: the clip at each index, and the order in which clips are issued."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from essp_common.catalog.rows import VideoRow
from essp_common.catalog.view import CatalogView
from essp_common.errors import ConfigError
from essp_common.job.clip_spec import ClipSpec

WHOLE = (0.0, 1.0)
"""The part of a video that is all of it."""


class PlannedClip(NamedTuple):
    """What is at one index of a plan."""

    index: int  # type: ignore[assignment]  # hides a method of tuples that no clip needs
    attempt: int
    class_id: int
    video: int
    """Position in the plan's `CatalogView`."""
    first_frame: int
    frame_count: int
    stride: int
    later: tuple[int, ...] = ()
    """The first frame of each of its snippets but the first."""


class Plan(Protocol):
    """The clips of one phase."""

    def __len__(self) -> int: ...

    def clip(self, index: int, attempt: int = 0) -> PlannedClip:
        """The clip at `index`; `attempt` > 0 gives the n-th replacement, of the same class. O(1).

        Raises `IndexError` outside the plan, and `LookupError` when there is no replacement.
        """

    def units(self, start: int, stop: int) -> Sequence[Sequence[PlannedClip]]:
        """The clips `start..stop` in the order of issue, grouped into work units of one video each.

        Without locality that is the order of the indices, and a unit is a run of one video. With a window of W,
        clips of one video within indices [kW, (k+1)W) make one unit. The clip at an index is the same either way,
        and consumers still take clips in index order, so W clips have to fit the job's budget. Where each video is a
        record, its file takes the place of the video.
        """


class PlanBase(ABC):
    """What all plans share: the geometry of the clips, bounds, and the order of issue."""

    def __init__(self, view: CatalogView, clip: ClipSpec, size: int, locality: int) -> None:
        if not len(view):
            raise ConfigError(
                "the plan has no usable video to draw from; `essp catalog show --problems` says why", code="empty"
            )
        self._size = size
        self._frames = clip.frames
        self._stride = clip.stride
        self._snippets = clip.snippets
        self._locality = locality
        self._class_id = view.class_id
        self._first, self._whole = view.first_frame, view.starts(clip.span)
        """Of each video, the first place where a snippet can start, and how many there are."""
        if clip.part != WHOLE:
            offsets, self._whole = places_in_part(view.length.astype(np.int64), clip)
            self._first = self._first.astype(np.int64) + offsets
        self._starts = self._whole if clip.snippets == 1 else np.maximum(self._whole // clip.snippets, 1)
        """At how many of them the first snippet of a clip can: those of the first of the equal parts."""
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
        return PlannedClip(index, attempt, class_id, video, first_frame, self._frames, self._stride, later)

    def _planned_all(
        self, indices: Iterable[int], videos: NDArray[np.int64], offsets: NDArray[np.int64]
    ) -> list[PlannedClip]:
        """The same for many, none of them a replacement."""
        columns = (
            indices,
            repeat(0),
            self._class_id[videos].tolist(),
            videos.tolist(),
            (self._first[videos] + offsets).tolist(),
            repeat(self._frames),
            repeat(self._stride),
            repeat(()) if self._snippets == 1 else map(self._later, indices, repeat(0), videos.tolist(), offsets),
        )
        return list(map(PlannedClip._make, zip(*columns, strict=False)))

    def _later(self, index: int, attempt: int, video: int, offset: int) -> tuple[int, ...]:
        """The first frames of a clip's snippets but the first: in each part where the first is in its own."""
        del index, attempt
        begins = snippet_begins(int(self._whole[video]), self._snippets)[1:]
        return tuple((begins + int(self._first[video]) + int(offset)).tolist())


def even_snippets(row: VideoRow, clip: ClipSpec, first_frame: int) -> list[int]:
    """The first frames of a clip's snippets but the first: in each part of the video where the first is in its own.

    Raises `ConfigError` if the first is in another part.
    """
    [begin], [places] = places_in_part(np.array([row.last_frame - row.first_frame + 1]), clip)
    begins = snippet_begins(int(places), clip.snippets).tolist()
    offset, end = first_frame - row.first_frame, int(begin) + max(int(places) // clip.snippets, 1)
    if clip.snippets > 1 and not begin <= offset < end:
        raise ConfigError(
            f"start={offset}: of {clip.snippets} snippets of {row.id}, the first begins at frames {begin} to {end - 1}",
            code="range",
        )
    return [first_frame + begin for begin in begins[1:]]


def places_in_part(lengths: NDArray[np.int64], clip: ClipSpec) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of videos of these lengths, the first place where a snippet can start so that it lies in the part of the video
    that clips are from, and how many such places there are.

    A snippet that is longer than the part has one place: over the middle of the part, and within the video.
    """
    begin = np.floor(lengths * clip.part[0]).astype(np.int64)
    end = np.ceil(lengths * clip.part[1]).astype(np.int64)
    over = np.clip((begin + end - clip.span) // 2, 0, np.maximum(lengths - clip.span, 0))
    return np.where(end - begin >= clip.span, begin, over), np.maximum(end - begin - clip.span, 0) + 1


def snippet_begins(places: int, snippets: int) -> NDArray[np.int64]:
    """Where the equal parts of a video begin in which a snippet can start at so many places."""
    return np.arange(snippets) * places // snippets


def _runs(clips: Sequence[PlannedClip], owners: Sequence[int]) -> list[list[PlannedClip]]:
    """Clips that follow one another, by what they are of."""
    runs: list[list[PlannedClip]] = []
    last = -1
    for clip, owner in zip(clips, owners, strict=True):
        if owner == last:
            runs[-1].append(clip)
        else:
            runs.append([clip])
            last = owner
    return runs
