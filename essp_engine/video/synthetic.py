"""Encodes small video files with PyAV, for the demo, previews, benchmarks and tests.

    path = write_video(tmp_path / "a.mp4", numbered(60), Encoding(codec="h264", gop=30, bframes=2))

The suffix selects the container (mp4, mov, avi, mkv, webm) or a stream without one (h264, m4v, gif). `numbered` frames
carry their number as a bar code, which a test can read back even after lossy coding (`read_number`). `drifting` moves
any picture.

Options cover what real files contain and encoders rarely write: a first timestamp other than 0, varying frame
intervals, rotation metadata, open GOPs, packed B-frames.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import cast

import av
import numpy as np
from av.video.stream import VideoStream
from numpy.typing import NDArray

Picture = NDArray[np.uint8]
"""(H, W, 3) uint8, RGB."""

_ENCODERS = {
    "h264": "libx264",
    "hevc": "libx265",
    "mpeg4": "mpeg4",
    "mpeg2": "mpeg2video",
    "vp8": "libvpx",
    "vp9": "libvpx-vp9",
    "av1": "libsvtav1",
    "mjpeg": "mjpeg",
    "ffv1": "ffv1",
    "gif": "gif",
}
_MUXERS = {".m4v": "m4v"}
"""Muxers for suffixes for which FFmpeg would choose another one."""
_BITS = 12
_I_VOP, _B_VOP = 0, 2
_PLACEHOLDER = b"\x7f"
_CLOCK = 60_000  # MPEG-4 allows at most 65535 ticks per second


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a video is encoded."""

    codec: str = "h264"
    """h264 | hevc | mpeg4 | mpeg2 | vp8 | vp9 | av1 | mjpeg | ffv1 | gif (pixel format rgb8)."""
    fps: int = 25
    gop: int = 12
    """Maximum number of frames from one keyframe to the next."""
    bframes: int = 0
    open_gop: bool = False
    """Let the leading frames of a keyframe refer to the previous group of pictures (h264, hevc)."""
    pixel_format: str = "yuv420p"
    rotation: int = 0
    """Degrees, counter-clockwise, by which a player rotates the picture (mp4 and mov)."""
    start_s: float = 0.0
    """Time of the first frame."""
    intervals: Sequence[float] = ()
    """Relative durations of the frames, repeated: (1, 1, 3) shows every third frame three times as long."""
    options: dict[str, str] = field(default_factory=dict)
    """Options of the encoder, which override those that this module sets."""


def write_video(path: str | Path, pictures: Iterable[Picture], encoding: Encoding | None = None) -> Path:
    """Encode `pictures`, all of one size, into the file `path`. Returns the path."""
    encoding = encoding or Encoding()
    path = Path(path)
    pictures = iter(pictures)
    first = next(pictures)
    # Without this flag, Matroska's ids are random.
    options = {"fflags": "+bitexact"} if path.suffix in (".mkv", ".webm") else {}
    with _same_scheduling(), av.open(str(path), "w", _MUXERS.get(path.suffix), options=options) as container:
        name = _ENCODERS[encoding.codec]
        stream = cast(VideoStream, container.add_stream(name, rate=encoding.fps, options=_options(encoding)))
        stream.height, stream.width = first.shape[:2]
        stream.pix_fmt = encoding.pixel_format
        # AVI stores no timestamps, and MPEG-2 supports only standard rates: there the clock is the frame rate.
        steady = path.suffix == ".avi" or encoding.codec == "mpeg2"
        stream.codec_context.time_base = Fraction(1, encoding.fps) if steady else Fraction(1, _CLOCK)
        stream.codec_context.thread_count = 1  # for reproducible bytes
        if encoding.rotation:
            stream.set_display_rotation(encoding.rotation)
        times = _steps(1) if steady else _times(encoding)
        for picture, pts in zip(chain([first], pictures), times, strict=False):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            frame.pts, frame.time_base = pts, stream.codec_context.time_base
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


@contextmanager
def _same_scheduling() -> Iterator[None]:
    """Restore the scheduling policy: if permitted, SVT-AV1 makes the calling thread a real-time one.

    That thread, and every process it starts afterwards, would keep all others from the processor.
    """
    if not hasattr(os, "sched_getscheduler"):  # not Linux
        yield
        return
    policy, param = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        if os.sched_getscheduler(0) != policy:
            os.sched_setscheduler(0, policy, param)


