"""Base of the features that stack flow fields: parameters, shape and coding.

Subclasses differ in the fields that they stack. `length` fields of a clip's middle `length + 1` frames become `(1, H,
W, 2 * length) uint8`, coded as in `essp_engine.features.quantization`: 128 means no motion, one step is `bound * min(H,
W) / 127` px.

The bound is a fraction of the frame size, since the same motion covers twice as many pixels in frames of twice the
size. A bound in pixels that suits 256 px would round most motion in frames of 128 px to zero.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from essp_engine.features.intermediates import Intermediates
from essp_engine.features.port import ArraySpec, Needs
from essp_engine.features.sampling import centre_window
from essp_extractor.motion.fields import Field as FlowField
from essp_extractor.motion.fields import FlowFields, FlowMethod, MethodParams


class StackedFlowParams(MethodParams):
    """How to compute flow, and which range of it to keep."""

    length: int = Field(10, ge=1, le=64)
    """Flow fields in the stack; needs one more frame."""
    bound: float = Field(0.08, gt=0, le=1)
    """The largest displacement kept, as a fraction of the frame's short side: 0.08 is 20 px of 256."""


class StackedFlow(ABC):
    """A feature that stacks flow fields."""

    signed_codes: ClassVar[bool] = True
    needs: ClassVar[Needs] = "luma"

    def __init__(self, params: StackedFlowParams, method: FlowMethod) -> None:
        self._method = method
        self._length = params.length
        self._bound = params.bound

    def frames_needed(self) -> int:
        return self._length + 1

    def output(self, clip: ArraySpec) -> ArraySpec:
        _, height, width, _ = clip.shape
        return ArraySpec((1, height, width, 2 * self._length), "uint8")

    def setup(self) -> None:
        self._flow = FlowFields(self._method)

    def extract(self, clip: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return self.extract_from(Intermediates(clip))

    def extract_from(self, shared: Intermediates) -> NDArray[np.uint8]:
        first = centre_window(shared.frames, self._length + 1).start
        bound_px = self._bound * min(shared.size)
        return self._flow.stacked(self._fields(shared, first), bound_px)

    @abstractmethod
    def _fields(self, shared: Intermediates, first: int) -> Iterator[FlowField]:
        """The fields of the frames from index `first` on, in stacking order."""
