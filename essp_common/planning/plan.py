"""Plans: which clip is at an index, as a pure function of (seed, purpose, epoch, index).

Random numbers are counter-based (`counter_rng.py`), so any index of any epoch costs O(1), and nothing depends on who
asks, how often, or in which order.

    class_balanced   class, then video, then offset, all uniform at random: training
    round_robin      every video in turn, its next segment at each turn: training without chance
    uniform          every video's segments at even distances, in time order: validation, test, prediction

A `locality` window changes the order of issue only, never what is at an index: see `Plan.units`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import repeat
from typing import NamedTuple, Protocol

import numpy as np

from essp_common.catalog.table import CatalogView, VideoRow
from essp_common.errors import ConfigError
from essp_common.job.spec import ClipSpec, SamplingSpec
from essp_common.pb.v1.messages_pb2 import TRAIN, Purpose, Seek
from essp_common.planning.counter_rng import CounterRng, below, below_each

_AHEAD = 1024
"""Clips that are drawn at once: few draws cost as much as many."""


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
        and consumers still take clips in index order, so W clips have to fit the job's budget.
        """


class _Base(ABC):
    """What all plans share: the geometry of the clips, bounds, and the order of issue."""

    def __init__(self, view: CatalogView, clip: ClipSpec, size: int, locality: int) -> None:
        if not len(view):
            raise ConfigError("the plan has no usable video to draw from; `essp catalog show --problems` says why")
        span = (clip.frames - 1) * clip.stride + 1
        self._size = size
        self._frames = clip.frames
        self._stride = clip.stride
        self._locality = locality
        self._class_id: list[int] = view.class_id.tolist()
        self._first: list[int] = view.first_frame.tolist()
        # How many places a clip can start at; one for a video shorter than a clip, whose last frame is repeated.
        self._starts: list[int] = np.maximum(view.length - span + 1, 1).tolist()

    def __len__(self) -> int:
        return self._size

    @abstractmethod
    def clip(self, index: int, attempt: int = 0) -> PlannedClip:
        """See `Plan.clip`."""

    def units(self, start: int, stop: int) -> list[list[PlannedClip]]:
        """See `Plan.units`."""
        clips = self._stretch(start, stop)
        if not self._locality:
            return _runs(clips)
        windows: dict[tuple[int, int], list[PlannedClip]] = {}
        for clip in clips:
            windows.setdefault((clip.index // self._locality, clip.video), []).append(clip)
        return list(windows.values())

    def _stretch(self, start: int, stop: int) -> list[PlannedClip]:
        """The clips `start..stop`."""
        return [self.clip(index) for index in range(start, stop)]

    def _check(self, index: int) -> None:
        if not 0 <= index < self._size:
            raise IndexError(f"the plan has clips 0..{self._size - 1}, not {index}")

    def _planned(self, index: int, attempt: int, video: int, offset: int) -> PlannedClip:
        first_frame = self._first[video] + offset
        return PlannedClip(index, attempt, self._class_id[video], video, first_frame, self._frames, self._stride)


class _ClassBalanced(_Base):
    def __init__(self, view: CatalogView, clip: ClipSpec, size: int, rng: CounterRng, locality: int) -> None:
        super().__init__(view, clip, size, locality)
        self._rng = rng
        # A class without videos could never be drawn from; `empty_classes` names those.
        self._videos: list[list[int]] = [videos.tolist() for videos in view.by_class if len(videos)]
        self._names = [name for name, videos in zip(view.classes, view.by_class, strict=True) if len(videos)]
        # The same as arrays, for whole stretches: how many videos each class has, and all of them class by class.
        self._places = np.array([len(videos) for videos in self._videos], np.uint64)
        self._class_begin = np.cumsum(self._places) - self._places
        self._by_class = np.concatenate([np.array(videos, np.int64) for videos in self._videos])
        self._starts_of = np.array(self._starts, np.uint64)
        self._class_of, self._first_of = view.class_id, view.first_frame
        self._block: Callable[[int], list[PlannedClip]] = lru_cache(maxsize=2)(self._draw)

    def clip(self, index: int, attempt: int = 0) -> PlannedClip:
        self._check(index)
        words = self._rng.words(index)
        drawn = below(words, len(self._videos))
        videos = self._videos[drawn]
        place = below(words, len(videos))
        if attempt:
            place, words = self._replacement(index, attempt, drawn, place)
        video = videos[place]
        return self._planned(index, attempt, video, below(words, self._starts[video]))

    def _stretch(self, start: int, stop: int) -> list[PlannedClip]:
        clips: list[PlannedClip] = []
        while start < stop:
            block, place = divmod(start, _AHEAD)
            end = min(stop, (block + 1) * _AHEAD)
            clips += self._block(block)[place : place + end - start]
            start = end
        return clips

    def _draw(self, block: int) -> list[PlannedClip]:
        start, stop = block * _AHEAD, min(self._size, (block + 1) * _AHEAD)
        words = self._rng.table(start, stop)
        classes = np.full(stop - start, len(self._videos), np.uint64)
        drawn, refused = below_each(words[:, 0], classes)
        place, more = below_each(words[:, 1], self._places[drawn])
        videos = self._by_class[self._class_begin[drawn].astype(np.int64) + place]
        offset, most = below_each(words[:, 2], self._starts_of[videos])
        columns = (
            range(start, stop),
            repeat(0),
            self._class_of[videos].tolist(),
            videos.tolist(),
            (self._first_of[videos] + offset).tolist(),
            repeat(self._frames),
            repeat(self._stride),
        )
        clips = list(map(PlannedClip._make, zip(*columns, strict=False)))
        for i in np.flatnonzero(refused | more | most).tolist():
            clips[i] = self.clip(start + i)
        return clips

    def _replacement(self, index: int, attempt: int, drawn: int, place: int) -> tuple[int, Iterator[int]]:
        """The place, within its class, of a video that no earlier attempt at this index took; the words left."""
        places = len(self._videos[drawn])
        if attempt >= places:
            raise LookupError(f"class {self._names[drawn]!r} has no other video ({places} in all)")
        taken = [place]
        for number in range(1, attempt + 1):
            words = self._rng.words(index, number)
            place = below(words, places - number)
            for other in sorted(taken):
                place += place >= other
            taken.append(place)
        return place, words


class _Even(_Base):
    """Segments at even distances: clip `j` of `k` starts in the middle of the j-th k-th of where it can start."""

    def __init__(self, view: CatalogView, clip: ClipSpec, segments: int, size: int, locality: int) -> None:
        super().__init__(view, clip, size, locality)
        self._segments = segments

    def _segment(self, index: int, attempt: int, video: int, segment: int) -> PlannedClip:
        if attempt:
            raise LookupError("this plan takes each video in turn; none stands in for another")
        offset = (2 * segment + 1) * self._starts[video] // (2 * self._segments)
        return self._planned(index, attempt, video, offset)


class _Uniform(_Even):
    def clip(self, index: int, attempt: int = 0) -> PlannedClip:
        self._check(index)
        video, segment = divmod(index, self._segments)
        return self._segment(index, attempt, video, segment)


class _RoundRobin(_Even):
    def __init__(self, view: CatalogView, clip: ClipSpec, segments: int, size: int, epoch: int, locality: int) -> None:
        super().__init__(view, clip, segments, size, locality)
        self._start = epoch * size

    def clip(self, index: int, attempt: int = 0) -> PlannedClip:
        self._check(index)
        turn, video = divmod(self._start + index, len(self._first))
        return self._segment(index, attempt, video, turn % self._segments)


def class_balanced(
    view: CatalogView, clip: ClipSpec, size: int, seed: int, purpose: Purpose, epoch: int, locality: int = 0
) -> Plan:
    """`size` clips, each of a class, then a video of it, then a place in the video, all drawn uniformly.

    Classes without a usable video are left out (`empty_classes`). The n-th replacement at an index is a video of the
    same class that none of the attempts before it took.
    """
    return _ClassBalanced(view, clip, size, CounterRng(seed, purpose << 32 | epoch), locality)


def round_robin(
    view: CatalogView, clip: ClipSpec, clips_per_video: int, size: int, epoch: int, locality: int = 0
) -> Plan:
    """`size` clips of the videos in turn, each turn at the next of `clips_per_video` segments.

    An epoch goes on where the one before it stopped. No replacements: other videos have their own turn.
    """
    return _RoundRobin(view, clip, clips_per_video, size, epoch, locality)


def uniform(view: CatalogView, clip: ClipSpec, clips_per_video: int, locality: int = 0) -> Plan:
    """`clips_per_video` clips of each video at even distances, video by video, in time order. No replacements."""
    return _Uniform(view, clip, clips_per_video, len(view) * clips_per_video, locality)


def plan_of(view: CatalogView, clip: ClipSpec, sampling: SamplingSpec, purpose: Purpose, epoch: int) -> Plan:
    """The plan of one phase of a job over the videos it draws from."""
    if purpose != TRAIN:
        return uniform(view, clip, sampling.clips_per_video, sampling.locality)
    size = sampling.clips_per_epoch or len(view)
    if sampling.kind == "uniform":
        return round_robin(view, clip, sampling.clips_per_video, size, epoch, sampling.locality)
    return class_balanced(view, clip, size, sampling.seed, purpose, epoch, sampling.locality)


def empty_classes(view: CatalogView) -> tuple[str, ...]:
    """Classes that no video of the view can be drawn for: worth a warning before training."""
    return tuple(name for name, videos in zip(view.classes, view.by_class, strict=True) if not len(videos))


def seek_to(row: VideoRow, first_frame: int, seek: Seek) -> bool:
    """Write into `seek` where decoding has to begin for `first_frame`: the last keyframe at or before it.

    False: at the file's start; then nothing is written.
    """
    place = bisect_right(row.keyframe_frame, first_frame) - 1 if row.seekable else -1
    if place < 0:
        return False
    frames, offsets = row.keyframe_frame, row.keyframe_offset
    seek.pts = row.keyframe_pts[place]
    seek.frame_index = frames[place]
    seek.byte_offset = offsets[place] if offsets[place] > 0 else 0
    place += 1
    if place < len(frames):
        seek.next_frame = frames[place]
        seek.next_offset = offsets[place] if offsets[place] > 0 else 0
    else:
        seek.next_frame, seek.next_offset = row.frame_count, row.size_bytes
    return True


def _runs(clips: Sequence[PlannedClip]) -> list[list[PlannedClip]]:
    """Clips that follow one another, by video."""
    runs: list[list[PlannedClip]] = []
    video = -1
    for clip in clips:
        if clip.video == video:
            runs[-1].append(clip)
        else:
            runs.append([clip])
            video = clip.video
    return runs
