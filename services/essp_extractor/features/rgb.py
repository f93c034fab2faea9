"""`rgb`: unchanged frames of the clip.

Trainers of an `rgb` stream read the clip itself and choose the same frames. This class declares the geometry to the
registry and serves previews.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from essp_common.job.feature_layout import COLOURS, FeatureLayout
from essp_engine.features.port import ArraySpec, FeatureParams
from essp_engine.features.sampling import evenly_spaced


class RgbParams(FeatureParams):
    """Which frames to use."""

    frames: int = Field(1, ge=1, le=512)
    """Number of frames of the clip, evenly spaced; 1 means the middle frame."""


class Rgb:
    """`frames` evenly spaced frames: `(frames, H, W, 3) uint8`."""

    name: ClassVar[str] = "rgb"
    summary: ClassVar[str] = "Frames of the clip itself (appearance)."
    layout: ClassVar[FeatureLayout] = COLOURS

    Params: ClassVar[type[FeatureParams]] = RgbParams

    def __init__(self, params: RgbParams) -> None:
        self._frames = params.frames

    def frames_needed(self) -> int:
        return self._frames

    def output(self, clip: ArraySpec) -> ArraySpec:
        return ArraySpec((self._frames, *clip.shape[1:]), clip.dtype)

    def setup(self) -> None:
        """Do nothing: no preparation is needed."""

    def extract(self, clip: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return clip[evenly_spaced(len(clip), self._frames)]
