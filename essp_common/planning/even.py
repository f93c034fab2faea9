"""Plans without chance: the segments of each video at even distances, for evaluation and for walks over all videos."""

from __future__ import annotations

from essp_common.catalog.table import CatalogView
from essp_common.job.spec import ClipSpec
from essp_common.planning.planned_clip import PlanBase, PlannedClip


class _Even(PlanBase):
    """Segments at even distances: clip `j` of `k` starts in the middle of the j-th k-th of where it can start."""

    def __init__(self, view: CatalogView, clip: ClipSpec, segments: int, size: int, locality: int) -> None:
        super().__init__(view, clip, size, locality)
        self._segments = segments

    def _segment(self, index: int, attempt: int, video: int, segment: int) -> PlannedClip:
        if attempt:
            raise LookupError("this plan takes each video in turn; none stands in for another")
        offset = (2 * segment + 1) * self._starts[video] // (2 * self._segments)
        return self._planned(index, attempt, video, offset)


class Uniform(_Even):
    def clip(self, index: int, attempt: int = 0) -> PlannedClip:
        self._check(index)
        video, segment = divmod(index, self._segments)
        return self._segment(index, attempt, video, segment)


class RoundRobin(_Even):
    def __init__(self, view: CatalogView, clip: ClipSpec, segments: int, size: int, epoch: int, locality: int) -> None:
        super().__init__(view, clip, segments, size, locality)
        self._start = epoch * size

    def clip(self, index: int, attempt: int = 0) -> PlannedClip:
        self._check(index)
        turn, video = divmod(self._start + index, len(self._first))
        return self._segment(index, attempt, video, turn % self._segments)
