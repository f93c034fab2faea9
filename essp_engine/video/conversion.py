"""Converts decoded frames to pictures of the requested size and colour space, in one pass of libswscale.

To RGB, libswscale converts in C, using the frame's matrix and range. To YUV 4:2:0 it only scales, with its vector code,
which takes a third of the time; the frame's matrix and range are kept (`colour_of`). Sources with other
subsamplings and depths (4:2:2, 4:4:4, 10 bits, grey, RGB) become 8-bit 4:2:0 on the way.

`gray16` is luma as the decoder gives it, such as distances: libswscale is not used, and a scaled frame has the nearest
pixels, because the mean of two distances is the distance of nothing.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Any

import av.error
import numpy as np
from av.sidedata.sidedata import SideDataContainer
from av.video.frame import VideoFrame
from av.video.plane import VideoPlane
from av.video.reformatter import ColorRange, Colorspace, VideoReformatter
from numpy.typing import NDArray

from essp_common.errors import BadVideo
from essp_common.pb.v1.messages_pb2 import Resize
from essp_engine.video.colour import Colour
from essp_engine.video.fields import WholePictures
from essp_engine.video.geometry import GRAY, GRAY16, YUV420, covering_size
from essp_engine.video.planes import grey16, rows_of

_INTERPOLATION = {"": "BILINEAR", "nearest": "POINT"}
_BT601 = "bt601"
_MATRICES = {1: "bt709", 4: "fcc", 7: "smpte240m", 9: "bt2020", 10: "bt2020"}
"""`AVColorSpace` (ITU-T H.273, table 4) -> matrix. Others, including unspecified ones, count as BT.601, as in
libswscale."""
_SPACES = {
    "bt601": Colorspace.ITU601,
    "bt709": Colorspace.ITU709,
    "bt2020": Colorspace.BT2020,
    "fcc": Colorspace.FCC,
    "smpte240m": Colorspace.SMPTE240M,
}
_FULL = 2
"""`AVCOL_RANGE_JPEG`."""
_ANY_RANGE = ColorRange.JPEG
"""Used for source and target alike, so that no range is converted. It is the full range, because grey has no other."""
_WITHOUT_MATRIX = ("gray", "rgb", "bgr", "gbr", "argb", "abgr", "pal8", "0rgb", "0bgr", "ya", "mono")
"""Prefixes of the names of formats that are not YUV: they have the full range, and are converted by BT.601."""

_BIG_ENDIAN = frozenset({"rgb555be", "rgb565be", "bgr555be", "bgr565be"})
"""Formats (16-bit QuickTime) that libswscale 9 converts to RGB of the same size with swapped bytes."""


class FrameConverter:
    """Flips, rotates, scales and converts frames. Reuses libswscale's tables for the next frame."""

    def __init__(self) -> None:
        self._reformatter = VideoReformatter()
        self._swapping = VideoReformatter()
        self._whole_pictures = WholePictures()

    def write(self, frame: VideoFrame, resize: Resize, target: NDArray[Any]) -> Colour | None:
        """Fill `target` with the frame as displayed, uncropped. Returns its colour space if it is not RGB.

        target: according to `resize.pixels`, uint8 `(H, W, 3)` RGB, `(3H/2, W)` YUV 4:2:0 or `(H, W, 1)` luma, or
        uint16 `(H, W, 1)` luma; contiguous. The whole target is filled. Only `Resize.CROP` keeps the aspect ratio of
        the frame. Raises `BadVideo` if the frame has no luma and `gray16` is wanted, or if it is so narrow that a
        picture that covers the target is too large.
        """
        if resize.pixels == GRAY16:
            _write_levels(frame, resize, target[:, :, 0])
            return None
        turns, flipped = quarter_turns(frame), mirrored(frame)
        planar, kept = resize.pixels == YUV420, resize.pixels in (YUV420, GRAY)
        height, width = (target.shape[0] * 2 // 3, target.shape[1]) if planar else target.shape[:2]
        whole = height, width
        if resize.mode == Resize.CROP:
            shown = (frame.width, frame.height) if turns % 2 else (frame.height, frame.width)
            whole = covering_size(*shown, height, width, even=kept)
        colour = colour_of(frame) if kept else None
        try:
            scaled = self._scaled(frame, whole[::-1] if turns % 2 else whole, resize, colour)
        except av.error.FFmpegError as error:
            raise BadVideo(
                f"a frame of {frame.width}x{frame.height} cannot be scaled to {whole[1]}x{whole[0]} ({error.strerror})",
                "limit",
            ) from error
        top, left = (whole[0] - height) // 2, (whole[1] - width) // 2
        if kept:  # at the beginning of a square of 2 x 2 pixels
            top, left = top // 2 * 2, left // 2 * 2
        if not planar:
            _place(scaled.planes[0], flipped, turns, target, top, left)
            return colour
        flat = target.reshape(-1)
        sizes = (height * width, height * width // 4, height * width // 4)
        begin = 0
        for plane, size, half in zip(scaled.planes, sizes, (1, 2, 2), strict=True):
            part = flat[begin : begin + size].reshape(height // half, width // half, 1)
            _place(plane, flipped, turns, part, top // half, left // half)
            begin += size
        return colour

    def _scaled(self, frame: VideoFrame, size: tuple[int, int], resize: Resize, colour: Colour | None) -> VideoFrame:
        """The frame in its own orientation, `size` = (height, width)."""
        method = _INTERPOLATION.get(resize.interpolation) or resize.interpolation.upper()
        frame = self._whole_pictures.of(frame)
        if frame.format.name in _BIG_ENDIAN:
            frame = self._swapping.reformat(frame, format=f"{frame.format.name[:-2]}le", threads=1)
        if colour is None:
            return self._reformatter.reformat(
                frame, width=size[1], height=size[0], format="rgb24", interpolation=method, threads=1
            )
        # Luma alone has no matrix; libswscale would convert from any matrix other than BT.601.
        space = _SPACES[_BT601 if resize.pixels == GRAY else colour.matrix]
        return self._reformatter.reformat(
            frame,
            width=size[1],
            height=size[0],
            format="yuv420p" if resize.pixels == YUV420 else "gray",
            src_colorspace=space,
            dst_colorspace=space,
            src_color_range=_ANY_RANGE,
            dst_color_range=_ANY_RANGE,
            interpolation=method,
            threads=1,
        )


def _write_levels(frame: VideoFrame, resize: Resize, target: NDArray[np.uint16]) -> None:
    """Fill `target`, `(H, W)`, with luma as it is stored, with all its bits; scaled to the nearest pixels."""
    levels = grey16(frame)
    if mirrored(frame):
        levels = levels[::-1]
    levels = np.rot90(levels, quarter_turns(frame))
    whole = covering_size(*levels.shape, *target.shape) if resize.mode == Resize.CROP else target.shape
    rows, columns = (
        _nearest(stored, scaled, shown) for stored, scaled, shown in zip(levels.shape, whole, target.shape, strict=True)
    )
    target[...] = levels[rows[:, np.newaxis], columns]


def _nearest(stored: int, scaled: int, shown: int) -> NDArray[np.int64]:
    """The nearest stored pixel for each of the `shown` pixels in the middle of `scaled` ones."""
    begin = (scaled - shown) // 2
    found: NDArray[np.int64] = (2 * np.arange(begin, begin + shown) + 1) * stored // (2 * scaled)
    return found


def colour_of(frame: VideoFrame) -> Colour:
    """The colour space of a decoded frame; if it does not declare one, BT.601 and the limited range."""
    name = frame.format.name
    if name.startswith(_WITHOUT_MATRIX):
        return Colour(_BT601, full=True)
    return Colour(
        _MATRICES.get(int(frame.colorspace), _BT601), int(frame.color_range) == _FULL or name.startswith("yuvj")
    )


def quarter_turns(frame: VideoFrame) -> int:
    """Quarter turns, counter-clockwise, from the picture as coded to the picture as displayed.

    A mirrored picture is first flipped top to bottom.
    """
    degrees = frame.rotation
    return round(degrees / 90) % 4 if abs(degrees) <= 180 else 0  # otherwise the matrix maps the picture to a line


def mirrored(frame: VideoFrame) -> bool:
    """Whether the picture as displayed is a mirror image of the picture as coded."""
    matrix = _SideData(frame).get("DISPLAYMATRIX")
    if matrix is None:
        return False
    a, b, _, c, d, *_ = struct.unpack("=9i", bytes(matrix))
    return bool(a * d < b * c)


class _SideData(SideDataContainer):
    """The side data of a frame, up to the first kind that PyAV does not know, at which `frame.side_data` fails.

    EXIF data of images is such a kind. FFmpeg puts the display matrix before it.
    """

    def __init__(self, frame: VideoFrame) -> None:
        with suppress(ValueError):
            super().__init__(frame)  # type: ignore[call-arg]


def _place(plane: VideoPlane, mirrored: bool, turns: int, target: NDArray[np.uint8], top: int, left: int) -> None:
    """Fill `target`, `(H, W, C)`, from row `top` and column `left` of the plane as displayed."""
    channels = target.shape[2]
    picture = rows_of(plane, plane.width * channels).reshape(plane.height, plane.width, channels)
    if mirrored:
        picture = picture[::-1]
    if turns:
        picture = np.rot90(picture, turns)
    target[...] = picture[top : top + target.shape[0], left : left + target.shape[1]]
