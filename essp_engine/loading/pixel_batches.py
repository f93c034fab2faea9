"""The batches of a loop that limits them in pixels: as many clips, in their order, as fit.

Where a batch ends follows from the plan and the sizes of the videos in the catalog, so it is known before any clip is
decoded, and is the same in each run and from each position at which a batch begins. Ranks take equally many clips in
each step: as many as fit into the limit of every rank. A clip that replaces one that cannot be decoded counts as the
one that was planned.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from essp_common.catalog.view import CatalogView
from essp_common.job.clip_spec import ClipSpec
from essp_common.messages.recipe import resize_of
from essp_engine.planning.phases import Phases
from essp_engine.planning.plan import plan_of
from essp_engine.planning.planned_clip import Plan
from essp_engine.video.geometry import output_size

_BLOCK = 1024
"""Clips of a rank that are planned together."""


class PixelBatches:
    """Where batches end. For a job with one phase an epoch, as the user's own loops have. Thread-safe."""

    def __init__(self, phases: Phases, pixels: int) -> None:
        """`pixels`: of a batch of each rank."""
        self._limit = pixels
        self._spec = phases.spec
        self._view = phases.view(0)
        self._purpose, _ = phases.order[0]
        self._clips = phases.plans[0].clips
        self._pixels = pixels_of_videos(self._view, self._spec.clip)
        self._plan = lru_cache(maxsize=2)(self._made_plan)
        self._block = lru_cache(maxsize=8)(self._made_block)
        self.count = lru_cache(maxsize=2)(self._count)
        """Batches of a whole epoch."""

    def stop(self, epoch: int, begin: int) -> int:
        """The clip after the last one of the batch that begins at clip `begin` of this rank's share of an epoch."""
        taken = np.zeros(self._spec.sampling.ranks, np.int64)
        place = begin
        while place < self._clips:
            rows = self._block(epoch, place // _BLOCK)[place % _BLOCK :]
            sums = taken + np.cumsum(rows, axis=0)
            beyond = (sums > self._limit).any(axis=1)
            if beyond.any():
                return max(begin + 1, place + int(beyond.argmax()))
            taken = sums[-1]
            place += len(rows)
        return self._clips

    def _count(self, epoch: int) -> int:
        batches = begin = 0
        while begin < self._clips:
            begin = self.stop(epoch, begin)
            batches += 1
        return batches

    def _made_plan(self, epoch: int) -> Plan:
        """The plan of all ranks together."""
        sampling = self._spec.sampling.model_copy(update={"ranks": 1, "rank": 0})
        return plan_of(self._view, self._spec.clip, sampling, self._purpose, epoch)

    def _made_block(self, epoch: int, block: int) -> NDArray[np.int64]:
        """`(clips, ranks)`: the pixels of the next clips of each rank; 0 where a rank has no more."""
        plan, ranks = self._plan(epoch), self._spec.sampling.ranks
        begin = block * _BLOCK
        stop = min(self._clips, begin + _BLOCK)
        found = np.zeros((stop - begin) * ranks, np.int64)
        for unit in plan.units(begin * ranks, min(stop * ranks, len(plan))):
            for clip in unit:
                found[clip.index - begin * ranks] = self._pixels[clip.video]
        return found.reshape(-1, ranks)


def pixels_of_videos(view: CatalogView, clip: ClipSpec) -> NDArray[np.int64]:
    """`(n,)`: the pixels of all frames of a clip of each video, or of all views of each event."""
    resize = resize_of(clip)
    heights, widths = (view.rows.numbers(name).astype(np.int64) for name in ("height", "width"))
    sizes, which = np.unique(heights << 32 | widths, return_inverse=True)
    made = (output_size(resize, size >> 32, size & 0xFFFFFFFF) for size in sizes.tolist())
    pixels: NDArray[np.int64] = np.array([clip.frames * height * width for height, width in made], np.int64)[which]
    return pixels + sum(view.frames * view.resize.height * view.resize.width for view in clip.further.values())
