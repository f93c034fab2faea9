"""Flow fields between frames of a clip, by any of the methods; features that use the same field share it.

    dis         Kroeger et al., "Fast Optical Flow using Dense Inverse Search", ECCV 2016; OpenCV's, by far the fastest
    farneback   Farnebäck, "Two-Frame Motion Estimation Based on Polynomial Expansion", SCIA 2003; OpenCV's, used by the
                papers on dense trajectories
    tvl1        Zach et al., 2007; `essp_extractor.motion.tvl1`, the most accurate and the slowest

A field is `(H, W, 2) float32`, dx to the right and dy down, in pixels from one frame to the other.

Frames whose short side is below 32 are enlarged by repeating their border, and the flow is cropped afterwards. Below
that size OpenCV's DIS raises, returns garbage or crashes the process (found by trying sizes and aspect ratios on
5.0.0).

A field depends on the two frames alone. So each pair gets a new DIS object (14 us): OpenCV's object keeps the settings
that it falls back to for a small picture, and gives different results from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from essp_common.errors import ConfigError
from essp_engine.features.intermediates import Intermediates
from essp_engine.features.opencv import load_opencv
from essp_engine.features.port import FeatureParams
from essp_engine.features.quantization import quantize
from essp_extractor.motion.farneback import FarnebackParams, farneback_flow
from essp_extractor.motion.tvl1 import TvL1Params, tvl1_flow

SMALLEST_SIDE = 32
"""Frames are enlarged to at least this many pixels per side."""

Grey = NDArray[np.uint8]
"""`(H, W)` grey levels."""
Field = NDArray[np.float32]
"""`(H, W, 2)` displacements."""
MethodName = Literal["dis", "farneback", "tvl1"]
Preset = Literal["ultrafast", "fast", "medium"]

_PRESETS: dict[Preset, int] = {"ultrafast": 0, "fast": 1, "medium": 2}  # cv2.DISOPTICAL_FLOW_PRESET_*


class MethodParams(FeatureParams):
    """Parameters of every feature that is computed from flow."""

    method: MethodName = "dis"
    """How flow is computed: `dis` (the fastest), `farneback`, or `tvl1` (the most accurate).

    Features of one process with the same method and `preset` share their fields.
    """
    preset: Preset = "ultrafast"
    """Method dis, speed versus accuracy: `ultrafast`, `fast` or `medium`."""


@dataclass(frozen=True, slots=True)
class FlowMethod:
    """A method with its parameters; features with equal methods share their fields.

    Raises `ConfigError` for parameters that belong to a different method.
    """

    feature: str = field(compare=False)
    """Name of the feature, for error messages."""
    name: MethodName = "dis"
    preset: Preset = "ultrafast"
    farneback: FarnebackParams = field(default_factory=FarnebackParams)
    tvl1: TvL1Params = field(default_factory=TvL1Params)

    def __post_init__(self) -> None:
        if self.name != "farneback" and self.farneback != FarnebackParams():
            names = "pyr_scale, levels, winsize, iterations, poly_n and poly_sigma"
            raise ConfigError(f"{self.feature}: {names} need method farneback", code="conflict")
        if self.name != "tvl1" and self.tvl1 != TvL1Params():
            raise ConfigError(f"{self.feature}: weight, tightness and warps need method tvl1", code="conflict")
        if self.name != "dis" and self.preset != "ultrafast":
            raise ConfigError(f"{self.feature}: preset needs method dis", code="conflict")


class FlowFields:
    """Computes fields by one method. Create it in an extractor's `setup`, because it imports OpenCV."""

    def __init__(self, method: FlowMethod) -> None:
        self._cv2 = load_opencv()
        self._method = method
        self._compute: Callable[[Grey, Grey], Field] = {
            "dis": self._dis,
            "farneback": self._farneback,
            "tvl1": self._tvl1,
        }[method.name]

    def grey(self, shared: Intermediates, frame: int) -> Grey:
        """The frame with this index in grey levels; read-only."""
        return shared.get(("grey", frame), lambda: _read_only(self._grey(shared, frame)))

    def between(self, shared: Intermediates, first: int, second: int) -> Field:
        """The field from one frame of the clip to another, given by index; read-only."""
        return shared.get(
            (self._method, first, second),
            lambda: _read_only(self.of(self.grey(shared, first), self.grey(shared, second))),
        )

    def of(self, first: Grey, second: Grey) -> Field:
        """The field from one grey frame to another of the same size."""
        height, width = first.shape
        below, right = max(0, SMALLEST_SIDE - height), max(0, SMALLEST_SIDE - width)
        if not (below or right):
            return self._compute(first, second)
        repeat = self._cv2.BORDER_REPLICATE
        first, second = (self._cv2.copyMakeBorder(grey, 0, below, 0, right, repeat) for grey in (first, second))
        return np.ascontiguousarray(self._compute(first, second)[:height, :width])

    def stacked(self, fields: Iterable[Field], bound_px: float) -> NDArray[np.uint8]:
        """Fields as the channels of one picture, `(1, H, W, 2 * fields) uint8`: dx0, dy0, dx1, dy1, ...

        Coded as in `essp_engine.features.quantization`.
        """
        codes = [quantize(each, bound_px) for each in fields]  # one at a time, while it is in the processor's cache
        height, width, _ = codes[0].shape
        stack: NDArray[np.uint8] = self._cv2.merge(codes)
        return stack.reshape(1, height, width, 2 * len(codes))

    def _grey(self, shared: Intermediates, frame: int) -> Grey:
        made: Grey
        if (luma := shared.luma) is not None:
            made = luma[frame]
            return made
        made = self._cv2.cvtColor(shared.clip[frame], self._cv2.COLOR_RGB2GRAY)
        return made

    def _dis(self, first: Grey, second: Grey) -> Field:
        made: Field = self._cv2.DISOpticalFlow.create(_PRESETS[self._method.preset]).calc(first, second, None)
        return made

    def _farneback(self, first: Grey, second: Grey) -> Field:
        return farneback_flow(self._cv2, first, second, self._method.farneback)

    def _tvl1(self, first: Grey, second: Grey) -> Field:
        return tvl1_flow(self._cv2, first, second, self._method.tvl1)


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array
