"""Pictures as planes: RGB as `(3, H, W)`, as networks take them.

libswscale converts YUV 4:2:0 to planes with vector code, in a fifth of the time that packed RGB takes. Its results are
the same where rows fill whole vectors. For each size this is checked on the first frame; otherwise the packed picture
is taken apart.
"""

from __future__ import annotations

import numpy as np
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

from essp_common.pb.v1.messages_pb2 import Resize
from essp_engine.video.conversion import FrameConverter, quarter_turns
from essp_engine.video.planes import rows_of

_FAST = ("yuv420p", "yuvj420p")
_VECTOR = 16
"""Pixels of a vector."""
_ORDER = (2, 0, 1)
"""The plane of red, green and blue in FFmpeg's `gbrp`."""


class PlanarConverter:
    """Converts decoded frames. Reuses libswscale's tables for the next frame. Used from one thread at a time."""

    def __init__(self) -> None:
        self._packed = FrameConverter()
        self._planar = VideoReformatter()
        self._alike: dict[tuple[str, int, int, int, int], bool] = {}

    def rgb(self, frame: VideoFrame, target: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
        """`(3, H, W)` uint8, RGB, as displayed; written to `target`, if it has this shape."""
        kind = (frame.format.name, frame.width, frame.height, int(frame.colorspace), int(frame.color_range))
        if kind not in self._alike:
            fast = frame.format.name in _FAST and not frame.width % _VECTOR and not frame.height % 2
            self._alike[kind] = fast and bool(np.array_equal(self._planes(frame, None), self._taken_apart(frame)))
        if self._alike[kind] and not frame.interlaced_frame and not frame.rotation:
            return self._planes(frame, target)
        made = self._taken_apart(frame)
        if target is None or target.shape != made.shape:
            return made
        target[...] = made
        return target

    def _planes(self, frame: VideoFrame, target: NDArray[np.uint8] | None) -> NDArray[np.uint8]:
        made = self._planar.reformat(frame, format="gbrp", interpolation="BILINEAR", threads=1)
        shape = (3, frame.height, frame.width)
        if target is None or target.shape != shape:
            target = np.empty(shape, np.uint8)
        for place, plane in enumerate(_ORDER):
            target[place] = rows_of(made.planes[plane], frame.width)
        return target

    def _taken_apart(self, frame: VideoFrame) -> NDArray[np.uint8]:
        packed = np.empty((*displayed(frame), 3), np.uint8)
        self._packed.write(frame, Resize(), packed)
        return np.ascontiguousarray(packed.transpose(2, 0, 1))


def displayed(frame: VideoFrame) -> tuple[int, int]:
    """Height and width as displayed."""
    return (frame.width, frame.height) if quarter_turns(frame) % 2 else (frame.height, frame.width)
