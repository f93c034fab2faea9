"""Farnebäck's optical flow, computed by OpenCV; parameters have the names that `calcOpticalFlowFarneback` uses.

Farnebäck, "Two-Frame Motion Estimation Based on Polynomial Expansion" (SCIA 2003).
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from essp_engine.features.port import FeatureParams


class FarnebackParams(FeatureParams):
    """Parameters of method `farneback`, with the values of OpenCV's documentation."""

    pyr_scale: float = Field(0.5, gt=0, lt=1)
    """Method farneback: size of a pyramid level relative to the level below it."""
    levels: int = Field(3, ge=1, le=10)
    """Method farneback: pyramid levels."""
    winsize: int = Field(15, ge=3, le=101)
    """Method farneback: side of the averaging window, in pixels."""
    iterations: int = Field(3, ge=1, le=20)
    """Method farneback: iterations on each level."""
    poly_n: Literal[5, 7] = 5
    """Method farneback: side of the neighbourhood of the polynomial, in pixels."""
    poly_sigma: float = Field(1.1, gt=0, le=5)
    """Method farneback: sigma of the polynomial's Gaussian; 1.1 goes with `poly_n` 5, 1.5 with 7."""


def farneback_flow(
    cv2: Any, first: NDArray[np.uint8], second: NDArray[np.uint8], params: FarnebackParams
) -> NDArray[np.float32]:
    """The displacement of each pixel of `first` into `second`, `(H, W, 2) float32`, dx and dy in pixels.

    Both frames are `(H, W) uint8` grey levels.
    """
    p = params
    flow: NDArray[np.float32] = cv2.calcOpticalFlowFarneback(
        first, second, None, p.pyr_scale, p.levels, p.winsize, p.iterations, p.poly_n, p.poly_sigma, 0
    )
    return flow
