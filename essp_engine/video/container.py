"""Opens untrusted video files with FFmpeg, and turns its errors into `BadVideo`.

A file is opened by path or as a seekable binary file. Only formats that contain their own frames are tried: no
playlists, no concatenation scripts, no network protocols. Streams without a container (GIF, raw H.264, raw MPEG-4) are
read if the file begins like one. Limits are checked before any frame is decoded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeAlias, cast

import av
import av.container
import av.error
from av.packet import Packet
from av.stream import Discard, Disposition
from av.video.stream import VideoStream

from essp_common.errors import BadVideo
from essp_engine.video.png_profiles import forget_profile

VideoFile: TypeAlias = str | BinaryIO
"""A path, or a seekable binary file."""

FORMATS = "mov,matroska,avi,mpegts,mpeg,flv,asf,ogg,mxf,ivf"
_IO_BYTES = 1 << 15
"""Size of one read from a binary file."""

_HEAD_BYTES = 1 << 10
"""Enough for the header of a Matroska file and the header of its segment."""
_TAIL_BYTES = 1 << 10
_EBML, _SEGMENT = b"\x1aE\xdf\xa3", b"\x18S\x80g"
_SIGNATURES = (
    *((4, box) for box in (b"ftyp", b"moov", b"mdat", b"wide", b"free")),  # MP4, QuickTime
    (0, b"RIFF"),
    (0, _EBML),  # Matroska, WebM
)
"""Offset and bytes at the beginning of a video file. A file with such a signature that does not open is damaged."""

_PICTURES = ((0, b"\x89PNG", "PNG"), (0, b"\xff\xd8\xff", "JPEG"), (8, b"WEBP", "WebP"))
"""Offset, bytes and name of picture formats, which sometimes have the file name of a video."""
_STREAMS = (
    (0, b"GIF8", "gif"),
    (0, b"\x89PNG", "apng"),
    *((0, b"\0\0\1" + bytes([head]), "h264") for head in (0x67, 0x27, 0x47, 0x09, 0x06)),
    *((0, b"\0\0\1" + bytes([head]), "m4v") for head in (0xB0, 0xB5, 0x00, 0x20)),
)
"""Offset, bytes and FFmpeg's name of streams without a container: GIF, animated PNG, raw H.264 (an SPS, an access unit
delimiter or an SEI comes first; ITU-T H.264, annex B) and raw MPEG-4 (ISO/IEC 14496-2, section 6.3). FFmpeg mistakes
some damaged files for raw streams, so each is tried only on files that begin like it."""
_STREAM_NAMES = {"gif": "GIF", "apng": "an animated PNG", "h264": "raw H.264", "m4v": "raw MPEG-4"}
_ANIMATION_OF_PNG = b"acTL"
"""The chunk before the first picture that makes a PNG animated."""
_PNG_END = b"IEND\xaeB`\x82"
_WEBP_FLAGS, _WEBP_ANIMATION = 20, 2
"""The byte of the extended header's flags, and the bit in it for an animation."""

_UNREAD = (
    (0, b"YUV4MPEG2", "YUV4MPEG2 (.y4m)"),
    (0, b".RMF", "RealMedia"),
    (0, b"nut/multimedia container", "NUT"),
    (0, b"\0\0\1\xb3", "raw MPEG-1 or MPEG-2 video without a container"),
    *((0, b"\0\0\1" + bytes([head]), "raw H.265 without a container") for head in (0x40, 0x42, 0x46)),
    (0, b"\x12\0\x0a", "raw AV1 without a container"),
)
"""Offset, bytes and name of known formats that are not supported: they have no timestamps, or contain no video."""

