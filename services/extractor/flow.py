"""`flow`: dense optical flow between consecutive frames, stacked and quantised (Simonyan & Zisserman, 2014).

Two methods of OpenCV: DIS (Kroeger et al., "Fast Optical Flow using Dense Inverse Search", ECCV 2016), ten to
twenty times faster, and Farnebäck's ("Two-Frame Motion Estimation Based on Polynomial Expansion", SCIA 2003).

Frames whose short side is below 32 are enlarged by repeating their border, and the flow is cut back: OpenCV's DIS
refuses, returns rubbish or crashes the process below that (found by trying sizes and aspect ratios on 5.0.0).
The flow of a clip is a function of the clip alone: a new DIS object is made for each pair (14 us), because OpenCV's
keeps the settings it falls back to for a small picture, and then answers differently.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from essp_common.errors import ConfigError
from essp_common.features.port import ArraySpec
from essp_common.features.quantization import quantize
from essp_common.features.sampling import centre_window

SMALLEST_SIDE = 32
"""Frames are enlarged to at least this before DIS sees them."""

_PRESETS = {"ultrafast": 0, "fast": 1, "medium": 2}  # cv2.DISOPTICAL_FLOW_PRESET_*
_Grey = NDArray[np.uint8]
_Field = NDArray[np.float32]


class Flow:
    """Flow of the clip's middle `length + 1` frames: `(1, H, W, 2 * length) uint8`, channels dx0, dy0, dx1, dy1, ...

    dx points right, dy down, in pixels from a frame to the next, coded as in `essp_common.features.quantization`:
    128 is no motion and one step is `bound / 127` px, so the largest rounding error is `bound / 254` px.
    """

    name: ClassVar[str] = "flow"
    summary: ClassVar[str] = "Dense optical flow, stacked (motion): DIS or Farnebäck."

    def __init__(
        self,
        method: Literal["dis", "farneback"] = "dis",
        length: Annotated[int, Field(ge=1, le=64)] = 10,
        bound: Annotated[float, Field(gt=0, le=1000)] = 20.0,
        preset: Literal["ultrafast", "fast", "medium"] = "ultrafast",
        pyr_scale: Annotated[float, Field(gt=0, lt=1)] = 0.5,
        levels: Annotated[int, Field(ge=1, le=10)] = 3,
        winsize: Annotated[int, Field(ge=3, le=101)] = 15,
        iterations: Annotated[int, Field(ge=1, le=20)] = 3,
        poly_n: Literal[5, 7] = 5,
        poly_sigma: Annotated[float, Field(gt=0, le=5)] = 1.1,
    ) -> None:
        """`length`: flow fields in the stack; needs one frame more. `bound`: the largest displacement kept, in pixels.

        `preset` is DIS's trade of speed for accuracy. The rest are Farnebäck's: scale between pyramid levels, their
        number, averaging window, iterations on each level, neighbourhood of the polynomial (5 or 7; with it go
        `poly_sigma` 1.1 or 1.5).
        """
        self._length = length
        self._bound = bound
        self._method = method
        self._preset = preset
        self._farneback = (pyr_scale, levels, winsize, iterations, poly_n, poly_sigma, 0)
        self._pair: Callable[[_Grey, _Grey], _Field]
        if method == "dis" and self._farneback != (0.5, 3, 15, 3, 5, 1.1, 0):
            raise ConfigError(
                "flow: pyr_scale, levels, winsize, iterations, poly_n and poly_sigma need method farneback"
            )
        if method == "farneback" and preset != "ultrafast":
            raise ConfigError("flow: preset needs method dis")

    def frames_needed(self) -> int:
        return self._length + 1

    def output(self, clip: ArraySpec) -> ArraySpec:
        _, height, width, _ = clip.shape
        return ArraySpec((1, height, width, 2 * self._length), "uint8")

    def setup(self) -> None:
        """Import OpenCV and bind it to this thread: the lanes of the worker are what runs in parallel."""
        import cv2

        cv2.setNumThreads(1)
        self._cv2 = cv2
        self._pair = self._dis_pair if self._method == "dis" else self._farneback_pair

    def extract(self, clip: NDArray[np.uint8]) -> NDArray[np.uint8]:
        frames = clip[centre_window(len(clip), self._length + 1)]
        _, height, width, _ = frames.shape
        greys = [self._cv2.cvtColor(frame, self._cv2.COLOR_RGB2GRAY) for frame in frames]
        fields = [
            quantize(self._pair(previous, following)[:height, :width], self._bound)
            for previous, following in self._pairs(greys)
        ]
        stacked: NDArray[np.uint8] = self._cv2.merge(fields)
        return stacked.reshape(1, height, width, 2 * self._length)

    def _pairs(self, greys: list[_Grey]) -> list[tuple[_Grey, _Grey]]:
        height, width = greys[0].shape
        below, right = max(0, SMALLEST_SIDE - height), max(0, SMALLEST_SIDE - width)
        if below or right:
            repeat = self._cv2.BORDER_REPLICATE
            greys = [self._cv2.copyMakeBorder(grey, 0, below, 0, right, repeat) for grey in greys]
        return list(zip(greys[:-1], greys[1:], strict=True))

    def _dis_pair(self, previous: _Grey, following: _Grey) -> _Field:
        field: _Field = self._cv2.DISOpticalFlow.create(_PRESETS[self._preset]).calc(previous, following, None)
        return field

    def _farneback_pair(self, previous: _Grey, following: _Grey) -> _Field:
        field: _Field = self._cv2.calcOpticalFlowFarneback(previous, following, None, *self._farneback)
        return field
