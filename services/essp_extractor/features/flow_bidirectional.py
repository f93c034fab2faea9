"""`flow_bidirectional`: motion into the future and into the past of one frame.

Simonyan and Zisserman, "Two-Stream Convolutional Networks for Action Recognition in Videos" (NIPS 2014), section 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pydantic import Field

from essp_common.errors import ConfigError
from essp_common.job.feature_layout import MOTION, FeatureLayout
from essp_engine.features.intermediates import Intermediates
from essp_engine.features.port import FeatureParams
from essp_extractor.features.stacked import StackedFlow, StackedFlowParams
from essp_extractor.motion.fields import Field as FlowField
from essp_extractor.motion.fields import FlowMethod


class FlowBidirectionalParams(StackedFlowParams):
    """The parameters of a flow stack, with an even length."""

    length: int = Field(10, ge=2, le=64)
    """Total number of flow fields, an even number; needs one more frame."""


class FlowBidirectional(StackedFlow):
    """Flow in both directions from the middle frame: `(1, H, W, 2 * length) uint8`, the same number of channels as
    `flow`.

    Let m be the middle of the clip's middle `length + 1` frames. First come the displacements from m to m+1, m+1 to
    m+2, ... (`length / 2` fields), then the displacements from m to m-1, m-1 to m-2, ...; each as dx, dy. Units and
    codes are the same as for `flow`.
    """

    name: ClassVar[str] = "flow_bidirectional"
    summary: ClassVar[str] = "Optical flow forward and backward from the middle frame, stacked (motion)."
    layout: ClassVar[FeatureLayout] = MOTION

    Params: ClassVar[type[FeatureParams]] = FlowBidirectionalParams

    def __init__(self, params: FlowBidirectionalParams) -> None:
        if params.length % 2:
            raise ConfigError(
                f"{self.name}: length {params.length} is odd; half of the fields are forward, half backward"
            )
        super().__init__(params, FlowMethod(self.name, params.method, params.preset))

    def _fields(self, shared: Intermediates, first: int) -> Iterator[FlowField]:
        half = self._length // 2
        middle = first + half
        forward = [(i, i + 1) for i in range(middle, middle + half)]
        backward = [(i, i - 1) for i in range(middle, middle - half, -1)]
        return (self._flow.between(shared, *pair) for pair in forward + backward)
