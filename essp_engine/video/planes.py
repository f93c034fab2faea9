"""The samples of a decoded frame as arrays, for any memory layout of the decoder.

A line may be longer than its samples (padding), and lines may be stored bottom-up: FFmpeg then reports a negative line
size, and PyAV's buffer begins at the last line. Uncompressed AVI is like that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
from av.video.frame import VideoFrame
from av.video.plane import VideoPlane
from numpy.typing import NDArray

from essp_common.errors import BadVideo

PALETTE_BYTES = 1024
"""256 colours of 32 bits: the second plane of a frame of palette indices, which has no lines."""
_UNUSED_BYTE = {"rgb0": 3, "bgr0": 3, "0rgb": 0, "0bgr": 0}
"""The unused byte of a pixel, in which decoders may leave anything."""


def rows_of(plane: VideoPlane, row_bytes: int) -> NDArray[np.uint8]:
    """`(H, row_bytes)` view of a plane, topmost line first."""
    size, lines = plane.line_size, plane.height
    start = -size * (lines - 1) if size < 0 else 0
    return np.ndarray((lines, row_bytes), np.uint8, memoryview(cast(Any, plane)), start, (size, 1))


def grey16(frame: VideoFrame) -> NDArray[np.uint16]:
    """`(H, W)` uint16: the first component of each pixel with all its bits, such as distances.

    Raises `BadVideo` for a frame that has no luma.
    """
    component = frame.format.components[0]
    name = frame.format.name
    if not name.startswith(("gray", "yuv")) or component.bits > 16:
        raise BadVideo(f"frames of format {name} contain no distances", "format")
    plane = frame.planes[component.plane]
    rows = rows_of(plane, frame.width * (2 if component.bits > 8 else 1))
    if component.bits > 8:
        rows = rows.view(np.dtype(">u2" if name.endswith("be") else "<u2"))
    return rows.astype(np.uint16)


def samples_of(frame: VideoFrame) -> Iterator[NDArray[np.uint8]]:
    """The meaningful bytes of each plane: `(H, bytes of a row)`; `(1, 1024)` for a palette."""
    name, planes = frame.format.name, frame.planes
    if name == "pal8":
        yield rows_of(planes[0], frame.width)
        yield np.frombuffer(memoryview(cast(Any, planes[1])), np.uint8, PALETTE_BYTES)[None]
    elif len(planes) == 1:
        rows = rows_of(planes[0], -(-frame.width * frame.format.padded_bits_per_pixel // 8))
        yield rows if name not in _UNUSED_BYTE else _without(rows, _UNUSED_BYTE[name])
    else:
        components = frame.format.components
        sample_bytes = -(-max(component.bits for component in components) // 8)
        for index, plane in enumerate(planes):
            interleaved = sum(component.plane == index for component in components)
            yield rows_of(plane, plane.width * sample_bytes * interleaved)


def _without(rows: NDArray[np.uint8], byte: int) -> NDArray[np.uint8]:
    """Rows of 4-byte pixels, without one of the bytes."""
    pixels = rows.reshape(len(rows), -1, 4)
    return np.delete(pixels, byte, axis=2).reshape(len(rows), -1)
