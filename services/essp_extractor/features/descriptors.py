"""`hog`, `hof`, `mbh`: histograms of gradients, of flow and of motion boundaries on a grid of space-time volumes.

`essp_extractor.motion.orientation` computes the histograms and `essp_extractor.motion.volumes` the volumes; both cite
the papers. Values are float32 and not quantised: each bin is divided by the length of its descriptor, so values lie
between 0 and 1 and have no unit.

Descriptors are not pictures: mirroring a frame permutes their bins, and enlarging the grid adds no information. So they
are meant for encoders (`docs/descriptors.md`), not for networks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from essp_common.job.feature_layout import DESCRIPTOR, FeatureLayout
from essp_engine.features.intermediates import Intermediates
from essp_engine.features.opencv import load_opencv
from essp_engine.features.port import ArraySpec, FeatureParams, Needs
from essp_engine.features.sampling import centre_window
from essp_extractor.motion.fields import FlowFields, FlowMethod, MethodParams
from essp_extractor.motion.orientation import Planes, boundary_planes, flow_planes, gradient_planes
from essp_extractor.motion.volumes import Volume, VolumeGrid


class GridParams(FeatureParams):
    """The grid of volumes, and the histograms in them."""

    side: int = Field(32, ge=4, le=512)
    """Side of a volume, in pixels."""
    stride: int = Field(16, ge=1, le=512)
    """Distance between neighbouring volumes, in pixels."""
    length: int = Field(15, ge=1, le=64)
    """Length of a volume in frames, or in flow fields, which need one more frame."""
    cells: int = Field(2, ge=1, le=8)
    """Cells of a volume along each image axis."""
    time_cells: int = Field(3, ge=1, le=8)
    """Cells of a volume along the time axis."""
    bins: int = Field(8, ge=2, le=36)
    """Orientation bins of a histogram."""

    def grid(self, feature: str) -> VolumeGrid:
        """Raises `ConfigError` for sizes that do not divide into the cells."""
        return VolumeGrid(Volume(feature, self.side, self.length, self.cells, self.time_cells), self.stride)


class MbhParams(MethodParams, GridParams):
    """The grid, and how to compute flow; the authors used Farnebäck's method."""


class HofParams(MbhParams):
    """The parameters of `mbh`, and the threshold for stillness."""

    still_px: float = Field(0.4, ge=0, le=100)
    """Displacement in pixels up to which a pixel counts as still (0.4 in the dense-trajectories code)."""


class _OnGrid(ABC):
    """A descriptor of each volume of a grid, over a clip's middle frames."""

    needs: ClassVar[Needs] = "luma"

    def __init__(self, grid: VolumeGrid, method: FlowMethod, *, frames: int, channels: int) -> None:
        """`frames`: how many frames of the clip to describe. `channels`: values per volume."""
        self._grid = grid
        self._method = method
        self._frames = frames
        self._channels = channels

    def frames_needed(self) -> int:
        return self._frames

    def output(self, clip: ArraySpec) -> ArraySpec:
        rows, columns = self._grid.size(*clip.shape[1:3])
        return ArraySpec((1, rows, columns, self._channels), "float32")

    def setup(self) -> None:
        self._cv2 = load_opencv()
        self._fields = FlowFields(self._method)

    def extract(self, clip: NDArray[np.uint8]) -> NDArray[np.float32]:
        return self.extract_from(Intermediates(clip))

    def extract_from(self, shared: Intermediates) -> NDArray[np.float32]:
        return self._described(shared, centre_window(shared.frames, self._frames).start)

    @abstractmethod
    def _described(self, shared: Intermediates, first: int) -> NDArray[np.float32]:
        """The descriptors of the frames from index `first` on."""


class Hog(_OnGrid):
    """Histograms of oriented gradients: `(1, rows, columns, time_cells * cells * cells * bins) float32`.

    Over the clip's middle `length` frames; 96 channels by default, 15 by 15 volumes in 256x256 pixels.
    """

    name: ClassVar[str] = "hog"
    summary: ClassVar[str] = "Histograms of oriented gradients on a grid of space-time volumes (appearance)."
    layout: ClassVar[FeatureLayout] = DESCRIPTOR

    Params: ClassVar[type[FeatureParams]] = GridParams

    def __init__(self, params: GridParams) -> None:
        grid = params.grid(self.name)
        channels = grid.volume.dimensions(params.bins)
        super().__init__(grid, FlowMethod(self.name), frames=params.length, channels=channels)
        self._bins = params.bins

    def _described(self, shared: Intermediates, first: int) -> NDArray[np.float32]:
        return self._grid.descriptors(
            self._cv2, lambda i: gradient_planes(self._cv2, self._fields.grey(shared, i), self._bins), first
        )


class Hof(_OnGrid):
    """Histograms of optical flow: `(1, rows, columns, time_cells * cells * cells * (bins + 1)) float32`.

    Over the flow of the clip's middle `length + 1` frames; 108 channels by default. The last bin of a cell counts the
    pixels that hardly move.
    """

    name: ClassVar[str] = "hof"
    summary: ClassVar[str] = "Histograms of optical flow on a grid of space-time volumes (motion)."
    layout: ClassVar[FeatureLayout] = DESCRIPTOR

    Params: ClassVar[type[FeatureParams]] = HofParams

    def __init__(self, params: HofParams) -> None:
        grid, flow = params.grid(self.name), FlowMethod(self.name, params.method, params.preset)
        channels = grid.volume.dimensions(params.bins + 1)
        super().__init__(grid, flow, frames=params.length + 1, channels=channels)
        self._bins = params.bins
        self._still_px = params.still_px

    def _described(self, shared: Intermediates, first: int) -> NDArray[np.float32]:
        return self._grid.descriptors(
            self._cv2,
            lambda i: flow_planes(self._cv2, self._fields.between(shared, i, i + 1), self._bins, self._still_px),
            first,
        )


class Mbh(_OnGrid):
    """Motion boundary histograms: `(1, rows, columns, 2 * time_cells * cells * cells * bins) float32`.

    Over the flow of the clip's middle `length + 1` frames; 192 channels by default. The first half describes the
    gradient of dx, the second half the gradient of dy; each half is a descriptor of norm 1. Uniform motion, such as
    most camera motion, gives zeros.
    """

    name: ClassVar[str] = "mbh"
    summary: ClassVar[str] = "Motion boundary histograms on a grid of space-time volumes (relative motion)."
    layout: ClassVar[FeatureLayout] = DESCRIPTOR

    Params: ClassVar[type[FeatureParams]] = MbhParams

    def __init__(self, params: MbhParams) -> None:
        grid, flow = params.grid(self.name), FlowMethod(self.name, params.method, params.preset)
        channels = 2 * grid.volume.dimensions(params.bins)
        super().__init__(grid, flow, frames=params.length + 1, channels=channels)
        self._bins = params.bins

    def _described(self, shared: Intermediates, first: int) -> NDArray[np.float32]:
        halves = [
            self._grid.descriptors(self._cv2, partial(self._planes, shared, component), first) for component in (0, 1)
        ]
        return np.concatenate(halves, axis=-1)

    def _planes(self, shared: Intermediates, component: int, frame: int) -> Planes:
        return boundary_planes(self._cv2, self._fields.between(shared, frame, frame + 1), component, self._bins)
