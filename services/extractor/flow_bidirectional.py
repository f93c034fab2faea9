"""`flow_bidirectional`: motion into the future and into the past of one frame.

Simonyan and Zisserman, "Two-Stream Convolutional Networks for Action Recognition in Videos" (NIPS 2014), section 3.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from essp_common.errors import ConfigError
from essp_common.features.intermediates import Intermediates
from essp_common.features.port import ArraySpec
from essp_common.features.sampling import centre_window
from services.extractor.fields import FlowFields, FlowMethod, MethodName, Preset


class FlowBidirectional:
    """Flow both ways from the middle frame: `(1, H, W, 2 * length) uint8`, as many channels as `flow` has.

    With m the middle one of the clip's middle `length + 1` frames: first the displacements from m to m+1, m+1 to m+2,
    ... (`length / 2` of them), then those from m to m-1, m-1 to m-2, ...; each dx, dy. Units and codes are `flow`'s.
    """

    name: ClassVar[str] = "flow_bidirectional"
    summary: ClassVar[str] = "Optical flow forward and backward from the middle frame, stacked (motion)."

    def __init__(
        self,
        method: MethodName = "dis",
        length: Annotated[int, Field(ge=2, le=64)] = 10,
        bound: Annotated[float, Field(gt=0, le=1000)] = 20.0,
        preset: Preset = "ultrafast",
    ) -> None:
        """`length`: flow fields in all, an even number; needs one frame more. The others are as in `flow`."""
        if length % 2:
            raise ConfigError(f"{self.name}: length {length} is odd; half of the fields are forward, half backward")
        self._length = length
        self._bound = bound
        self._method = FlowMethod(self.name, method, preset)

    def frames_needed(self) -> int:
        return self._length + 1

    def output(self, clip: ArraySpec) -> ArraySpec:
        _, height, width, _ = clip.shape
        return ArraySpec((1, height, width, 2 * self._length), "uint8")

    def setup(self) -> None:
        self._fields = FlowFields(self._method)

    def extract(self, clip: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return self.extract_from(Intermediates(clip))

    def extract_from(self, shared: Intermediates) -> NDArray[np.uint8]:
        half = self._length // 2
        middle = centre_window(len(shared.clip), self._length + 1).start + half
        forward = [(i, i + 1) for i in range(middle, middle + half)]
        backward = [(i, i - 1) for i in range(middle, middle - half, -1)]
        return self._fields.stacked((self._fields.between(shared, *pair) for pair in forward + backward), self._bound)
