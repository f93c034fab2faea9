"""A checksum of a frame as decoded, before any conversion, by which equal frames are recognised."""

from __future__ import annotations

import zlib
from typing import Any, cast

import numpy as np
from av.video.frame import VideoFrame


def digest(frame: VideoFrame) -> int:
    """CRC-32 of the format, the size and the samples of all planes. The padding of lines does not count."""
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
