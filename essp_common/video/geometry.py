"""Computes the size of a clip's frames from a `Resize`. No other module does."""

from __future__ import annotations

from essp_common.pb.v1.messages_pb2 import Resize


def output_size(resize: Resize, height: int, width: int) -> tuple[int, int]:
    """(height, width) of the frames that `resize` makes of a video displayed at `height` x `width`."""
    if resize.mode == Resize.NONE:
        return height, width
    if resize.mode == Resize.SHORT_SIDE:
        short = min(height, width)
        return max(1, round(height * resize.height / short)), max(1, round(width * resize.height / short))
    return resize.height, resize.width


def covering_size(height: int, width: int, target_height: int, target_width: int) -> tuple[int, int]:
    """(height, width) of the smallest picture that covers the target and keeps its aspect ratio."""
    scale = max(target_height / height, target_width / width)
    return max(target_height, round(height * scale)), max(target_width, round(width * scale))
