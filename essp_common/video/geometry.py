"""How large a clip's frames come out: the one place that turns a `Resize` into sizes."""

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
    """(height, width) of a picture scaled, with its aspect ratio kept, to just cover the target."""
    scale = max(target_height / height, target_width / width)
    return max(target_height, round(height * scale)), max(target_width, round(width * scale))
