"""Joins pictures as channels of one picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MOST = 128
"""Maximum number of channels that OpenCV merges: `CV_CN_MAX` of OpenCV 5; OpenCV 4 allows 512."""


def side_by_side(cv2: Any, pictures: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """`(H, W, C)` each -> `(H, W, C * len(pictures))`.

    `cv2.merge` interleaves five times faster than `numpy.concatenate`, and without the interpreter lock.
    """
    at_once = _MOST // pictures[0].shape[-1]
    parts = [cv2.merge(pictures[first : first + at_once]) for first in range(0, len(pictures), at_once)]
    merged: NDArray[np.uint8] = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)
    return merged
