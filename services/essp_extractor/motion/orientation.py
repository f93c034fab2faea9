"""Histograms of orientations: of gradients, of flow and of motion boundaries, summed over cells.

Gradients follow Dalal and Triggs, "Histograms of Oriented Gradients for Human Detection" (CVPR 2005). Flow follows
Laptev et al., "Learning Realistic Human Actions from Movies" (CVPR 2008), with an extra bin for pixels that hardly
move. Motion boundaries, the gradients of each flow component, follow Dalal, Triggs and Schmid, "Human Detection Using
Oriented Histograms of Flow and Appearance" (ECCV 2006).

The conventions come from Wang et al., "Action Recognition by Dense Trajectories" (CVPR 2011): bins cover the full
circle, bin b is centred on b * 360 / bins degrees (0 points right, 90 down), and the length of each vector is split
between the two bins nearest to its direction by linear interpolation. OpenCV computes the directions, accurate to 0.3
degrees.

Planes are `(bins, H, W) float32`: the contribution of each pixel to each bin. Sums over cells are `(H, W, bins)
float32`, so that the bins of one position are contiguous.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from essp_extractor.motion.fields import Field, Grey

EPSILON = np.float32(1e-3)
"""Epsilon of the normalisation (Dalal and Triggs, 2005), so that rounding errors in empty cells do not count."""
Planes = NDArray[np.float32]
Sums = NDArray[np.float32]
_Plane = NDArray[np.float32]
_Indices = NDArray[np.intp]


def gradient_planes(cv2: Any, grey: Grey | _Plane, bins: int) -> Planes:
    """Gradient planes of a picture by the filter [-1, 0, 1]. At a border, the component across it is 0."""
    across = cv2.Sobel(grey, cv2.CV_32F, 1, 0, ksize=1)
    down = cv2.Sobel(grey, cv2.CV_32F, 0, 1, ksize=1)
    return _planes(cv2, across, down, bins, bins)


def flow_planes(cv2: Any, flow: Field, bins: int, still_px: float) -> Planes:
    """Planes of flow, `(bins + 1, H, W)`: a pixel that moves by at most `still_px` adds 1 to the last plane only."""
    across, down = cv2.split(flow)
    planes = _planes(cv2, across, down, bins, bins + 1)
    np.less_equal(cv2.magnitude(across, down), still_px, out=planes[bins], casting="unsafe")
    planes[:bins] *= 1 - planes[bins]
    return planes


def boundary_planes(cv2: Any, flow: Field, component: int, bins: int) -> Planes:
    """Planes of the gradient of one component of flow, 0 for dx and 1 for dy."""
    return gradient_planes(cv2, cv2.extractChannel(flow, component), bins)


def cell_sums(cv2: Any, planes: Planes, side: int) -> Sums:
    """At y, x: the sum over the `side` by `side` pixel cell that begins there; pixels outside the picture
    count as 0."""
    beyond = cv2.BORDER_CONSTANT
    sums: Sums = cv2.merge(
        [cv2.boxFilter(plane, -1, (side, side), anchor=(0, 0), normalize=False, borderType=beyond) for plane in planes]
    )
    return sums


def cells_at(sums: Sums, tops: _Indices, lefts: _Indices, cells: int, side: int) -> NDArray[np.float32]:
    """The sums of squares of `cells` by `cells` cells, given their top-left pixels: `(squares, cells, cells, bins)`.

    `sums` are `cell_sums` for this `side`. Cells that begin beyond the picture are empty.
    """
    height, width, bins = sums.shape
    rows = (tops[:, None] + side * np.arange(cells))[:, :, None]
    columns = (lefts[:, None] + side * np.arange(cells))[:, None, :]
    places = np.minimum(rows, height - 1) * width + np.minimum(columns, width - 1)
    picked: NDArray[np.float32] = sums.reshape(-1, bins).take(places, axis=0)
    if rows.max(initial=0) >= height or columns.max(initial=0) >= width:
        picked *= ((rows < height) & (columns < width))[..., None]
    np.maximum(picked, 0, out=picked)  # OpenCV's running sums may be slightly below 0 from rounding
    return picked


def unit_length(descriptors: _Plane) -> _Plane:
    """Descriptors divided by their Euclidean norm along the last axis (Wang et al., 2011); empty ones stay near 0."""
    lengths = np.linalg.norm(descriptors, axis=-1, keepdims=True)
    unit: _Plane = descriptors / np.hypot(lengths, EPSILON)
    return unit


def root(descriptors: _Plane) -> _Plane:
    """Square roots of descriptors divided by their sum, along the last axis (RootSIFT; Wang and Schmid, 2013)."""
    parts: _Plane = descriptors / (descriptors.sum(axis=-1, keepdims=True) + EPSILON)
    return np.sqrt(parts)


def _planes(cv2: Any, across: _Plane, down: _Plane, bins: int, allocated: int) -> Planes:
    """The vectors' lengths, split between the two nearest of `bins` directions. Further planes are left
    uninitialised."""
    lengths, angles = cv2.cartToPolar(across, down)
    angles *= np.float32(bins / (2 * np.pi))
    planes = np.empty((allocated, *lengths.shape), np.float32)
    for direction, plane in enumerate(planes[:bins]):
        # How near the angle is to this direction around the circle: 1 at its centre, 0 at the next direction.
        np.subtract(angles, direction, out=plane)
        np.abs(plane, out=plane)
        np.minimum(plane, bins - plane, out=plane)
        np.subtract(1, plane, out=plane)
        np.maximum(plane, 0, out=plane)
        plane *= lengths
    return planes
