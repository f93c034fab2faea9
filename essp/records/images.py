"""Images of records: decoding, and scaling to one size."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from essp_common.errors import BadFrames
from essp_common.records.chunk import Encoding

Image = NDArray[np.uint8]

_MOST_PIXELS = 2**28
"""Of a scaled image, before it is cropped: 800 MB. A line of 50,000 pixels, scaled to cover a square, has 7 GB."""


def decoded(data: bytes | memoryview) -> Image:
    """Decode an image file (JPEG, PNG, WebP, BMP, ...) to `(H, W, 3)` uint8, RGB, rotated according to its EXIF data.

    Raises `BadFrames`.
    """
    if not len(data):
        raise BadFrames("the file is empty")
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    except cv2.error as error:  # for example: too large
        raise BadFrames(f"it cannot be decoded: {error.err}") from error
    if pixels is None:
        raise BadFrames("it is not an image, or a damaged one")
    return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB), np.uint8)


def image_of(data: bytes | memoryview, encoding: int, shape: tuple[int, int, int]) -> Image:
    """Decode a record's bytes to `(H, W, C)`. Raises `BadFrames`."""
    if encoding != Encoding.RAW:
        return decoded(data)
    if len(data) != int(np.prod(shape)):
        raise BadFrames(f"it has {len(data)} bytes, and {shape} needs {int(np.prod(shape))}")
    return np.frombuffer(data, np.uint8).reshape(shape)


def covering(image: Image, height: int, width: int) -> Image:
    """Scale an image until it covers `(height, width)`, then crop its centre: `(height, width, C)`.

    Raises `BadFrames` for an image whose sides differ so much that it would take the memory of the machine.
    """
    scale = max(height / image.shape[0], width / image.shape[1])
    if scale != 1:
        size = (max(width, round(image.shape[1] * scale)), max(height, round(image.shape[0] * scale)))
        if size[0] * size[1] > max(_MOST_PIXELS, 4 * height * width):
            raise BadFrames(f"it is too narrow: to cover {height}x{width}, it would be scaled to {size[1]}x{size[0]}")
        scaled = cv2.resize(image, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)
        image = np.asarray(scaled, np.uint8).reshape(*scaled.shape[:2], image.shape[2])
    top, left = (image.shape[0] - height) // 2, (image.shape[1] - width) // 2
    return image[top : top + height, left : left + width]


def jpeg(image: Image, quality: int) -> bytes:
    """The image as a JPEG file."""
    order = cv2.COLOR_RGB2BGR if image.shape[2] == 3 else cv2.COLOR_GRAY2BGR
    done, data = cv2.imencode(".jpg", cv2.cvtColor(image, order), [cv2.IMWRITE_JPEG_QUALITY, quality])
    if not done:
        raise BadFrames("it cannot be written as JPEG")
    return bytes(data)
