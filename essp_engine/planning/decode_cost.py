"""Estimates how many frames a plan decodes, and how many decoding its clips one by one would take.

A clip costs the frames from the preceding keyframe to its last frame, according to the catalog. Clips of one work unit
are read in one forward pass, so frames that several of them need are decoded once. Both counts match the reader
(`video/reader.py`), except for frames that no other frame refers to, which a codec may skip in either case.

The counted clips are the first ones of an epoch, in whole windows. Draws are independent, so a longer sample would give
about the same. Only the catalog is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise

import numpy as np

from essp_common.catalog.view import CatalogView
from essp_engine.planning.planned_clip import Plan, PlannedClip
from essp_engine.planning.work_units import units_of, worth_a_seek

_SAMPLE = 4096
"""Minimum number of counted clips: the ratio is then accurate to about 1 %, and takes a tenth of a second."""


@dataclass(frozen=True, slots=True)
class DecodeCost:
    """The cost of a sample of a plan."""

    clips: int
    passes: int
    """Number of times that a video is read for them."""
    frames_alone: int
    """Frames decoded if each clip is decoded separately."""
    frames: int
    """Frames decoded with the plan's grouping."""

    @property
    def clips_per_pass(self) -> float:
        """Average number of clips from each reading of a video."""
        return self.clips / self.passes

    @property
    def times_less(self) -> float:
        """The factor by which fewer frames are decoded than clip by clip."""
        return self.frames_alone / self.frames


def decode_cost(plan: Plan, view: CatalogView, window: int, unit_clips: int) -> DecodeCost:
    """The cost of the first clips of a plan. `window`: indices within which clips are issued together; 0: off.
    `unit_clips`: the most clips of one work unit."""
    whole = max(window, 1)
    stop = min(len(plan), whole * max(1, _SAMPLE // whole))
    units = [part for unit in plan.units(0, stop) for part in units_of(unit, unit_clips, together=bool(window))]
    clips = list(chain.from_iterable(units))
    spans = iter(_spans(clips, view))
    passes = [[_read(clip, list(islice(spans, len(_parts(clip))))) for clip in unit] for unit in units]
    alone = sum(_covered(clip) for spans in passes for clip in spans)
    together = sum(_covered(chain.from_iterable(spans)) for spans in passes)
    return DecodeCost(len(clips), len(passes), alone, together)


def _spans(clips: Sequence[PlannedClip], view: CatalogView) -> list[tuple[int, int]]:
    """The frames [begin, end) that are decoded for each part of each clip."""
    parts = [(clip.video, *part) for clip in clips for part in _parts(clip)]
    videos, first, reach = np.array(parts, np.int64).T
    first = np.minimum(first, view.rows.where(videos).numbers("last_frame"))
    places = view.keyframe_before(videos, first)
    begins = np.zeros(len(parts), np.int64)
    begins[places >= 0] = view.keyframes("keyframe_frame")[places[places >= 0]]
    last = np.minimum(first + reach, view.rows.where(videos).numbers("last_frame"))
    return list(zip(begins.tolist(), (last + 1).tolist(), strict=True))


def _parts(clip: PlannedClip) -> list[tuple[int, int]]:
    """The parts of a clip that are decoded from a keyframe each: first frame, and frames from there to the last one.

    Frames chosen by time may be far apart, and groups of pictures between them are skipped.
    """
    begins = (clip.first_frame, *clip.later)
    if not clip.offsets:
        return [(first, clip.reach) for first in begins]
    return [(first + frame, 0) for first, frames in zip(begins, clip.offsets, strict=True) for frame in frames]


def _read(clip: PlannedClip, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The spans of a clip as they are read: within a snippet, on to a keyframe that is not worth a seek."""
    if not clip.offsets:
        return spans
    joined = [spans[0]]
    for number, ((_, reached), (begin, end)) in enumerate(pairwise(spans), 1):
        sought = not number % len(clip.offsets[0]) or worth_a_seek(reached - 1, begin)
        joined.append((begin if sought else min(begin, reached), end))
    return joined


def _covered(spans: Iterable[tuple[int, int]]) -> int:
    """The number of frames covered by any of the spans."""
    frames = reached = 0
    for begin, end in sorted(spans):
        frames += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return frames
