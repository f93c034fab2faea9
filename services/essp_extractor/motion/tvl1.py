"""TV-L1 optical flow: total variation against an L1 data term, which keeps motion edges sharp.

Zach, Pock and Bischof, "A Duality Based Approach for Realtime TV-L1 Optical Flow" (DAGM 2007), in the form and with the
parameters of Sánchez Pérez, Meinhardt-Llopis and Facciolo, "TV-L1 Optical Flow Estimation" (IPOL 2013). The flow u
minimises

    sum |grad u_1| + |grad u_2| + weight * |second(x + u) - first(x)|

from coarse to fine. On each level the second frame is warped by the current flow and linearised there. The remaining
convex problem is solved by a fixed number of alternations between a thresholding step (the data term) and a dual step
(the total variation). The time therefore depends only on the frame size, and the result on no stopping threshold.

Written with NumPy and OpenCV's pixel functions, because the available implementations are slower
(docs/design/tv-l1-in-numpy.md).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from essp_engine.features.port import FeatureParams

_Plane = NDArray[np.float32]
_SMALLEST_LEVEL = 8
"""Minimum side of a pyramid level, in pixels."""
_PRESMOOTHING = 0.8
"""Sigma, in pixels, of the blur before a frame is halved or differentiated (IPOL 2013, section 5)."""
_FLAT = 1e-6
"""Squared gradients (grey levels squared per pixel squared) below this carry no information about motion."""


_STEP = 0.25
"""tau: step size of the dual step. Convergence is not guaranteed above 0.25."""
_LEVELS = 5
"""Maximum number of pyramid levels, each half the size of the one below it; small frames have fewer."""
_ITERATIONS = 10
"""Alternations after each warp. The paper iterates until little changes; more than 10 gained nothing in experiments."""


class TvL1Params(FeatureParams):
    """Parameters of method `tvl1`, with the values of IPOL 2013, table 2, for grey levels from 0 to 255."""

    weight: float = Field(0.15, gt=0, le=10)
    """Method tvl1: lambda, the weight of the data term; a larger value fits the frames more closely and
    smooths less."""
    tightness: float = Field(0.3, gt=0, le=10)
    """Method tvl1: theta, how far apart the two halves of the alternation may be, in pixels squared."""
    warps: int = Field(5, ge=1, le=50)
    """Method tvl1: how often the second frame is warped again on each level."""


def tvl1_flow(cv2: Any, first: NDArray[np.uint8], second: NDArray[np.uint8], params: TvL1Params) -> _Plane:
    """The displacement of each pixel of `first` into `second`, `(H, W, 2) float32`, dx and dy in pixels.

    Both frames are `(H, W) uint8` grey levels.
    """
    pyramid = [(_smoothed(cv2, first), _smoothed(cv2, second))]
    while len(pyramid) < _LEVELS and min(pyramid[-1][0].shape) >= 2 * _SMALLEST_LEVEL:
        pyramid.append((_halved(cv2, pyramid[-1][0]), _halved(cv2, pyramid[-1][1])))
    flow = np.zeros((2, *pyramid[-1][0].shape), np.float32)
    for coarse, fine in reversed(pyramid):
        flow = _refined(cv2, coarse, fine, _enlarged(cv2, flow, coarse.shape), params)
    return np.ascontiguousarray(np.moveaxis(flow, 0, 2))


def _refined(cv2: Any, first: _Plane, second: _Plane, flow: _Plane, params: TvL1Params) -> _Plane:
    """`flow`, `(2, H, W)`, refined on one level of the pyramid."""
    height, width = first.shape
    columns, rows = np.meshgrid(np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32))
    slopes = (cv2.Sobel(second, cv2.CV_32F, 1, 0, ksize=1) / 2, cv2.Sobel(second, cv2.CV_32F, 0, 1, ksize=1) / 2)
    dual = np.zeros((2, 2, height, width), np.float32)  # axes: direction of the derivative, dx or dy, y, x
    for _ in range(params.warps):
        at = (columns + flow[0], rows + flow[1])
        sampled = [
            cv2.remap(plane, *at, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE) for plane in (second, *slopes)
        ]
        gradient = np.stack(sampled[1:])
        # A pixel that maps outside the picture has no data; with a zero gradient only its neighbours decide.
        outside = (at[0] < 0) | (at[0] > width - 1) | (at[1] < 0) | (at[1] > height - 1)
        gradient[:, outside] = 0
        constant = sampled[0] - first - (gradient * flow).sum(axis=0)
        _alternate(params, gradient, constant, flow, dual)
    return flow


def _alternate(params: TvL1Params, gradient: _Plane, constant: _Plane, flow: _Plane, dual: _Plane) -> None:
    """Solve the linearised problem around the current warp; changes `flow` and `dual` in place."""
    square = np.einsum("cyx,cyx->yx", gradient, gradient)
    inverse = np.divide(-1, square, out=np.zeros_like(square), where=square > _FLAT)
    limit = np.float32(params.weight * params.tightness)
    tightness, rate = np.float32(params.tightness), np.float32(_STEP / params.tightness)
    product, divergence = np.empty_like(flow), np.empty_like(flow)
    residual, slope = np.empty_like(constant), np.zeros_like(dual)  # the last column and row of slope stay zero
    for _ in range(_ITERATIONS):
        np.multiply(gradient, flow, out=product)
        np.add(product[0], product[1], out=residual)
        residual += constant
        residual *= inverse
        np.clip(residual, -limit, limit, out=residual)
        np.multiply(gradient, residual, out=product)
        flow += product
        _divergence(dual, divergence)
        divergence *= tightness
        flow += divergence
        np.subtract(flow[:, :, 1:], flow[:, :, :-1], out=slope[0, :, :, :-1])
        np.subtract(flow[:, 1:], flow[:, :-1], out=slope[1, :, :-1])
        slope *= rate
        dual += slope
        slope *= slope
        np.add(slope[0], slope[1], out=product)
        np.sqrt(product, out=product)
        product += 1
        dual /= product
        slope[0, :, :, -1] = 0
        slope[1, :, -1] = 0


def _divergence(dual: _Plane, out: _Plane) -> None:
    """The negative adjoint of the forward differences (Chambolle, 2004)."""
    across, down = dual
    np.copyto(out, across)
    out[:, :, 1:] -= across[:, :, :-1]
    out += down
    out[:, 1:] -= down[:, :-1]


def _smoothed(cv2: Any, frame: NDArray[np.uint8]) -> _Plane:
    smooth: _Plane = cv2.GaussianBlur(frame.astype(np.float32), (0, 0), _PRESMOOTHING)
    return smooth


def _halved(cv2: Any, frame: _Plane) -> _Plane:
    height, width = frame.shape
    half: _Plane = cv2.resize(frame, ((width + 1) // 2, (height + 1) // 2), interpolation=cv2.INTER_AREA)
    return half


def _enlarged(cv2: Any, flow: _Plane, shape: tuple[int, ...]) -> _Plane:
    """The flow of the next coarser level, enlarged to a level of this shape."""
    height, width = shape
    ratios = (width / flow.shape[2], height / flow.shape[1])
    planes = [
        cv2.resize(plane, (width, height), interpolation=cv2.INTER_LINEAR) * np.float32(ratio)
        for plane, ratio in zip(flow, ratios, strict=True)
    ]
    return np.stack(planes)
