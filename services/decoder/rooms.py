"""Where in the shared memory each clip of a work unit lies. Parent and child compute it from the same message."""

from __future__ import annotations

from dataclasses import dataclass

from essp_common.codec import raw_bytes
from essp_common.errors import BadVideo
from essp_common.pb.v1.messages_pb2 import DecodeSeed
from essp_common.video.geometry import output_size

_ALIGNMENT = 4096


@dataclass(frozen=True, slots=True)
class Room:
    """One clip's place."""

    shape: tuple[int, int, int, int]
    """(T, H, W, 3) of the frames."""
    start: int
    stop: int


def rooms(unit: DecodeSeed) -> list[Room]:
    """A place for each seed. Raises `BadVideo` for seeds that ask for nothing."""
    video = unit.video
    height, width = output_size(unit.recipe.resize, video.height, video.width)
    # What compresses badly may come out larger than it was. Memory that is not written to costs nothing.
    spare = 1 if unit.recipe.codec.name in ("", "raw") else 2
    found = []
    start = 0
    for seed in unit.seeds:
        if not (seed.frame_count and seed.stride and height and width):
            raise BadVideo(f"a seed without frames, or a video without size: {video.id}", "error")
        shape = (seed.frame_count, height, width, 3)
        stop = start + spare * (raw_bytes(shape, "u1") + _ALIGNMENT)
        found.append(Room(shape, start, stop))
        start = -(-stop // _ALIGNMENT) * _ALIGNMENT
    return found
