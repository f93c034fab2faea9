"""What a decoded feature means: the inverse of `essp_engine.features.quantization.quantize`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from essp_engine.features.quantization import ZERO

_HALF_RANGE = 127


def quantization_error(bound: float) -> float:
    """The largest difference between a displacement within the bound and its decoded code, in pixels."""
    return bound / (2 * _HALF_RANGE)


def dequantize(codes: NDArray[np.uint8], bound: float) -> NDArray[np.float32]:
    """Displacements in pixels, any shape."""
    return (codes.astype(np.float32) - ZERO) * np.float32(bound / _HALF_RANGE)
