"""Computes the size of a clip's frames, and the shape of their array, from a `Resize`. No other module does."""

from __future__ import annotations

import math

from essp_common.errors import ConfigError
from essp_common.pb.v1.messages_pb2 import Resize

YUV420, GRAY, GRAY16 = "yuv420", "gray", "gray16"
"""The values of `Resize.pixels` other than `rgb` (or empty)."""


def output_size(resize: Resize, height: int, width: int) -> tuple[int, int]:
    """(height, width) of the frames that `resize` produces from a video displayed at `height` x `width`.

    For YUV 4:2:0 with `SHORT_SIDE`, the sides are even.
    """
    if resize.mode == Resize.NONE:
        return height, width
    if resize.mode == Resize.SHORT_SIDE:
        short, step = min(height, width), 2 if resize.pixels == YUV420 else 1
        return _side(height * resize.height / short, step), _side(width * resize.height / short, step)
    if resize.mode == Resize.BOUNDED:
        return _bounded(resize, height, width)
    return resize.height, resize.width


def frame_shape(resize: Resize, height: int, width: int) -> tuple[int, ...]:
    """The shape of one frame that `resize` produces from such a video; `essp_engine/video/colour.py` has the layouts.

    Raises `ConfigError` for YUV 4:2:0 with odd sides, which do not exist.
    """
    height, width = output_size(resize, height, width)
    if resize.pixels in (GRAY, GRAY16):
        return height, width, 1
    if resize.pixels != YUV420:
        return height, width, 3
    if height % 2 or width % 2:
        raise ConfigError(
            f"yuv420 has one colour for 2 x 2 pixels, so frames of {width} x {height} cannot be kept in "
            "it; choose even sides (clip.resize), or rgb",
            field="clip.pixels",
            code="conflict",
        )
    return height * 3 // 2, width


def frame_dtype(resize: Resize) -> str:
    """The type of the values of a frame that `resize` produces, as NumPy names it."""
    return "uint16" if resize.pixels == GRAY16 else "uint8"


def covering_size(
    height: int, width: int, target_height: int, target_width: int, *, even: bool = False
) -> tuple[int, int]:
    """(height, width) of the smallest picture that covers the target and keeps its aspect ratio.

    `even`: make the sides even, like the target's.
    """
    step = 2 if even else 1
    scale = max(target_height / height, target_width / width)
    return max(target_height, _side(height * scale, step)), max(target_width, _side(width * scale, step))


def _bounded(resize: Resize, height: int, width: int) -> tuple[int, int]:
    """The sides that the processors of Qwen-VL compute for such a frame: those of Qwen2-VL and Qwen2.5-VL for bounds of
    a frame, and those of Qwen3-VL for bounds of a clip.

    The order of the operations is theirs, too, because it decides how a quotient is rounded.
    """
    step, frames = resize.multiple_of, resize.frames or 1
    if resize.frames and min(height, width) < step:
        scale = max(step / height, step / width)
        height, width = int(height * scale), int(width * scale)
    rounded = round(height / step) * step, round(width / step) * step
    pixels = frames * rounded[0] * rounded[1]
    if resize.max_pixels and pixels > resize.max_pixels:
        shrink = math.sqrt((frames * height * width) / resize.max_pixels)
        return max(step, _floor(height / shrink, step)), max(step, _floor(width / shrink, step))
    if pixels < resize.min_pixels:
        grow = math.sqrt(resize.min_pixels / (frames * height * width))
        return _ceil(height * grow, step), _ceil(width * grow, step)
    return rounded


def _floor(length: float, step: int) -> int:
    return math.floor(length / step) * step


def _ceil(length: float, step: int) -> int:
    return math.ceil(length / step) * step


def _side(length: float, step: int) -> int:
    """The nearest multiple of `step`, at least one step."""
    return max(1, round(length / step)) * step
