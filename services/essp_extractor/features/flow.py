"""`flow`: dense optical flow between consecutive frames, stacked and quantised (Simonyan & Zisserman, 2014).

`essp_extractor.motion.fields` has the methods. The flow of a clip is a function of the clip alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from essp_common.job.feature_layout import MOTION, FeatureLayout
from essp_engine.features.intermediates import Intermediates
from essp_engine.features.port import FeatureParams
from essp_extractor.features.stacked import StackedFlow, StackedFlowParams
from essp_extractor.motion.farneback import FarnebackParams
from essp_extractor.motion.fields import Field, FlowMethod
from essp_extractor.motion.tvl1 import TvL1Params


class FlowParams(TvL1Params, FarnebackParams, StackedFlowParams):
    """The stack, the method, and the parameters of each method. Parameters of a method that is not chosen are
    refused."""


class Flow(StackedFlow):
    """Flow of the clip's middle `length + 1` frames: `(1, H, W, 2 * length) uint8`, channels dx0, dy0, dx1, dy1, ...

      dx points right, dy down, in pixels per frame, coded as in `essp_engine.features.quantization`: 128 means no
    motion, and `bound * min(H, W)` pixels correspond to 127 steps, so the largest rounding error is half a step.
    """

    name: ClassVar[str] = "flow"
    summary: ClassVar[str] = "Dense optical flow, stacked (motion): DIS, Farnebäck or TV-L1."
    layout: ClassVar[FeatureLayout] = MOTION

    Params: ClassVar[type[FeatureParams]] = FlowParams

    def __init__(self, params: FlowParams) -> None:
        farneback, tvl1 = params.part(FarnebackParams), params.part(TvL1Params)
        super().__init__(params, FlowMethod(self.name, params.method, params.preset, farneback, tvl1))

    def _fields(self, shared: Intermediates, first: int) -> Iterator[Field]:
        return (self._flow.between(shared, i, i + 1) for i in range(first, first + self._length))