def numbered(count: int, width: int = 160, height: int = 120, seed: int = 0) -> Iterator[Picture]:
    """`count` pictures of a moving texture, each with its number as a bar code along the upper edge."""
    for number, picture in enumerate(drifting(texture(width, height, seed), count, velocity=(2, 1))):
        bits = (number >> np.arange(_BITS)) & 1
        bar = np.repeat(np.where(bits, 235, 20), -(-width // _BITS))[:width]
        picture[: max(8, height // 8)] = bar[None, :, None]
        yield picture


def read_number(picture: Picture) -> int:
    """The number that `numbered` wrote into a picture, even after lossy coding or resizing."""
    width = picture.shape[1]
    block = -(-width // _BITS) if width % _BITS == 0 else width / _BITS
    columns = ((np.arange(_BITS) + 0.5) * block).astype(int).clip(0, width - 1)
    strip = picture[2 : max(4, picture.shape[0] // 8 - 2)].mean(axis=(0, 2))
    return int((strip[columns] > 127) @ (1 << np.arange(_BITS)))


def texture(width: int, height: int, seed: int = 0) -> Picture:
    """A smooth random picture that repeats seamlessly at its edges."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    picture = np.full((height, width, 3), 128.0)
    for _ in range(8):
        fy, fx = rng.integers(-6, 7, 2)
        phase = 2 * np.pi * rng.random(3)
        wave = 2 * np.pi * (fy * y / height + fx * x / width)
        picture += 14 * np.sin(wave[..., None] + phase)
    return picture.clip(0, 255).astype(np.uint8)


def drifting(picture: Picture, count: int, velocity: tuple[int, int] = (1, 0)) -> Iterator[Picture]:
    """`count` pictures of `picture` moving by `velocity` = (right, down) pixels a frame, wrapping at the edges."""
    for number in range(count):
        yield np.roll(picture, (number * velocity[1], number * velocity[0]), axis=(0, 1))


def pack_bframes(source: Path, target: Path) -> Path:
    """Rewrite an MPEG-4 AVI with packed B-frames, as DivX and XviD write them.

    A B-frame shares the packet of the frame that it refers to. A placeholder of one byte, flagged as a keyframe,
    replaces its own packet.
    """
    with av.open(str(source)) as container, av.open(str(target), "w") as packed:
        coded = [bytes(packet) for packet in container.demux(video=0) if packet.size]
        stream = packed.add_stream_from_template(container.streams.video[0])
        packets: list[bytes] = []
        for data in coded:
            if _vop_type(data) == _B_VOP and _vop_type(packets[-1]) is not None:
                packets[-1] += data
                packets.append(_PLACEHOLDER)
            else:
                packets.append(data)
        for time, data in enumerate(packets):
            packet = av.Packet(re.sub(rb"(?<=\x00\x00\x01\xb2)Lavc[\d.]+", b"DivX503b1393p\0", data))
            packet.pts = packet.dts = time
            packet.is_keyframe = _vop_type(data) in (_I_VOP, None)
            packet.stream = stream
            packed.mux(packet)
    return target


def _vop_type(packet: bytes) -> int | None:
    """The type of the last picture in an MPEG-4 packet (ISO/IEC 14496-2); None if it contains none."""
    at = packet.rfind(b"\0\0\1\xb6")
    return None if at < 0 else packet[at + 4] >> 6


def _steps(step: int) -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += step


def _times(encoding: Encoding) -> Iterator[int]:
    tick = _CLOCK / encoding.fps
    intervals = encoding.intervals or (1.0,)
    time = encoding.start_s * _CLOCK
    for number in _steps(1):
        yield round(time)
        time += intervals[number % len(intervals)] * tick


def _options(encoding: Encoding) -> dict[str, str]:
    options = {"g": str(encoding.gop)}
    if encoding.codec in ("h264", "hevc", "mpeg4", "mpeg2"):
        options["bf"] = str(encoding.bframes)
    if encoding.codec == "h264":
        # With B-frames, x264's macroblock tree differs in one of ten runs.
        params = f"scenecut=0:mbtree=0:open-gop={int(encoding.open_gop)}:threads=1"
        options |= {"preset": "veryfast", "x264-params": params}
    elif encoding.codec == "hevc":
        params = f"log-level=none:scenecut=0:open-gop={int(encoding.open_gop)}:pools=1:frame-threads=1"
        options |= {"preset": "ultrafast", "x265-params": params}
    elif encoding.codec == "av1":
        options |= {"preset": "12", "svtav1-params": "lp=1"}
    elif encoding.codec in ("vp8", "vp9"):
        options |= {"deadline": "realtime", "cpu-used": "8", "auto-alt-ref": "1", "lag-in-frames": "8", "b": "400k"}
    else:
        options["qscale"] = "4"
    return options | encoding.options
