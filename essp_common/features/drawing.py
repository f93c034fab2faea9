"""Draws features as pictures: motion on the colour wheel, other features as colours or grey values.

The direction of flow is the hue (right red, down yellow-green, left cyan, up violet) and the speed is the saturation,
so no motion is white. This is the usual HSV wheel for flow (Baker et al., "A Database and Evaluation Methodology for
Optical Flow", IJCV 2011).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from essp_common.errors import ConfigError
from essp_common.features.quantization import ZERO

Picture = NDArray[np.uint8]
"""(H, W, 3) uint8, RGB."""

_SLOWEST_FULL = 1.0  # in steps of the code; keeps noise in a still picture from becoming colour


def pictures(feature: str, array: NDArray[Any], fullest: float | None = None) -> list[Picture]:
    """All pictures of a feature `(T, H, W, C)`, in the order of its frames and channels.

    A feature whose name begins with `flow` has two channels per picture. Others have three if C is a multiple of three,
    else one. `fullest`: the speed of full saturation, in steps of the code (default: see `fullest_speed`). Raises
    `ConfigError` for a feature that does not consist of pictures.
    """
    if array.ndim != 4 or feature.endswith("trajectories"):
        raise ConfigError(f"{feature} has the shape {array.shape}, which cannot be drawn as pictures")
    if feature.startswith("flow"):
        fullest = fullest or fullest_speed(array)
        return [flow_picture(field, fullest) for frame in array for field in _groups(frame, 2)]
    width = 3 if array.shape[3] % 3 == 0 else 1
    visible = _visible(array)
    return [np.repeat(group, 3 // width, axis=2) for frame in visible for group in _groups(frame, width)]


def flow_picture(codes: NDArray[np.uint8], fullest: float) -> Picture:
    """Draw displacement codes `(H, W, 2) uint8` (dx right, dy down) on the colour wheel."""
    motion = codes.astype(np.float32) - ZERO
    saturation = np.minimum(np.hypot(motion[..., 0], motion[..., 1]) / fullest, 1)
    hue = np.arctan2(motion[..., 1], motion[..., 0]) * (3 / np.pi)  # sixths of a turn
    # Red, green and blue of HSV at full value are the same ramp at three offsets of the hue.
    ramps = [np.clip(np.minimum(sixth, 4 - sixth), 0, 1) for sixth in ((n + hue) % 6 for n in (5, 3, 1))]
    coloured = 1 - saturation[..., None] * np.stack(ramps, axis=-1)
    picture: Picture = np.rint(coloured * 255).astype(np.uint8)
    return picture


def fullest_speed(codes: NDArray[np.uint8]) -> float:
    """The 99th percentile of the speeds of flow codes `(..., 2 * L)`, in steps of the code."""
    motion = codes.astype(np.float32) - ZERO
    return max(float(np.percentile(np.hypot(motion[..., 0::2], motion[..., 1::2]), 99)), _SLOWEST_FULL)


def grid(rows: Sequence[Sequence[Picture]], gap: int = 2) -> Picture:
    """Arrange pictures of one size in rows and columns, with white gaps between them."""
    height, width = rows[0][0].shape[:2]
    columns = max(len(row) for row in rows)
    shape = (len(rows) * (height + gap) - gap, columns * (width + gap) - gap, 3)
    sheet = np.full(shape, 255, np.uint8)
    for y, row in enumerate(rows):
        for x, picture in enumerate(row):
            top, left = y * (height + gap), x * (width + gap)
            sheet[top : top + height, left : left + width] = picture
    return sheet


def _groups(frame: NDArray[Any], width: int) -> list[NDArray[Any]]:
    return [frame[..., start : start + width] for start in range(0, frame.shape[2], width)]


def _visible(array: NDArray[Any]) -> NDArray[np.uint8]:
    """The values as uint8. Other types are scaled, with zero in the middle."""
    if array.dtype == np.uint8:
        return array
    values = array.astype(np.float32)
    largest = float(np.abs(values).max(initial=0)) or 1.0
    scaled: NDArray[np.uint8] = np.rint(values / largest * 127 + ZERO).astype(np.uint8)
    return scaled
