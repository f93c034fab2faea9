"""The photographs from which the demonstration's videos are rendered. README.md lists sources and licences.

All of them are part of the scikit-image package, so nothing is downloaded. Each is divided into parts that do not
overlap, one for each split: what a test video shows appears in no training video.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

Picture = NDArray[np.uint8]
"""(H, W, 3) uint8, RGB."""

TEXTURES = {"coins": 0.6, "grass": 0.7, "gravel": 1.1}
"""Textures of the foreground, which are the first half of a class name: photographs with the scale at which each is
shown. The scales equalise the amount of detail for optical flow, because flow could otherwise distinguish the
textures."""

BACKGROUNDS = ("astronaut", "brick", "camera", "chelsea", "coffee", "hubble_deep_field", "rocket")

_PARTS = {
    "train": (0.0, 1.0, 0.0, 0.6),
    "validation": (0.0, 0.5, 0.6, 1.0),
    "test": (0.5, 1.0, 0.6, 1.0),
}
"""Top, bottom, left and right of each split's part, as shares of the photograph."""


@cache
def photograph(name: str, split: str) -> Picture:
    """The part of a photograph that belongs to a split."""
    from skimage import data

    picture: NDArray[np.uint8] = getattr(data, name)()
    if picture.ndim == 2:
        picture = np.repeat(picture[..., None], 3, axis=2)
    height, width = picture.shape[:2]
    top, bottom, left, right = _PARTS[split]
    part = picture[round(top * height) : round(bottom * height), round(left * width) : round(right * width)]
    return np.ascontiguousarray(part)
