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
from itertools import chain, islice

import numpy as np

from essp_common.catalog.view import CatalogView
from essp_engine.planning.planned_clip import Plan, PlannedClip
from essp_engine.planning.work_units import units_of

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
    snippets = 1 + len(clips[0].later)
    spans = iter(_spans(clips, view))
    passes = [[list(islice(spans, snippets)) for _ in unit] for unit in units]
    alone = sum(_covered(clip) for spans in passes for clip in spans)
    together = sum(_covered(chain.from_iterable(spans)) for spans in passes)
    return DecodeCost(len(clips), len(passes), alone, together)


def _spans(clips: Sequence[PlannedClip], view: CatalogView) -> list[tuple[int, int]]:
    """The frames [begin, end) that are decoded for each snippet of each clip."""
    parts = [(clip, first) for clip in clips for first in (clip.first_frame, *clip.later)]
    videos = np.array([clip.video for clip, _ in parts])
    first = np.array([first for _, first in parts])
    reach = np.array([(clip.frame_count // (1 + len(clip.later)) - 1) * clip.stride for clip, _ in parts])
    places = view.keyframe_before(videos, first)
    begins = np.zeros(len(parts), np.int64)
    begins[places >= 0] = view.keyframes("keyframe_frame")[places[places >= 0]]
    last = np.minimum(first + reach, view.rows.where(videos).numbers("last_frame"))
    return list(zip(begins.tolist(), (last + 1).tolist(), strict=True))


def _covered(spans: Iterable[tuple[int, int]]) -> int:
    """The number of frames covered by any of the spans."""
    frames = reached = 0
    for begin, end in sorted(spans):
        frames += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return frames
