"""Writes video files from frames that come one by one, as the messages of a recording have them.

`copy_packets` takes frames that are compressed already, and copies them: nothing is decoded. `store_pictures` takes
pictures without compression, and stores them as FFV1, which is lossless. Both write MP4, whose timestamps are whole
microseconds here, so each frame keeps its time.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction

import av
import av.error
import numpy as np
from av.container import OutputContainer
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from essp_common.errors import BadVideo
from essp_engine.video.planes import rows_of

_TICK = Fraction(1, 1_000_000)
_IVF = {"h264": b"H264", "av1": b"AV01", "vp9": b"VP90", "jpeg": b"MJPG", "png": b"MPNG"}
"""Codecs that IVF carries, a format with a length before each frame."""
_RAW = {"h265": "hevc"}
"""FFmpeg's name of the stream without a container, for a codec that IVF lacks."""
CODECS = frozenset({*_IVF, *_RAW})
_OF_ITSELF = ("jpeg", "png")
_FORMATS = {
    "mono8": "gray", "8UC1": "gray", "mono16": "gray16le", "16UC1": "gray16le", "rgb8": "rgb24", "bgr8": "bgr24",
    "8UC3": "bgr24", "rgba8": "rgba", "bgra8": "bgra", "uyvy": "uyvy422", "yuv422": "uyvy422", "yuyv": "yuyv422",
    "yuv422_yuy2": "yuyv422",
}  # fmt: skip
"""Encoding of a picture, as ROS and Foxglove name it -> FFmpeg's pixel format."""
_STORED = {"gray": "gray", "gray16le": "gray16le", "uyvy422": "yuv422p", "yuyv422": "yuv422p"}
"""The pixel format of FFV1 that holds the same values; of those with red, green and blue, `bgr0`."""

Stamped = Iterable[tuple[int, bytes]]
"""The frames of a camera: microseconds, which increase, and a compressed frame."""


@dataclass(frozen=True, slots=True)
class RawPicture:
    """A picture without compression."""

    width: int
    height: int
    encoding: str
    """As ROS and Foxglove name it: `rgb8`, `bgr8`, `mono8`, `16UC1`, ..."""
    row_bytes: int
    """Bytes from one row to the next."""
    data: bytes
    big_endian: bool = False


def copy_packets(path: str, codec: str, frames: Stamped) -> int:
    """Write compressed frames to an MP4 file, unchanged. Returns their number.

    codec: one of `CODECS`; each frame is complete, and there are no B-frames. Raises `BadVideo` if the frames are not
    of this codec, or not one in each message.
    """
    source = _Packets(codec, frames)
    count = 0
    try:
        with av.open(source, "r", format=_RAW.get(codec, "ivf")) as given, _writing(path) as made:
            stream = given.streams.video[0]
            if stream.codec_context is None:
                raise BadVideo(f"FFmpeg has no decoder for {codec} here", "format")
            written = made.add_stream_from_template(stream, opaque=codec == "av1")  # PyAV finds no AV1 encoder
            for packet in given.demux(stream):
                if not packet.size:
                    continue
                if not source.stamps:
                    raise BadVideo("messages have several frames each, and one is expected", "format")
                packet.pts = packet.dts = source.stamps.popleft()
                packet.time_base, packet.stream = _TICK, written
                packet.is_keyframe = packet.is_keyframe or codec in _OF_ITSELF
                made.mux(packet)
                count += 1
    except (av.error.FFmpegError, ValueError, IndexError) as error:
        raise BadVideo(f"its frames are not {codec}: {error}", "damaged") from error
    if source.stamps:
        raise BadVideo(
            f"{len(source.stamps)} of {count + len(source.stamps)} messages have no frame of {codec}", "damaged"
        )
    return count


class _Packets:
    """The frames as a file that FFmpeg reads. `stamps`: the times of those that were read, until they are taken."""

    def __init__(self, codec: str, frames: Stamped) -> None:
        self.stamps: deque[int] = deque()
        self._parts = self._pieces(codec, frames)
        self._left = memoryview(b"")

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes; none at the end."""
        while not self._left:
            part = next(self._parts, None)
            if part is None:
                return b""
            self._left = memoryview(part)
        found, self._left = self._left[:size], self._left[size:]
        return bytes(found)

    def _pieces(self, codec: str, frames: Stamped) -> Iterator[bytes]:
        tag = _IVF.get(codec)
        if tag is not None:
            ticks = _TICK.denominator
            yield struct.pack("<4sHH4sHHIIII", b"DKIF", 0, 32, tag, 0, 0, ticks, 1, 0, 0)
        for stamp, data in frames:
            self.stamps.append(stamp)
            if tag is not None:
                yield struct.pack("<IQ", len(data), stamp)
            yield data


def store_pictures(path: str, pictures: Iterable[tuple[int, RawPicture]]) -> int:
    """Write pictures without compression to an MP4 file, as FFV1: all their values are kept, but no transparency.
    Returns their number.

    pictures: microseconds, which increase, and a picture. Raises `BadVideo` for an unknown encoding, for pictures of
    several sizes or encodings, and for those whose data are too short.
    """
    count, kind = 0, None
    stream: VideoStream | None = None
    try:
        with _writing(path) as made:
            for stamp, picture in pictures:
                if kind not in (None, (picture.width, picture.height, picture.encoding)):
                    raise BadVideo("the size or the encoding of its pictures changes", "format")
                frame, kind = _frame(picture), (picture.width, picture.height, picture.encoding)
                stored = _STORED.get(frame.format.name, "bgr0")
                if stream is None:
                    stream = made.add_stream("ffv1", rate=30, options={"g": "1", "level": "3", "slices": "4"})
                    stream.width, stream.height, stream.pix_fmt = picture.width, picture.height, stored
                    stream.time_base = stream.codec_context.time_base = _TICK
                frame = frame.reformat(format=stored) if frame.format.name != stored else frame
                frame.pts, frame.time_base = stamp, _TICK
                made.mux(stream.encode(frame))
                count += 1
            if stream is not None:
                made.mux(stream.encode(None))
    except av.error.FFmpegError as error:
        raise BadVideo(f"its pictures cannot be stored: {error}", "damaged") from error
    return count


@contextmanager
def _writing(path: str) -> Iterator[OutputContainer]:
    """A new MP4 file. PyAV would leave it open if its end cannot be written."""
    with open(path, "wb") as file, av.open(file, "w", format="mp4") as made:
        yield made


def _frame(picture: RawPicture) -> VideoFrame:
    """The picture as a frame of FFmpeg."""
    name = _FORMATS.get(picture.encoding)
    if name is None:
        known = ", ".join(sorted(_FORMATS))
        raise BadVideo(f"pictures of the encoding {picture.encoding!r} are not read; known: {known}", "format")
    try:
        frame = VideoFrame(picture.width, picture.height, name)
        target = rows_of(frame.planes[0], picture.width * frame.format.padded_bits_per_pixel // 8)
        rows = np.frombuffer(picture.data, np.uint8, picture.height * picture.row_bytes)
        rows = rows.reshape(picture.height, picture.row_bytes)[:, : target.shape[1]]
        if picture.big_endian and name == "gray16le":
            rows = np.ascontiguousarray(rows).view(">u2").astype("<u2").view(np.uint8)
        target[...] = rows
    except ValueError as error:
        raise BadVideo(
            f"a picture of {picture.width} x {picture.height} in {picture.encoding} has {len(picture.data)} bytes, in "
            f"rows of {picture.row_bytes}",
            "damaged",
        ) from error
    return frame
