"""A checksum of a decoded frame as the decoder gave it, before any conversion: to tell equal frames."""

from __future__ import annotations

import zlib
from typing import Any, cast

import numpy as np
from av.video.frame import VideoFrame


def digest(frame: VideoFrame) -> int:
    """CRC-32 over the samples of all planes (not over the padding of their lines), size and format."""
    components = frame.format.components
    sample_bytes = -(-max(component.bits for component in components) // 8)
    crc = zlib.crc32(f"{frame.format.name} {frame.width}x{frame.height}".encode())
    for index, plane in enumerate(frame.planes):
        interleaved = sum(component.plane == index for component in components) or 1
        line_bytes = min(plane.width * sample_bytes * interleaved, plane.line_size)
        lines = np.ndarray(
            (plane.height, line_bytes), np.uint8, memoryview(cast(Any, plane)), strides=(plane.line_size, 1)
        )
        crc = zlib.crc32(np.ascontiguousarray(lines).data, crc)
    return crc
