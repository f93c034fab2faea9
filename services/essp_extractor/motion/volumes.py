"""Space-time volumes, their cells, and the grid of volumes that `hog`, `hof` and `mbh` describe.

Size and cells are from Wang et al., "Action Recognition by Dense Trajectories" (CVPR 2011), section 3: 32x32 pixels by
15 frames, divided into 2x2x3 cells. The grid is the dense sampling of Wang et al., "Evaluation of Local Spatio-Temporal
Features for Action Recognition" (BMVC 2009): volumes of one size with 50 % overlap, over the whole picture.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from essp_common.errors import ConfigError
from essp_extractor.motion.orientation import Planes, cell_sums, cells_at, unit_length


@dataclass(frozen=True, slots=True)
class Volume:
    """`side` by `side` pixels by `length` frames, in `cells` by `cells` by `time_cells` equal cells.

    Raises `ConfigError` for sizes that do not divide into the cells.
    """

    feature: str
    """Name of the feature, for error messages."""
    side: int
    length: int
    cells: int
    time_cells: int

    def __post_init__(self) -> None:
        if self.side % self.cells:
            raise ConfigError(
                f"{self.feature}: side {self.side} does not divide into {self.cells} cells", code="conflict"
            )
        if self.length % self.time_cells:
            raise ConfigError(
                f"{self.feature}: length {self.length} does not divide into {self.time_cells} time_cells",
                code="conflict",
            )

    @property
    def cell_side(self) -> int:
        """Side of a cell in pixels."""
        return self.side // self.cells

    @property
    def cell_length(self) -> int:
        """Length of a cell in frames."""
        return self.length // self.time_cells

    def dimensions(self, bins: int) -> int:
        """Length of a descriptor with this many bins per cell."""
        return self.time_cells * self.cells * self.cells * bins


@dataclass(frozen=True, slots=True)
class VolumeGrid:
    """Volumes `stride` pixels apart, centred in the picture.

    A picture smaller than a volume gets one volume, at its top-left corner; cells outside the picture are empty.
    """

    volume: Volume
    stride: int

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of volumes in a picture of this size."""
        return self._count(height), self._count(width)

    def descriptors(self, cv2: Any, planes_of: Callable[[int], Planes], first: int) -> NDArray[np.float32]:
        """Compute one descriptor of norm 1 (0 if empty) for each volume: `(1, rows, columns, dimensions)`.

        `planes_of` returns fresh planes for a frame or a pair of frames; `first` is the first frame. The values of a
        descriptor are ordered by time cell, cell row, cell column and bin; bins vary fastest.
        """
        last = first + self.volume.length
        parts = [self._cells(cv2, planes_of, begin) for begin in range(first, last, self.volume.cell_length)]
        found = np.stack(parts, axis=2)  # rows, columns, time cells, cell rows, cell columns, bins
        return unit_length(found.reshape(1, *found.shape[:2], -1))

    def _cells(self, cv2: Any, planes_of: Callable[[int], Planes], begin: int) -> NDArray[np.float32]:
        """The sums of one time cell: `(rows, columns, cells, cells, bins)`."""
        total = planes_of(begin)
        for step in range(begin + 1, begin + self.volume.cell_length):
            total += planes_of(step)
        sums = cell_sums(cv2, total, self.volume.cell_side)
        height, width, _ = sums.shape
        tops, lefts = np.meshgrid(self._begins(height), self._begins(width), indexing="ij")
        found = cells_at(sums, tops.ravel(), lefts.ravel(), self.volume.cells, self.volume.cell_side)
        return found.reshape(*tops.shape, *found.shape[1:])

    def _count(self, extent: int) -> int:
        return 1 + max(0, extent - self.volume.side) // self.stride

    def _begins(self, extent: int) -> NDArray[np.intp]:
        """First pixels of the volumes along one axis of the picture."""
        count = self._count(extent)
        margin = max(0, extent - self.volume.side - (count - 1) * self.stride) // 2
        return margin + self.stride * np.arange(count)
