"""How many frames a plan has decoded, and how many it would take to decode its clips one by one.

A clip costs the frames from the keyframe before it to its last one, as the catalog lists them; clips of one work unit
are read in one forward pass, so frames that several of them pass are decoded once. Both counts are those of the reader
(`video/reader.py`), but for frames that no other refers to: a codec may let it leave those out, in either case.

The clips counted are the first ones of an epoch, in whole windows. Draws are independent, so an epoch without end would
give about the same; nothing is read but the catalog.
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
"""Clips that are counted, at least: the ratio is then right to about a hundredth, and takes a tenth of a second."""


@dataclass(frozen=True, slots=True)
class DecodeCost:
    """Of a sample of a plan."""

    clips: int
    passes: int
    """Times that a video is read for them."""
    frames_alone: int
    """Frames decoded for these clips, each by itself."""
    frames: int
    """Frames decoded for them as the plan groups them."""

    @property
    def clips_per_pass(self) -> float:
        """How many clips each reading of a video makes."""
        return self.clips / self.passes

    @property
    def times_less(self) -> float:
        """How many times fewer frames are decoded than clip by clip."""
        return self.frames_alone / self.frames


def decode_cost(plan: Plan, view: CatalogView, window: int, unit_clips: int) -> DecodeCost:
    """What the first clips of a plan cost. `window`: indices within which clips are issued together; 0: none are.
    `unit_clips`: most clips of one work unit."""
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
    """The frames [begin, end) that each snippet of each clip is decoded from."""
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
    """Frames that lie in any of the spans."""
    frames = reached = 0
    for begin, end in sorted(spans):
        frames += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return frames
