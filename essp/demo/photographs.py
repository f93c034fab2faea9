"""The photographs that the demonstration's videos are made of; sources and licences are in README.md.

All ship inside the scikit-image package, so nothing is downloaded. Each is cut into parts that do not overlap, one
for each split: what a test video shows was in no training video.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

Picture = NDArray[np.uint8]
"""(H, W, 3) uint8, RGB."""

TEXTURES = {"coins": 0.6, "grass": 0.7, "gravel": 1.1}
"""What a foreground is made of, the first half of a class: photographs, and the scale at which each is shown. The
scales even out how much detail there is for optical flow to hold on to, which otherwise tells textures apart."""

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
