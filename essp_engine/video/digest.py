"""A checksum of a decoded frame before any conversion, for recognising equal frames."""

from __future__ import annotations

import zlib

import numpy as np
from av.video.frame import VideoFrame

from essp_engine.video.planes import samples_of


def digest(frame: VideoFrame) -> int:
    """CRC-32 of the format, the size and the samples of all planes, including palettes. Line padding is ignored."""
    crc = zlib.crc32(f"{frame.format.name} {frame.width}x{frame.height}".encode())
    for rows in samples_of(frame):
        crc = zlib.crc32(np.ascontiguousarray(rows).data, crc)
    return crc
