"""Features as pictures for people: motion on the colour wheel, everything else as close to a photograph as it is.

Flow: the direction is the hue (right red, down yellow-green, left cyan, up violet) and the speed the saturation, so
that stillness is white (after the HSV wheel that is usual for flow; Baker et al., "A Database and Evaluation
Methodology for Optical Flow", IJCV 2011).
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

_SLOWEST_FULL = 1.0  # in steps of the code: in a still picture noise does not become colour


def pictures(feature: str, array: NDArray[Any], fullest: float | None = None) -> list[Picture]:
    """Everything that a feature of shape `(T, H, W, C)` shows, in the order of its frames and channels.

    Features whose name begins with `flow` have two channels a picture, others three where C is a multiple of
    three, otherwise one. `fullest` is the speed of full saturation, in steps of the code; by default that of the
    fastest hundredth. Raises `ConfigError` for a feature that is not of pictures.
    """
    if array.ndim != 4 or feature.endswith("trajectories"):
        raise ConfigError(f"{feature} has the shape {array.shape}, which is not that of pictures")
    if feature.startswith("flow"):
        fullest = fullest or fullest_speed(array)
        return [flow_picture(field, fullest) for frame in array for field in _groups(frame, 2)]
    width = 3 if array.shape[3] % 3 == 0 else 1
    visible = _visible(array)
    return [np.repeat(group, 3 // width, axis=2) for frame in visible for group in _groups(frame, width)]


def flow_picture(codes: NDArray[np.uint8], fullest: float) -> Picture:
    """`(H, W, 2)` displacement codes (dx right, dy down) on the colour wheel."""
    motion = codes.astype(np.float32) - ZERO
    saturation = np.minimum(np.hypot(motion[..., 0], motion[..., 1]) / fullest, 1)
    hue = np.arctan2(motion[..., 1], motion[..., 0]) * (3 / np.pi)  # sixths of a turn
    # Red, green and blue of HSV at full value are this one ramp, read at three places of the hue.
    ramps = [np.clip(np.minimum(sixth, 4 - sixth), 0, 1) for sixth in ((n + hue) % 6 for n in (5, 3, 1))]
    coloured = 1 - saturation[..., None] * np.stack(ramps, axis=-1)
    picture: Picture = np.rint(coloured * 255).astype(np.uint8)
    return picture


def fullest_speed(codes: NDArray[np.uint8]) -> float:
    """The speed of the fastest hundredth of flow codes `(..., 2 * L)`, in steps of the code."""
    motion = codes.astype(np.float32) - ZERO
    return max(float(np.percentile(np.hypot(motion[..., 0::2], motion[..., 1::2]), 99)), _SLOWEST_FULL)


def grid(rows: Sequence[Sequence[Picture]], gap: int = 2) -> Picture:
    """Pictures of one size in rows and columns, with white gaps between them."""
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
    """The values as they are where they are bytes, otherwise scaled to bytes with zero in the middle."""
    if array.dtype == np.uint8:
        return array
    values = array.astype(np.float32)
    largest = float(np.abs(values).max(initial=0)) or 1.0
    scaled: NDArray[np.uint8] = np.rint(values / largest * 127 + ZERO).astype(np.uint8)
    return scaled
