"""Plans: the clip at each index, as a pure function of (seed, purpose, epoch, index).

Random numbers are counter-based (`counter_rng.py`), so any index of any epoch costs O(1), and the result does not
depend on which process asks, how often, or in which order.

    ClassBalanced   class, then video, then offset, all uniform at random: training
    Pooled          the same, but each drawn video gives several clips, mixed within a window: training
    Exhaustive      every place of every video, visits of neighbouring places mixed within a window: training
    RoundRobin      every video in turn, its next segment at each turn: training without randomness
    Uniform         every video's segments evenly spaced, in time order: validation, test, prediction
    Dense           the same, with the number of segments depending on the video's length: prediction
    Regular         segments at a fixed distance from the beginning of each video: features of videos

A `locality` window changes only the order of issue, never the clip at an index: see `Plan.units`.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from essp_common.catalog.rows import VideoRow
from essp_common.catalog.view import CatalogView
from essp_common.job.clip_spec import ClipSpec
from essp_common.job.data_spec import SamplingSpec
from essp_common.pb.v1.messages_pb2 import TRAIN, Purpose, Seek
from essp_engine.planning.class_balanced import ClassBalanced
from essp_engine.planning.even import Dense, Regular, RoundRobin, Uniform
from essp_engine.planning.exhaustive import Exhaustive
from essp_engine.planning.planned_clip import Plan
from essp_engine.planning.pooled import Pooled
from essp_engine.planning.share import Share


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
    if purpose != TRAIN:
        return _even_plan(view, clip, sampling, exact)
    size = sampling.clips_per_epoch or len(view)
    seed, per_visit, window = sampling.seed, sampling.clips_per_visit, sampling.window
    match sampling.kind:
        case "uniform":
            return RoundRobin(view, clip, sampling.clips_per_video, size, epoch, sampling.issue_window)
        case "pooled":
            return Pooled(view, clip, size, seed, purpose, epoch, per_visit, window, sampling.mix)
        case "exhaustive":
            wanted, step = sampling.clips_per_epoch, sampling.step
            return Exhaustive(view, clip, wanted, seed, purpose, epoch, step, per_visit, window)
        case "class_balanced":
            return ClassBalanced(view, clip, size, seed, purpose, epoch, sampling.issue_window, sampling.mix)


def _even_plan(view: CatalogView, clip: ClipSpec, sampling: SamplingSpec, exact: bool) -> Plan:
    every_s, every_frames, locality = sampling.every_s, sampling.every_frames, sampling.issue_window
    if every_frames is not None:
        return Regular(view, clip, every_frames=every_frames, locality=locality)
    if every_s is None:
        return Uniform(view, clip, sampling.clips_per_video, locality)
    return Regular(view, clip, every_s=every_s, locality=locality) if exact else Dense(view, clip, every_s, locality)


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
