"""`flow_warped`: optical flow without the camera's motion (Wang et al., "Temporal Segment Networks", ECCV 2016, section
3.2, after Wang & Schmid's improved trajectories, ICCV 2013)."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from essp_common.features.intermediates import Intermediates
from essp_common.features.port import ArraySpec
from essp_common.features.sampling import centre_window
from services.extractor.camera import CameraMotion
from services.extractor.fields import FlowFields, FlowMethod, MethodName, Preset


class FlowWarped:
    """Warped flow of the clip's middle `length + 1` frames: `(1, H, W, 2 * length) uint8`, channels dx0, dy0, dx1, ...

    A displacement is from a frame to the next one, after that has been warped to where the camera was (see
    `services.extractor.camera`); where the camera's motion cannot be told it is plain flow. Units and codes are those
    of `flow`.
    """

    name: ClassVar[str] = "flow_warped"
    summary: ClassVar[str] = "Optical flow with the camera's motion taken out, stacked (motion)."

    def __init__(
        self,
        method: MethodName = "dis",
        length: Annotated[int, Field(ge=1, le=64)] = 10,
        bound: Annotated[float, Field(gt=0, le=1000)] = 20.0,
        preset: Preset = "ultrafast",
    ) -> None:
        """All as in `flow`."""
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
        self._camera = CameraMotion(self._method)

    def extract(self, clip: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return self.extract_from(Intermediates(clip))

    def extract_from(self, shared: Intermediates) -> NDArray[np.uint8]:
        window = centre_window(len(shared.clip), self._length + 1)
        fields = (self._camera.warped_field(shared, i) for i in range(window.start, window.stop - 1))
        return self._fields.stacked(fields, self._bound)
