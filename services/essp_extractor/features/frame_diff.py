"""`frame_diff`: the change from each frame to the next, a cheap substitute for flow (the RGB difference of Temporal
Segment Networks, Wang et al., 2016)."""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from essp_common.job.feature_layout import DIFFERENCES, FeatureLayout
from essp_engine.features.opencv import load_opencv
from essp_engine.features.port import ArraySpec, FeatureParams
from essp_engine.features.quantization import ZERO
from essp_engine.features.sampling import centre_window
from essp_extractor.features.channels import side_by_side


class FrameDiffParams(FeatureParams):
    """Which frames to use."""

    length: int = Field(5, ge=1, le=64)
    """Number of differences; needs one more frame."""


class FrameDiff:
    """Differences of the clip's middle `length + 1` frames: `(1, H, W, 3 * length) uint8`.

    A value is `clip(next - previous, -128, 127) + 128`: 128 means no change, and one step is one grey level. Changes
    beyond half the range are rare and saturate; halving all values instead would lose the small changes, which matter
    more. Channels are r, g, b of the first difference, then of the second, ...
    """

    name: ClassVar[str] = "frame_diff"
    summary: ClassVar[str] = "Differences of consecutive frames (motion, cheap)."
    layout: ClassVar[FeatureLayout] = DIFFERENCES

    Params: ClassVar[type[FeatureParams]] = FrameDiffParams

    def __init__(self, params: FrameDiffParams) -> None:
        self._length = params.length

    def frames_needed(self) -> int:
        return self._length + 1

    def output(self, clip: ArraySpec) -> ArraySpec:
        _, height, width, channels = clip.shape
        return ArraySpec((1, height, width, channels * self._length), "uint8")

    def setup(self) -> None:
        self._cv2 = load_opencv()

    def extract(self, clip: NDArray[np.uint8]) -> NDArray[np.uint8]:
        frames = np.ascontiguousarray(clip[centre_window(len(clip), self._length + 1)])
        _, height, width, channels = frames.shape
        rows = frames.reshape(len(frames), height, width * channels)  # one plane per frame for OpenCV
        differences = [
            self._cv2.addWeighted(following, 1, previous, -1, ZERO).reshape(height, width, channels)
            for previous, following in pairwise(rows)
        ]
        return side_by_side(self._cv2, differences).reshape(1, height, width, channels * self._length)
