"""Converts decoded frames to RGB pictures of the wanted size, in one pass of libswscale."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

from essp_common.pb.v1.messages_pb2 import Resize
from essp_common.video.geometry import covering_size

_INTERPOLATION = {"": "BILINEAR", "nearest": "POINT"}


class Pictures:
    """Rotates, scales and converts frames. Reuses libswscale's tables for the next frame."""

    def __init__(self) -> None:
        self._reformatter = VideoReformatter()

    def write(self, frame: VideoFrame, resize: Resize, target: NDArray[np.uint8]) -> None:
        """Fill `target`, `(H, W, 3) uint8, RGB`, with the frame as displayed.

        The whole target is filled. Only `Resize.CROP` keeps the aspect ratio of the frame.
        """
        turns = quarter_turns(frame)
        height, width = target.shape[:2]
        if resize.mode == Resize.CROP:
            shown = (frame.width, frame.height) if turns % 2 else (frame.height, frame.width)
            height, width = covering_size(*shown, height, width)
        picture = self._convert(frame, *((width, height) if turns % 2 else (height, width)), resize.interpolation)
        if turns:
            picture = np.rot90(picture, turns)
        top, left = (height - target.shape[0]) // 2, (width - target.shape[1]) // 2
        target[...] = picture[top : top + target.shape[0], left : left + target.shape[1]]

    def _convert(self, frame: VideoFrame, height: int, width: int, interpolation: str) -> NDArray[np.uint8]:
        """The converted frame, `(height, width, 3) uint8, RGB`, as a view."""
        method = _INTERPOLATION.get(interpolation) or interpolation.upper()
        scaled = self._reformatter.reformat(
            frame, width=width, height=height, format="rgb24", interpolation=method, threads=1
        )
        plane = scaled.planes[0]
        return np.ndarray((height, width, 3), np.uint8, memoryview(cast(Any, plane)), strides=(plane.line_size, 3, 1))


def quarter_turns(frame: VideoFrame) -> int:
    """Quarter turns, counter-clockwise, from the picture as coded to the picture as displayed."""
    return round(frame.rotation / 90) % 4