av.logging.set_level(None)  # keeps FFmpeg's messages about damaged files out of the logs


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest accepted video. A larger one raises `BadVideo(kind="limit")`."""

    size_bytes: int = 64 << 30
    pixels: int = 8192 * 4320
    """Pixels of one frame."""
    frames: int = 5_000_000
    streams: int = 64


def open_video(
    file: VideoFile, limits: Limits, *, described: bool = False, whole_packets: bool = False
) -> tuple[av.container.InputContainer, VideoStream]:
    """The opened file and its video track, ready to decode in this thread. Raises `BadVideo`.

    Among several tracks, it is the default one; with several defaults or none, the largest, and then the first.

    `described`: the pixel format and the frame rate are known or not needed, so the first frames are not decoded for
    them. That decode takes most of the time of opening, and most of the bytes that it reads.

    `whole_packets`: the container has whole frames as packets, and says which are keyframes, so that their content is
    not parsed.

    Decoding is single-threaded at any resolution. Many videos are decoded at the same time, each by one process. Codec
    threads would cost 10 to 20 % more CPU per frame (at 3840x2160) and not raise the total rate.
    """
    head, size_bytes = _inspect(file)
    if not size_bytes:
        raise BadVideo("the file is empty", "empty")
    if size_bytes > limits.size_bytes:
        raise BadVideo(f"the file has {size_bytes} bytes, the limit is {limits.size_bytes}", "limit")
    try:
        container = av.open(
            _source(file),
            mode="r",
            metadata_errors="replace",
            buffer_size=_IO_BYTES,
            container_options=_demuxer(head)
            | ({"probesize": "32"} if described else {})
            | ({"fflags": "noparse"} if whole_packets else {}),
            stream_options=cast(Any, [{"skip_frame": "all"}] * limits.streams if described else None),
        )
    except (av.error.FFmpegError, ValueError) as error:
        if _is_animated_webp(head):
            raise BadVideo(
                'an animated WebP, which FFmpeg does not decode; convert it to an animated PNG (python -c "from PIL '
                "import Image; Image.open('a.webp').save('a.png', save_all=True)\") or to a video",
                "format",
            ) from error
        name = _format_of(head, _PICTURES)
        if name and not (name == "PNG" and _ANIMATION_OF_PNG in head):
            raise BadVideo(f"a picture ({name}), not a video", "not_video") from error
        if any(head[at : at + len(mark)] == mark for at, mark in _SIGNATURES):
            raise BadVideo(
                f"the file is damaged or truncated: it does not open ({reason(error)})", "truncated"
            ) from error
        if name := _format_of(head, _STREAMS):
            words = f"{_STREAM_NAMES[name]}, but damaged or truncated: it does not open ({reason(error)})"
            raise BadVideo(words, "truncated") from error
        if name := _format_of(head, _UNREAD):
            raise BadVideo(
                f"{name} is not read; convert it to a container with timestamps, such as MP4 or Matroska (ffmpeg)",
                "format",
            ) from error
        raise BadVideo(f"not a video file of a known format ({reason(error)})", "not_video") from error
    try:
        stream = _video_stream(container, limits)
        forget_profile(stream)
        return container, stream
    except BadVideo:
        container.close()
        raise


class _Position:
    """A binary file at a position of its own, so that several containers can read the file in turn."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._at = 0

    def read(self, size: int) -> bytes:
        self._file.seek(self._at)
        data = self._file.read(size)
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = self._file.seek(self._at + offset) if whence == os.SEEK_CUR else self._file.seek(offset, whence)
        return self._at

    def tell(self) -> int:
        return self._at


def _source(file: VideoFile) -> Any:
    """A file as FFmpeg opens it."""
    return f"file:{file}" if isinstance(file, str) else _Position(file)


def demuxed(container: av.container.InputContainer, stream: VideoStream) -> Iterator[Packet[VideoStream]]:
    """The packets of a stream, in the order of the file; at its end, an empty one.

    Of MPEG-TS, streams may appear after the file was opened, such as sound in the middle of a recording. At the end,
    PyAV looks for them among those that it knows, and raises `IndexError`. No packet of the stream is missing then.
    """
    ended = False
    try:
        for packet in container.demux(stream):
            ended = not packet.size
            yield packet
    except IndexError:
        if not ended:
            raise


def check_complete(file: VideoFile, stream: VideoStream, packets: int) -> None:
    """Raise `BadVideo` if the container declares more than the file contains.

    Only reliable declarations count: the sample table of MP4, the content sizes that AVI and Matroska declare, and the
    trailers of GIF and PNG. Durations, and frame counts in AVI headers, are often wrong in intact files. Raw streams
    declare nothing, so a truncated one is taken for a shorter one.
    """
    if stream.container.format.name.startswith("mov") and stream.frames > packets:
        packets = _samples(file, stream.index)
        if stream.frames > packets:
            raise BadVideo(f"the file ends early: {packets} of {stream.frames} frames are in it", "truncated")
    head, size_bytes = _inspect(file)
    if stream.container.format.name == "gif" and not _tail(file).rstrip(b"\0\r\n").endswith(b"\0;"):
        raise BadVideo("the file ends early: a GIF ends with a trailer", "truncated")
    if stream.container.format.name == "apng" and _PNG_END not in _tail(file):
        raise BadVideo("the file ends early: a PNG ends with a chunk that says so", "truncated")
    riff_end = int.from_bytes(head[4:8], "little") + 7 if head.startswith(b"RIFF") else 0  # a last odd byte is optional
    if max(riff_end, _segment_end(head)) > size_bytes:
        raise BadVideo("the file ends early: its header declares more bytes than it has", "truncated")


def _samples(file: VideoFile, index: int) -> int:
    """The number of frames of a stream in an MP4 file, including those that its edit list omits."""
    head, _ = _inspect(file)
    found = 0
    with (
        suppress(av.error.FFmpegError),
        av.open(
            _source(file),
            mode="r",
            metadata_errors="replace",
            buffer_size=_IO_BYTES,
            container_options=_demuxer(head) | {"ignore_editlist": "1"},
        ) as container,
    ):
        for packet in container.demux(container.streams[index]):
            found += bool(packet.size)
    return found


