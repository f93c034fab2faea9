"""The compressing codecs: `jpeg` and `zstd`. `codec.py` combines their parts into one cache value.

A new codec is a class that implements `Compressor`, a line at the end of `COMPRESSORS`, and its name in the job's
`CodecSpec`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import simplejpeg
import zstandard
from numpy.typing import NDArray

from essp_common.errors import BadFrames, ConfigError
from essp_common.pb.v1.messages_pb2 import FrameCodec

_MAX_JPEG_SIDE = 65_500
_SUBSAMPLING = ("444", "422", "420")


class Compressor(Protocol):
    """Compresses an array whose first axis is time into parts, the same number for each frame, and decompresses
    them."""

    def check(self, shape: Sequence[int], dtype: np.dtype[Any]) -> None:
        """Raise `ConfigError` for an array that this codec does not support."""

    def parts_per_frame(self, shape: Sequence[int], dtype: np.dtype[Any]) -> int | None:
        """The number of parts of one frame; None for an array that this codec does not support."""

    def max_part_bytes(self, shape: Sequence[int], dtype: np.dtype[Any]) -> int:
        """Upper bound for the size of a part, for any content and quality, for an array that `check` accepts."""

    def compress(self, array: NDArray[Any], dtype: np.dtype[Any], codec: FrameCodec) -> list[bytes]:
        """The parts, frame by frame. `dtype`: the type to store. Raises `ConfigError`."""

    def decompress(self, parts: Sequence[memoryview], shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """A new array from the parts of its `shape[0]` frames. Raises `BadFrames`."""


class Jpeg:
    """One JPEG per frame of 1 or 3 channels, otherwise one greyscale JPEG per channel. uint8 `(T, H, W, C)` only."""

    def check(self, shape: Sequence[int], dtype: np.dtype[Any]) -> None:
        if self.parts_per_frame(shape, dtype) is None:
            what = f"{dtype} of shape {tuple(shape)}"
            raise ConfigError(
                f"codec jpeg holds uint8 (T, H, W, C), not {what}; use raw or zstd for this stream", code="unsupported"
            )

    def parts_per_frame(self, shape: Sequence[int], dtype: np.dtype[Any]) -> int | None:
        if dtype != np.uint8 or len(shape) != 4:
            return None
        return 1 if shape[3] in (1, 3) else shape[3]

    def max_part_bytes(self, shape: Sequence[int], dtype: np.dtype[Any]) -> int:
        """`tjBufSize` of libjpeg-turbo: whole blocks of 16 pixels, with every coefficient at its largest size."""
        _, height, width, channels = shape
        padded = -(-height // 16) * -(-width // 16) * 256
        return padded * (6 if channels == 3 else 3) + 2048

    def compress(self, array: NDArray[Any], dtype: np.dtype[Any], codec: FrameCodec) -> list[bytes]:
        self.check(array.shape, dtype)
        subsampling = codec.subsampling or "444"
        if subsampling not in _SUBSAMPLING:
            raise ConfigError(f"JPEG subsampling {subsampling!r}: use one of {', '.join(_SUBSAMPLING)}", code="unknown")
        height, width, channels = array.shape[1:]
        if not (min(height, width, channels) > 0 and max(height, width) <= _MAX_JPEG_SIDE):
            raise ConfigError(
                f"JPEG cannot hold images of {width}x{height}x{channels}; use raw or zstd for this stream",
                code="unsupported",
            )
        if (quality := codec.quality or 95) > 100:
            raise ConfigError(f"JPEG quality {quality}: use 1 to 100", code="range")
        if channels == 3:
            images = (np.ascontiguousarray(frame) for frame in array)
            return [simplejpeg.encode_jpeg(i, quality, "RGB", subsampling) for i in images]
        planes = (np.ascontiguousarray(plane) for frame in array for plane in np.moveaxis(frame, 2, 0))
        return [simplejpeg.encode_jpeg(p[:, :, np.newaxis], quality, "GRAY", "Gray") for p in planes]

    def decompress(self, parts: Sequence[memoryview], shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        try:
            return self._decompressed(parts, shape)
        except ValueError as error:
            raise BadFrames(f"jpeg frames do not decode: {error}") from error

    def _decompressed(self, parts: Sequence[memoryview], shape: tuple[int, ...]) -> NDArray[np.uint8]:
        for part in parts:
            if (size := simplejpeg.decode_jpeg_header(part)[:2]) != shape[1:3]:
                raise BadFrames(f"a JPEG of {size} where the header promises frames of {shape[1:3]}")
        array = np.empty(shape, np.uint8)
        if shape[3] in (1, 3):
            colours = "RGB" if shape[3] == 3 else "GRAY"
            for frame, part in zip(array, parts, strict=True):
                simplejpeg.decode_jpeg(part, colours, buffer=frame)
            return array
        plane = np.empty((*shape[1:3], 1), np.uint8)
        for index, part in enumerate(parts):
            simplejpeg.decode_jpeg(part, "GRAY", buffer=plane)
            frame, channel = divmod(index, shape[3])
            array[frame, :, :, channel] = plane[:, :, 0]
        return array


class Zstd:
    """One Zstandard frame per frame, of any type and shape.

    In integer images, each row except the first is stored as its difference from the row above (modulo the type).
    """

    def check(self, shape: Sequence[int], dtype: np.dtype[Any]) -> None:
        """Accepts everything that a cache value can hold."""

    def parts_per_frame(self, shape: Sequence[int], dtype: np.dtype[Any]) -> int | None:
        return 1

    def max_part_bytes(self, shape: Sequence[int], dtype: np.dtype[Any]) -> int:
        """`ZSTD_compressBound` of zstd.h."""
        size = _frame_bytes(shape, dtype)
        return size + (size >> 8) + ((2**17 - size) >> 11 if size < 2**17 else 0)

    def compress(self, array: NDArray[Any], dtype: np.dtype[Any], codec: FrameCodec) -> list[bytes]:
        if codec.quality > zstandard.MAX_COMPRESSION_LEVEL:
            raise ConfigError(
                f"zstd level {codec.quality}: use 1 (fast) to {zstandard.MAX_COMPRESSION_LEVEL}", code="range"
            )
        compressor = zstandard.ZstdCompressor(level=codec.quality or 1)
        return [compressor.compress(_row_differences(frame, dtype).reshape(-1).view(np.uint8).data) for frame in array]

    def decompress(self, parts: Sequence[memoryview], shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        try:
            return self._decompressed(parts, shape, dtype)
        except (ValueError, zstandard.ZstdError) as error:
            raise BadFrames(f"zstd frames do not decode: {error}") from error

    def _decompressed(self, parts: Sequence[memoryview], shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        frame_bytes = _frame_bytes(shape, dtype)
        for part in parts:
            if (size := zstandard.frame_content_size(part)) != frame_bytes:
                raise BadFrames(f"a Zstandard frame of {size} bytes where the header promises {frame_bytes}")
        array = np.empty(shape, dtype)
        decompressor = zstandard.ZstdDecompressor()
        for frame, part in zip(array, parts, strict=True):
            frame[...] = np.frombuffer(decompressor.decompress(part), dtype).reshape(shape[1:])
            if _has_row_differences(frame):
                # Row by row: three to twenty times faster than `np.add.accumulate`.
                for above, row in pairwise(frame):
                    np.add(row, above, out=row)
        return array


COMPRESSORS: dict[str, Compressor] = {"jpeg": Jpeg(), "zstd": Zstd()}
"""By the name in job files. Values store a codec's index in this table: keep the order, and add at the end."""


def _frame_bytes(shape: Sequence[int], dtype: np.dtype[Any]) -> int:
    return math.prod(shape[1:]) * dtype.itemsize


def _has_row_differences(frame: NDArray[Any]) -> bool:
    return frame.ndim >= 2 and frame.dtype.kind in "iu"


def _row_differences(frame: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    stored = np.ascontiguousarray(frame, dtype)
    if not _has_row_differences(stored):
        return stored
    differences = stored.copy()
    np.subtract(stored[1:], stored[:-1], out=differences[1:])
    return differences
