"""Plans: the clip at each index, as a pure function of (seed, purpose, epoch, index).

Random numbers are counter-based (`counter_rng.py`), so any index of any epoch costs O(1), and the result does not
depend on which process asks, how often, or in which order.

    class_balanced   class, then video, then offset, all uniform at random: training
    pooled           the same, but each drawn video gives several clips, mixed within a window: training
    exhaustive       every place of every video, visits of neighbouring places mixed within a window: training
    round_robin      every video in turn, its next segment at each turn: training without randomness
    uniform          every video's segments evenly spaced, in time order: validation, test, prediction
    dense            the same, with the number of segments depending on the video's length: prediction
    regular          segments at a fixed distance from the beginning of each video: features of videos

A `locality` window changes only the order of issue, never the clip at an index: see `Plan.units`.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from essp_common.catalog.rows import VideoRow
from essp_common.catalog.view import CatalogView
from essp_common.job.clip_spec import ClipSpec
from essp_common.job.data_spec import MixSpec, SamplingSpec
from essp_common.pb.v1.messages_pb2 import TRAIN, Purpose, Seek
from essp_engine.planning.class_balanced import ClassBalanced
from essp_engine.planning.even import Dense, Regular, RoundRobin, Uniform, frames_of
from essp_engine.planning.exhaustive import Exhaustive
from essp_engine.planning.planned_clip import Plan
from essp_engine.planning.pooled import Pooled
from essp_engine.planning.share import Share


def class_balanced(
    view: CatalogView,
    clip: ClipSpec,
    size: int,
    seed: int,
    purpose: Purpose,
    epoch: int,
    locality: int = 0,
    mix: MixSpec | None = None,
) -> Plan:
    """`size` clips: for each a class, then a video of it, then a place in the video, all drawn uniformly.

    With a `mix`, the source of the video is drawn first, by its share. Classes without a usable video are left out
    (`empty_classes`). The n-th replacement at an index is a video of the same class, and source, that no earlier
    attempt took. Raises `ConfigError` if the mix does not fit the videos.
    """
    return ClassBalanced(view, clip, size, seed, _stream(purpose, epoch), locality, mix)


def pooled(
    view: CatalogView,
    clip: ClipSpec,
    size: int,
    seed: int,
    purpose: Purpose,
    epoch: int,
    clips_per_visit: int,
    window: int,
    mix: MixSpec | None = None,
) -> Plan:
    """`size` clips, `clips_per_visit` of each drawn video, mixed within windows of `window` indices.

    With one clip per visit this is `class_balanced`. Raises `ConfigError` unless `clips_per_visit` divides `window`,
    and if the mix does not fit the videos.
    """
    return Pooled(view, clip, size, seed, _stream(purpose, epoch), clips_per_visit, window, mix)


def exhaustive(
    view: CatalogView,
    clip: ClipSpec,
    size: int | None,
    seed: int,
    purpose: Purpose,
    epoch: int,
    step: int,
    clips_per_visit: int,
    window: int,
) -> Plan:
    """Clips at every `step`-th place of every video, each once in `size` clips (default: one for each place).

    `clips_per_visit` neighbouring ones are issued together, and mixed with others within `window` indices. There are no
    replacements, because each place has its own turn. Raises `ConfigError` unless `clips_per_visit` divides `window`,
    and if there are more places than an epoch may have clips.
    """
    return Exhaustive(view, clip, size, seed, purpose, epoch, step, clips_per_visit, window)


def round_robin(
    view: CatalogView, clip: ClipSpec, clips_per_video: int, size: int, epoch: int, locality: int = 0
) -> Plan:
    """`size` clips of the videos in turn, each turn at the next of `clips_per_video` segments.

    An epoch continues where the previous one stopped. There are no replacements, because other videos have their own
    turn.
    """
    return RoundRobin(view, clip, clips_per_video, size, epoch, locality)


def uniform(view: CatalogView, clip: ClipSpec, clips_per_video: int, locality: int = 0) -> Plan:
    """`clips_per_video` evenly spaced clips of each video, video by video, in time order. There are no replacements."""
    return Uniform(view, clip, clips_per_video, len(view) * clips_per_video, locality)


def dense(view: CatalogView, clip: ClipSpec, every_s: float, locality: int = 0) -> Plan:
    """Evenly spaced clips at most `every_s` seconds apart, video by video, in time order. There are no replacements.

    Raises `ConfigError` for more clips than a job may have.
    """
    return Dense(view, clip, every_s, locality)


def regular(
    view: CatalogView, clip: ClipSpec, *, every_s: float | None = None, every_frames: int = 1, locality: int = 0
) -> Plan:
    """Clips that start `every_frames` frames, or `every_s` seconds, apart, from the beginning of each video as far as
    they fit, video by video, in time order; at least one of each. There are no replacements.

    Seconds are counted in frames of the video's mean rate. Raises `ConfigError` for more clips than a job may have.
    """
    if every_s is None:
        return Regular(view, clip, every_frames, locality, "sampling.every_frames")
    return Regular(view, clip, frames_of(view, every_s), locality, "sampling.every_s")


def plan_of(
    view: CatalogView, clip: ClipSpec, sampling: SamplingSpec, purpose: Purpose, epoch: int, exact: bool = False
) -> Plan:
    """The plan of one phase of a job over its videos; for a job that is one of several ranks, only that rank's
    share.

    `exact`: with `sampling.every_s`, clips are exactly that far apart, instead of evenly spaced and at most so far.
    """
    whole = _whole_plan(view, clip, sampling, purpose, epoch, exact)
    return whole if sampling.ranks == 1 else Share(whole, sampling.rank, sampling.ranks, equal=purpose == TRAIN)


def _whole_plan(
    view: CatalogView, clip: ClipSpec, sampling: SamplingSpec, purpose: Purpose, epoch: int, exact: bool
) -> Plan:
    if purpose != TRAIN and sampling.every_frames is not None:
        return regular(view, clip, every_frames=sampling.every_frames, locality=sampling.issue_window)
    if purpose != TRAIN and sampling.every_s is not None and exact:
        return regular(view, clip, every_s=sampling.every_s, locality=sampling.issue_window)
    if purpose != TRAIN and sampling.every_s is not None:
        return dense(view, clip, sampling.every_s, sampling.issue_window)
    if purpose != TRAIN:
        return uniform(view, clip, sampling.clips_per_video, sampling.issue_window)
    size = sampling.clips_per_epoch or len(view)
    per_visit, window = sampling.clips_per_visit, sampling.window
    match sampling.kind:
        case "uniform":
            return round_robin(view, clip, sampling.clips_per_video, size, epoch, sampling.issue_window)
        case "pooled":
            return pooled(view, clip, size, sampling.seed, purpose, epoch, per_visit, window, sampling.mix)
        case "exhaustive":
            wanted, seed, step = sampling.clips_per_epoch, sampling.seed, sampling.step
            return exhaustive(view, clip, wanted, seed, purpose, epoch, step, per_visit, window)
        case "class_balanced":
            seed, locality = sampling.seed, sampling.issue_window
            return class_balanced(view, clip, size, seed, purpose, epoch, locality, sampling.mix)


def empty_classes(view: CatalogView) -> tuple[str, ...]:
    """Classes without a video in the view, which cannot be drawn: worth a warning before training."""
    return tuple(view.classes[class_id] for class_id in np.flatnonzero(np.diff(view.class_begin) == 0).tolist())


def seek_to(row: VideoRow, first_frame: int, seek: Seek) -> bool:
    """Write into `seek` where decoding must begin for `first_frame`: the last keyframe at or before it.

    Returns False if decoding must begin at the start of the file; then nothing is written.
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


def _stream(purpose: Purpose, epoch: int) -> int:
    """The random stream of one phase."""
    return purpose << 32 | epoch
