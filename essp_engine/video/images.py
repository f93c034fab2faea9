"""Decodes images of records: files (JPEG, PNG, WebP, BMP, TIFF, GIF) and raw pixel values.

FFmpeg's decoders read the files, selected by their first bytes, without a demuxer. An image becomes a frame as in a
video, rotated and mirrored according to its EXIF data, and `FrameConverter` scales, crops and converts both alike.
Raw pixels that need neither are copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

import av
import av.error
import numpy as np
from av.codec.context import CodecContext
from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from numpy.typing import NDArray

from essp_common.errors import BadVideo
from essp_common.pb.v1.messages_pb2 import Resize
from essp_engine.video.colour import Colour
from essp_engine.video.container import reason
from essp_engine.video.conversion import FrameConverter
from essp_engine.video.geometry import GRAY, YUV420, covering_size
from essp_engine.video.png_profiles import without_profile

_CODECS: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\xff\xd8\xff", "mjpeg"),
    (0, b"\x89PNG\r\n\x1a\n", "png"),
    (8, b"WEBP", "webp"),
    (0, b"BM", "bmp"),
    (0, b"II*\0", "tiff"),
    (0, b"MM\0*", "tiff"),
    (0, b"GIF8", "gif"),
)
"""Offset and bytes at the beginning of an image file, and FFmpeg's decoder for it."""
_ENDS: Mapping[str, bytes] = {"mjpeg": b"\xff\xd9", "gif": b"\0;"}
"""Bytes that every complete file contains, for formats whose decoder does not notice a missing end."""
_COMPRESSION, _JPEG_IN_TIFF = 259, (6, 7)
"""A TIFF field, and the values of it for which FFmpeg returns black or torn pictures without an error."""
_FORMATS: Mapping[int, str] = {1: "gray", 3: "rgb24", 4: "rgba"}
"""Channels of raw pixels -> FFmpeg's name of the format."""


class ImageDecoder:
    """Decodes images one by one. Used from one thread."""

    def __init__(self, pixels: int) -> None:
        """`pixels`: the limit for one image."""
        self._pixels = pixels
        self._converter = FrameConverter()

    def write(
        self,
        data: bytes,
        shape: tuple[int, int, int] | None,
        resize: Resize,
        target: NDArray[np.uint8],
        *,
        strict: bool = True,
    ) -> Colour | None:
        """Fill `target` as `FrameConverter.write` does. Returns the colour space if it is not RGB.

        `shape`: `(H, W, C)` of raw pixels; None for a file. `strict`: any sign of damage counts. Raises `BadVideo`.
        """
        if shape is None:
            return self._converter.write(self._decoded(data, strict), resize, target)
        image = _numbers(data, shape)
        if (cut := _cut(image, resize, target)) is not None:
            target[...] = cut
            return None
        frame = VideoFrame.from_ndarray(image[..., 0] if shape[2] == 1 else image, format=_FORMATS[shape[2]])
        return self._converter.write(frame, resize, target)

    def _decoded(self, data: bytes, strict: bool) -> VideoFrame:
        data = bytes(data)  # it may be a view
        name = _codec_of(data)
        if name == "tiff" and _tiff_compression(data) in _JPEG_IN_TIFF:
            raise BadVideo("a TIFF image that is compressed as JPEG is not read; write it as JPEG or PNG", "format")
        if strict and name in _ENDS and _ENDS[name] not in data:
            raise BadVideo("the image ends early: no mark of its end is in it", "truncated")
        context = _context(name, self._pixels, strict)
        try:
            frames = context.decode(Packet(without_profile(data) if name == "png" else data))
        except av.error.FFmpegError as error:
            raise BadVideo(f"the image cannot be decoded: {reason(error)}") from error
        except ValueError as error:
            raise BadVideo(f"the image cannot be decoded: {error}") from error
        if not frames:
            raise BadVideo("the image cannot be decoded: it ends early", "truncated")
        if strict and frames[0].is_corrupt:
            raise BadVideo("the image is damaged")
        return frames[0]


def _context(name: str, pixels: int, strict: bool) -> VideoCodecContext:
    """A decoder for one image. It is not reused, because a PNG decoder's output may depend on earlier input."""
    context = cast(VideoCodecContext, CodecContext.create(name, "r"))
    context.thread_count = 1
    context.options = {"max_pixels": str(pixels)}
    if strict and name != "tiff":  # the TIFF decoder mistakes libtiff's output for damage
        context.options["err_detect"] = "explode"
    return context


def _codec_of(data: bytes) -> str:
    head = bytes(data[:16])
    for at, mark, name in _CODECS:
        if head[at : at + len(mark)] == mark:
            return name
    raise BadVideo("not an image of a known format (JPEG, PNG, WebP, BMP, TIFF, GIF)", "format")


def _tiff_compression(data: bytes) -> int:
    """The compression of the first image of a TIFF file (TIFF 6.0, section 2); 0 if the file does not say."""
    order: Literal["little", "big"] = "little" if data[:1] == b"I" else "big"

    def number(at: int, size: int) -> int:
        return int.from_bytes(data[at : at + size], order)

    begin = number(4, 4)
    fields = range(begin + 2, min(begin + 2 + 12 * number(begin, 2), len(data)), 12)
    return next((number(at + 8, 2) for at in fields if number(at, 2) == _COMPRESSION), 0)


def _numbers(data: bytes, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    if shape[2] not in _FORMATS:
        raise BadVideo(f"an image of {shape[2]} channels cannot be shown; it must have 1, 3 or 4", "format")
    if len(data) != shape[0] * shape[1] * shape[2]:
        raise BadVideo(f"{len(data)} bytes are not an image of {shape[0]} x {shape[1]} x {shape[2]} numbers")
    return np.frombuffer(data, np.uint8).reshape(shape)


def _cut(image: NDArray[np.uint8], resize: Resize, target: NDArray[np.uint8]) -> NDArray[Any] | None:
    """The requested part of RGB pixels; None if they must be scaled or converted."""
    if resize.pixels in (YUV420, GRAY) or image.shape[2] != 3:
        return None
    height, width = target.shape[:2]
    if resize.mode == Resize.CROP and covering_size(image.shape[0], image.shape[1], height, width) != image.shape[:2]:
        return None
    if resize.mode != Resize.CROP and image.shape[:2] != (height, width):
        return None
    top, left = (image.shape[0] - height) // 2, (image.shape[1] - width) // 2
    return image[top : top + height, left : left + width]
