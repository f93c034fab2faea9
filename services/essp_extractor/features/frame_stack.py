"""`frame_stack`: consecutive frames as the channels of one picture (early fusion; Karpathy et al., CVPR 2014)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from essp_common.job.feature_layout import COLOURS, FeatureLayout
from essp_engine.features.opencv import load_opencv
from essp_engine.features.port import ArraySpec, FeatureParams
from essp_engine.features.sampling import centre_window
from essp_extractor.features.channels import side_by_side


class FrameStackParams(FeatureParams):
    """Which frames to use."""

    length: int = Field(10, ge=1, le=64)
    """Number of consecutive frames."""


class FrameStack:
    """The clip's middle `length` frames: `(1, H, W, 3 * length) uint8`.

    Channels are r, g, b of the first frame, then of the second, ...
    """

    name: ClassVar[str] = "frame_stack"
    summary: ClassVar[str] = "Consecutive frames stacked as channels (appearance and motion)."
    layout: ClassVar[FeatureLayout] = COLOURS

    Params: ClassVar[type[FeatureParams]] = FrameStackParams

    def __init__(self, params: FrameStackParams) -> None:
        self._length = params.length

    def frames_needed(self) -> int:
        return self._length

    def output(self, clip: ArraySpec) -> ArraySpec:
        _, height, width, channels = clip.shape
        return ArraySpec((1, height, width, channels * self._length), "uint8")

    def setup(self) -> None:
        self._cv2 = load_opencv()

    def extract(self, clip: NDArray[np.uint8]) -> NDArray[np.uint8]:
        frames = clip[centre_window(len(clip), self._length)]
        _, height, width, channels = frames.shape
        return side_by_side(self._cv2, list(frames)).reshape(1, height, width, channels * self._length)
