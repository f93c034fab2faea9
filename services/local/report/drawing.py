"""Features as pictures for people: motion by the colour wheel, other signed quantities around grey.

Flow: the direction is the hue (right red, down yellow-green, left cyan, up violet), the speed the saturation, at its
fullest where the fastest hundredth of the picture is; still is white.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.colors import hsv_to_rgb
from numpy.typing import NDArray

from essp_common.features.quantization import ZERO
from essp_common.learning.inputs import layout_of

Picture = NDArray[np.uint8]


def picture_of(feature: str, array: NDArray[Any]) -> Picture:
    """`(H, W, 3) uint8` of the middle one of a feature's frames, `(T, H, W, C)`."""
    frame = array[len(array) // 2]
    channels = frame.shape[2]
    if feature == "flow":
        middle = channels // 2 // 2 * 2
        return flow_picture(frame[..., middle : middle + 2])
    if channels % 3 == 0:
        middle = channels // 3 // 2 * 3
        return _bytes(frame[..., middle : middle + 3], feature)
    return np.repeat(_bytes(frame[..., channels // 2, None], feature), 3, axis=2)


def flow_picture(codes: NDArray[Any]) -> Picture:
    """`(H, W, 2)` displacement codes around 128 (dx right, dy down) on the colour wheel."""
    motion = codes.astype(np.float32) - ZERO
    speed = np.hypot(motion[..., 0], motion[..., 1])
    hue = (np.arctan2(motion[..., 1], motion[..., 0]) / (2 * np.pi)) % 1.0
    saturation = np.minimum(speed / max(float(np.percentile(speed, 99)), 1.0), 1.0)
    coloured = hsv_to_rgb(np.stack([hue, saturation, np.ones_like(hue)], axis=-1))
    return (coloured * 255).round().astype(np.uint8)


def _bytes(frame: NDArray[Any], feature: str) -> Picture:
    if frame.dtype == np.uint8:
        return frame
    spread = max(float(np.abs(frame).max()), 1e-6)
    low = 0.0 if layout_of(feature).photograph else -spread
    return ((frame - low) / (spread - low) * 255).clip(0, 255).astype(np.uint8)
