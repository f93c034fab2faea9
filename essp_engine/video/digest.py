"""A checksum of a frame as decoded, before any conversion, by which equal frames are recognised."""

from __future__ import annotations

import zlib

import numpy as np
from av.video.frame import VideoFrame

from essp_engine.video.planes import samples_of


def digest(frame: VideoFrame) -> int:
    """CRC-32 of the format, the size and the samples of all planes, palettes too. What pads lines does not count."""
    crc = zlib.crc32(f"{frame.format.name} {frame.width}x{frame.height}".encode())
    for rows in samples_of(frame):
        crc = zlib.crc32(np.ascontiguousarray(rows).data, crc)
    return crc
