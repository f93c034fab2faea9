"""Plans without chance: the segments of each video at even distances, for evaluation and for walks over all videos."""

from __future__ import annotations

from abc import abstractmethod
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from essp_common.catalog.table import CatalogView
from essp_common.job.spec import ClipSpec
from essp_common.planning.planned_clip import PlanBase, PlannedClip

T = TypeVar("T", int, NDArray[np.int64])


class _Even(PlanBase):
    """Segments at even distances: clip `j` of `k` starts in the middle of the j-th k-th of where it can start."""

    def __init__(self, view: CatalogView, clip: ClipSpec, segments: int, size: int, locality: int) -> None:
        super().__init__(view, clip, size, locality)
        self._segments = segments

    def _stretch(self, start: int, stop: int) -> list[PlannedClip]:
        indices = np.arange(max(start, 0), min(stop, self._size))
        videos, segments = self._places(indices)
        offsets = (2 * segments + 1) * self._starts[videos] // (2 * self._segments)
        return self._planned_all(indices.tolist(), videos, offsets)

    def clip(self, index: int, attempt: int = 0) -> PlannedClip:
        self._check(index)
        if attempt:
            raise LookupError("this plan takes each video in turn; none stands in for another")
        video, segment = self._places(index)
        return self._planned(index, 0, video, (2 * segment + 1) * int(self._starts[video]) // (2 * self._segments))

    @abstractmethod
    def _places(self, index: T) -> tuple[T, T]:
        """The video at an index, and which of its segments; or of many."""


class Uniform(_Even):
    def _places(self, index: T) -> tuple[T, T]:
        return index // self._segments, index % self._segments


class RoundRobin(_Even):
    def __init__(self, view: CatalogView, clip: ClipSpec, segments: int, size: int, epoch: int, locality: int) -> None:
        super().__init__(view, clip, segments, size, locality)
        self._start = epoch * size

    def _places(self, index: T) -> tuple[T, T]:
        turn = self._start + index
        return turn % len(self._first), turn // len(self._first) % self._segments
