"""`motion_vectors`: the motion that the codec has stored, stacked and quantised like flow.

`essp_engine.video.motion` says how vectors become motion, and which codecs have them.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from essp_common.errors import ConfigError
from essp_common.job.feature_layout import MOTION, FeatureLayout
from essp_engine.features.intermediates import Intermediates
from essp_engine.features.opencv import load_opencv
from essp_engine.features.port import ArraySpec, FeatureParams, Needs
from essp_engine.features.quantization import quantize
from essp_engine.features.sampling import centre_window
from essp_engine.video.motion_layout import UNIT, motion_shape


class MotionVectorsParams(FeatureParams):
    """The stack, its size and its range."""

    length: int = Field(10, ge=1, le=64)
    """Motion fields in the stack; needs one more frame."""
    bound: float = Field(0.08, gt=0, le=1)
    """The largest displacement kept, as a fraction of the frame's short side: 0.08 is 20 px of 256."""
    picture: bool = True
    """True: enlarged to the size of the frames, as flow is. False: one value for each cell of 8 x 8 pixels."""


class MotionVectors:
    """Motion vectors of the clip's middle `length + 1` frames: `(1, H, W, 2 * length) uint8`, channels dx0, dy0, dx1,
    dy1, ..., or `(1, H / 8, W / 8, 2 * length)` without `picture`.

    Coded as in `essp_engine.features.quantization`: 128 means no motion.
    """

    name: ClassVar[str] = "motion_vectors"
    summary: ClassVar[str] = "Motion vectors that the codec has stored, stacked (motion): H.264, MPEG-4 and older."
    layout: ClassVar[FeatureLayout] = MOTION
    signed_codes: ClassVar[bool] = True
    needs: ClassVar[Needs] = "motion"

    Params: ClassVar[type[FeatureParams]] = MotionVectorsParams

    def __init__(self, params: MotionVectorsParams) -> None:
        self._params = params

    def frames_needed(self) -> int:
        return self._params.length + 1

    def output(self, clip: ArraySpec) -> ArraySpec:
        height, width = self._size(clip.shape[1], clip.shape[2])
        return ArraySpec((1, height, width, 2 * self._params.length), "uint8")

    def setup(self) -> None:
        self._cv2 = load_opencv()

    def extract(self, clip: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return self.extract_from(Intermediates(clip))

    def extract_from(self, shared: Intermediates) -> NDArray[np.uint8]:
        motion = shared.motion
        if motion is None:
            raise ConfigError(
                "motion_vectors are read from a compressed video, not computed from frames; use a video, or flow",
                field="feature",
                code="unsupported",
            )
        window = centre_window(shared.frames, self._params.length + 1)
        bound_px = self._params.bound * min(shared.size)
        height, width = self._size(*shared.size)
        fields = motion[window.start + 1 : window.stop].astype(np.float32) / np.float32(UNIT)
        codes = quantize(fields, bound_px).transpose(1, 2, 0, 3).reshape(*fields.shape[1:3], -1)
        stack: NDArray[np.uint8] = self._cv2.resize(codes, (width, height), interpolation=self._cv2.INTER_LINEAR)
        return stack.reshape(1, height, width, -1)

    def _size(self, height: int, width: int) -> tuple[int, int]:
        if self._params.picture:
            return height, width
        rows, columns, _ = motion_shape(height, width)
        return rows, columns
