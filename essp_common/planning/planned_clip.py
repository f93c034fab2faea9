"""What a plan is: the clip at each index, and the order in which clips are issued."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from essp_common.catalog.table import CatalogView, VideoRow
from essp_common.errors import ConfigError
from essp_common.job.spec import ClipSpec


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
            raise ConfigError("the plan has no usable video to draw from; `essp catalog show --problems` says why")
        self._size = size
        self._frames = clip.frames
        self._stride = clip.stride
        self._snippets = clip.snippets
        self._locality = locality
        self._class_id, self._first, self._whole = view.class_id, view.first_frame, view.starts(clip.span)
        """`_whole`: of each video, at how many places a snippet can start."""
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
    places = max(row.last_frame - row.first_frame + 1 - clip.span, 0) + 1
    begins = snippet_begins(places, clip.snippets).tolist()
    offset, width = first_frame - row.first_frame, max(places // clip.snippets, 1)
    if clip.snippets > 1 and offset >= width:
        raise ConfigError(
            f"start={offset}: of {clip.snippets} snippets of {row.id}, the first begins before frame {width}"
        )
    return [first_frame + begin for begin in begins[1:]]


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
