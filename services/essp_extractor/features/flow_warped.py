"""`flow_warped`: optical flow without the camera's motion (Wang et al., "Temporal Segment Networks", ECCV 2016, section
3.2, after Wang & Schmid's improved trajectories, ICCV 2013)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from essp_common.job.feature_layout import MOTION, FeatureLayout
from essp_engine.features.intermediates import Intermediates
from essp_engine.features.port import FeatureParams
from essp_extractor.features.stacked import StackedFlow, StackedFlowParams
from essp_extractor.motion.camera import CameraMotion
from essp_extractor.motion.fields import Field, FlowMethod


class FlowWarped(StackedFlow):
    """Warped flow of the clip's middle `length + 1` frames: `(1, H, W, 2 * length) uint8`, channels dx0, dy0, dx1, ...

      A displacement goes from a frame to the next, after the next frame was warped to the camera's earlier position
    (see `essp_extractor.motion.camera`). Where the camera's motion cannot be estimated, the result is ordinary flow.
    Units and codes are the same as for `flow`.
    """

    name: ClassVar[str] = "flow_warped"
    summary: ClassVar[str] = "Optical flow with the camera's motion removed, stacked (motion)."
    layout: ClassVar[FeatureLayout] = MOTION

    Params: ClassVar[type[FeatureParams]] = StackedFlowParams

    def __init__(self, params: StackedFlowParams) -> None:
        super().__init__(params, FlowMethod(self.name, params.method, params.preset))

    def setup(self) -> None:
        super().setup()
        self._camera = CameraMotion(self._method)

    def _fields(self, shared: Intermediates, first: int) -> Iterator[Field]:
        return (self._camera.warped_field(shared, i) for i in range(first, first + self._length))