def _is_animated_webp(head: bytes) -> bool:
    """Whether the extended header of a WebP file declares an animation (RFC 9649)."""
    return head[8:16] == b"WEBPVP8X" and len(head) > _WEBP_FLAGS and bool(head[_WEBP_FLAGS] & _WEBP_ANIMATION)


def _demuxer(head: bytes) -> dict[str, str]:
    """The options that restrict FFmpeg to the formats possible for a file with this beginning."""
    stream = _format_of(head, _STREAMS)
    return {"format_whitelist": f"{FORMATS},{stream}" if stream else FORMATS, "protocol_whitelist": "file"}


def reason(error: Exception) -> str:
    """FFmpeg's message for an error."""
    return str(getattr(error, "strerror", None) or error)


def _format_of(head: bytes, formats: Sequence[tuple[int, bytes, str]]) -> str | None:
    head = head[1:] if head.startswith(b"\0\0\0\1") else head  # a start code may have one zero more
    return next((name for at, begin, name in formats if head[at : at + len(begin)] == begin), None)


def _segment_end(head: bytes) -> int:
    """The byte at which the segment of a Matroska file ends (RFC 8794, RFC 9559); 0 if the header does not say."""
    if not head.startswith(_EBML):
        return 0
    header, start = _ebml_size(head, len(_EBML))
    segment = start + header
    if head[segment : segment + 4] != _SEGMENT:
        return 0
    size, start = _ebml_size(head, segment + 4)
    return start + size if size else 0


def _ebml_size(head: bytes, at: int) -> tuple[int, int]:
    """A size of variable length, and the byte after it. An unknown size, as in a live recording, is 0."""
    first = head[at] if at < len(head) else 0
    length = 9 - first.bit_length()
    size = int.from_bytes(head[at : at + length], "big") & ((1 << 7 * length) - 1)
    return (0 if size == (1 << 7 * length) - 1 else size), at + length


def _tail(file: VideoFile) -> bytes:
    """The last bytes of a file."""
    opened: BinaryIO
    with nullcontext(file) if not isinstance(file, str) else open(file, "rb") as opened:
        size = opened.seek(0, os.SEEK_END)
        opened.seek(max(0, size - _TAIL_BYTES))
        found = opened.read(_TAIL_BYTES)
        opened.seek(0)
    return found


def _inspect(file: VideoFile) -> tuple[bytes, int]:
    """The first bytes and the size of a file."""
    try:
        if isinstance(file, str):
            with open(file, "rb") as opened:
                return opened.read(_HEAD_BYTES), os.fstat(opened.fileno()).st_size
        file.seek(0)  # it may have been read before
        head = file.read(_HEAD_BYTES)
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        return head, size
    except FileNotFoundError as error:
        raise BadVideo("the file is not there", "vanished") from error
    except (IsADirectoryError, PermissionError) as error:
        raise BadVideo(f"the file cannot be read ({error.strerror})", "not_video") from error


def picture_streams(container: av.container.InputContainer) -> list[VideoStream]:
    """The video tracks, without covers and similar pictures."""
    return [stream for stream in container.streams.video if not stream.disposition & Disposition.attached_pic]


def is_default(stream: VideoStream) -> bool:
    """Whether the file declares it as the track to play."""
    return bool(stream.disposition & Disposition.default)


def _rank(stream: VideoStream) -> tuple[bool, bool, int]:
    """Sort key of video tracks: the default one is preferred, then the largest."""
    context = stream.codec_context
    pixels = context.width * context.height if context is not None else 0
    return bool(pixels), is_default(stream), pixels


def _video_stream(container: av.container.InputContainer, limits: Limits) -> VideoStream:
    if len(container.streams) > limits.streams:
        raise BadVideo(f"{len(container.streams)} streams, the limit is {limits.streams}", "limit")
    tracks = picture_streams(container)
    if not tracks:
        raise BadVideo("no video stream in the file", "not_video")
    stream = max(tracks, key=_rank)  # the first of equals
    context = stream.codec_context
    if context is None or not context.width or not context.height:
        raise BadVideo("the video stream has no known codec or size: damaged, or a codec that is not supported")
    if context.width * context.height > limits.pixels:
        raise BadVideo(f"frames of {context.width}x{context.height}, the limit is {limits.pixels} pixels", "limit")
    if stream.frames > limits.frames:
        raise BadVideo(f"{stream.frames} frames, the limit is {limits.frames}", "limit")
    context.thread_count = 1
    for other in container.streams:
        if other is not stream:
            other.discard = Discard.all  # if the format allows it, other streams are not even read
    return stream
