"""Finds the facts of a video for its catalog row without decoding it: `essp catalog build --quick`.

Of an MP4 file, only its index is read (`moov`, wherever it is, and the `moof` boxes of a fragmented file). FFmpeg's
demuxer then reads a file in which all media data are zeros, and fetches none of them: it gives the timestamps,
sizes and keyframes of all packets, and applies edit lists, exactly as for the real file. Of other containers, and of
MP4 files that need it, all packets are read.

The facts are those that `probe` finds, except for what `VideoFacts.unproven` names. They rest on the standards of
container and codec: each packet is one frame, keyframes refer to nothing before them. The reader verifies this as it
decodes (`reader.py`). A file for which this cannot be relied on has no quick facts, and must be probed: one with
packets that are not `orderly`, that ends early, or that does not open. If only its keyframes cannot be relied on, and
it is short, it has no keyframes in the catalog, and is decoded from its start.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import nullcontext
from fractions import Fraction
from typing import BinaryIO, cast

import av
from av.container import InputContainer
from av.video.stream import VideoStream

from essp_common.catalog import unproven
from essp_common.errors import BadVideo
from essp_common.objects.ranged import expect
from essp_common.objects.seekable import SeekableFile
from essp_engine.video.clock import measure, pack
from essp_engine.video.container import Limits, VideoFile, check_complete, open_video, picture_streams
from essp_engine.video.notes import described, of_container
from essp_engine.video.packets import H264_IDR, Packets, nal_heads, nal_length_bytes, orderly, scan
from essp_engine.video.probe import WHOLE_PIXELS, VideoFacts, needed_lookahead, places_of

_CODECS = frozenset({"h264", "hevc", "vp8", "vp9", "av1", "mjpeg", "prores"})
"""Codecs whose standards say that nothing after a keyframe needs anything before it. Decoders of MPEG-4 part 2 also
need the name of the encoder, which only the first packet may have."""
_OF_444 = (44, 244)
"""The H.264 profiles for 4:4:4, for which FFmpeg needs the version of x264, which only the first packet has."""
_X264 = re.compile(rb"x264 - core (\d+)")
_OLD_X264 = 34
"""The first version of x264 from which FFmpeg does not need to know the version, for all other profiles."""
_SMALLEST = {"h264": 8, "hevc": 8}
"""A packet of at most this many bytes may show nothing."""
_INTRA = frozenset({"mjpeg", "prores"})
"""Codecs whose frames are all keyframes."""
_HIDING = frozenset({"vp8"})
"""Codecs whose containers may have packets that show nothing, which only their headers tell."""

_MP4_BEGINS = frozenset({b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"styp"})
_INDEX = frozenset({b"ftyp", b"styp", b"moov", b"moof", b"sidx", b"mfra"})
"""The boxes of an MP4 file that are read; of all others, only the header is."""
_ENCRYPTED = (b"encv", b"enca", b"pssh")
_LARGEST_INDEX = 2**28
_BOX_HEADER = 16
_FIRST_BYTES = 2**16
"""Enough of a packet for its first slice, and for the name of the encoder."""
_ZEROS = bytes(2**20)
_ROTATION = re.compile(r"Display Matrix: rotation of (-?[0-9.]+) degrees", re.IGNORECASE)


def quick(file: VideoFile, *, limits: Limits | None = None) -> VideoFacts | None:
    """The facts of a video file, without decoding; None if it must be probed."""
    limits = limits or Limits()
    for way in (_of_index, _of_packets):
        try:
            if facts := way(file, limits):
                return facts
        except (BadVideo, av.error.FFmpegError, ValueError):
            continue  # the probe finds out what is wrong
    return None


def _of_index(file: VideoFile, limits: Limits) -> VideoFacts | None:
    """The facts from the index of an MP4 file."""
    opened: BinaryIO
    with open(file, "rb") if isinstance(file, str) else nullcontext(file) as opened:
        blank = _blanked(opened, fragmented=isinstance(file, str))
    if blank is None:
        return None
    container, stream = open_video(cast(BinaryIO, blank), limits, described=True, whole_packets=True)
    with container:
        codec = stream.codec_context.codec.canonical_name
        packets = scan(container, stream, limits, blank=True)
        all_keyframes = len(packets.keyframes) == len(packets) > 1  # or the file does not say which are
        if stream.frames > len(packets) or codec in _HIDING or (all_keyframes and codec not in _INTRA):
            return None
        return _facts(file, limits, container, stream, packets, (unproven.PACKETS,))


def _of_packets(file: VideoFile, limits: Limits) -> VideoFacts | None:
    """The facts from all packets."""
    container, stream = open_video(file, limits, described=True)
    with container:
        packets = scan(container, stream, limits)
        check_complete(file, stream, len(packets))
        return None if packets.encrypted else _facts(file, limits, container, stream, packets, ())


def _facts(
    file: VideoFile,
    limits: Limits,
    container: InputContainer,
    stream: VideoStream,
    packets: Packets,
    lacking: tuple[str, ...],
) -> VideoFacts | None:
    context = stream.codec_context
    codec, kind = context.codec.canonical_name, container.format.name.split(",")[0]
    if not packets or not orderly(packets, kind, codec) or packets.smallest <= _SMALLEST.get(codec, 0):
        return None
    stamps = sorted(stamp for stamp in packets.pts if stamp is not None)
    keyframes, places = places_of(stamps, packets.keyframes)
    ahead = needed_lookahead(packets)
    if not ahead or not keyframes:
        return None
    doubtful = codec not in _CODECS or _needs_its_start(file, stream, packets)
    if doubtful or (unproven.PACKETS in lacking and _is_open(file, stream, packets)):
        if context.width * context.height * len(packets) > WHOLE_PIXELS:
            return None
        keyframes, places = (), ()  # it is short: decoders begin at its start
    time_base = stream.time_base or Fraction(0)
    rate = float(stream.average_rate or stream.guessed_rate or 0)
    begin_s = _begin_s(file, container, limits, float(stamps[0] * time_base))
    times = measure(stamps, time_base, rate, packets.last_duration, begin_s, packets.dts)
    turns = _quarter_turns(container, stream)
    width, height = (context.height, context.width) if turns % 2 else (context.width, context.height)
    return VideoFacts(
        container=kind,
        codec=codec,
        pixel_format=context.pix_fmt or "",
        width=width,
        height=height,
        rotation=(-90 * turns) % 360,
        fps=times.fps,
        duration_s=times.duration_s,
        start_s=times.start_s,
        timestamps=pack(times.stamps) if times.stamps else b"",
        time_base=(time_base.numerator, time_base.denominator),
        frame_count=len(stamps),
        seekable=bool(keyframes),
        lookahead=ahead,
        keyframe_pts=tuple(keyframe.pts for keyframe in keyframes),
        keyframe_frame=places,
        keyframe_offset=tuple(keyframe.offset for keyframe in keyframes),
        notes="\n".join(of_container(container, stream)),
        unproven=" ".join((*lacking, unproven.ORDER, unproven.PIXELS, unproven.DAMAGE)),
    )


def _needs_its_start(file: VideoFile, stream: VideoStream, packets: Packets) -> bool:
    """Whether FFmpeg decodes the file otherwise if it has not seen the first packet."""
    if stream.codec_context.codec.canonical_name != "h264":
        return False
    described_by = stream.codec_context.extradata or b""
    if len(described_by) < 2 or described_by[0] != 1 or described_by[1] in _OF_444:  # ISO/IEC 14496-15, 5.3.3
        return True
    opened: BinaryIO
    with open(file, "rb") if isinstance(file, str) else nullcontext(file) as opened:
        encoder = _X264.search(_read(opened, max(0, packets.keyframes[0].offset), _FIRST_BYTES))
    return encoder is not None and int(encoder[1]) < _OLD_X264


def _is_open(file: VideoFile, stream: VideoStream, packets: Packets) -> bool:
    """Whether one of its keyframes, in the middle, is known to depend on earlier frames. All of its clips would then be
    decoded from the start."""
    if stream.codec_context.codec.canonical_name != "h264" or len(packets.keyframes) < 2:
        return False
    begin = packets.keyframes[len(packets.keyframes) // 2].offset
    opened: BinaryIO
    with open(file, "rb") if isinstance(file, str) else nullcontext(file) as opened:
        content = _read(opened, begin, _FIRST_BYTES)
    heads = nal_heads(content, nal_length_bytes(stream.codec_context.extradata or b"", "h264"))
    return H264_IDR.isdisjoint(head & 0x1F for head in heads)


def _begin_s(file: VideoFile, container: InputContainer, limits: Limits, first_s: float) -> float:
    """When the file begins, on its clock. `first_s`: when its first frame is shown.

    Containers other than MP4 do not say so before their packets are read, those of the audio included.
    """
    begin = cast(int | None, container.start_time)  # which PyAV's annotation denies
    if begin is not None:
        return begin / av.time_base
    if len(container.streams) == 1:
        return first_s
    again, _ = open_video(file, limits)
    with again:
        return (again.start_time or 0) / av.time_base


def _quarter_turns(container: InputContainer, stream: VideoStream) -> int:
    """`conversion.quarter_turns` of the frames, from what the container declares."""
    found = _ROTATION.search(described(container, picture_streams(container).index(stream)))
    degrees = float(found[1]) if found else 0.0
    return round(degrees / 90) % 4 if abs(degrees) <= 180 else 0


def _blanked(file: BinaryIO, fragmented: bool) -> _Blanked | None:
    """An MP4 file without its media data; None for another file, and for one whose index is not worth reading alone.

    `fragmented`: the index may be in many places, because seeking costs nothing.
    """
    size_bytes = file.seek(0, os.SEEK_END)
    pieces: list[tuple[int, bytes]] = []
    read = 0
    for kind, begin, header, length in _boxes(file, size_bytes):
        if (not pieces and kind not in _MP4_BEGINS) or (kind == b"moof" and not fragmented):
            return None
        wanted = length if kind in _INDEX else header
        read += wanted
        if read > _LARGEST_INDEX:
            return None
        pieces.append((begin, _read(file, begin, wanted)))
    content = [data for _, data in pieces if data[4:8] == b"moov"]
    if len(content) != 1 or any(mark in content[0] for mark in _ENCRYPTED):
        return None
    return _Blanked(size_bytes, pieces)


def _boxes(file: BinaryIO, size_bytes: int) -> Iterator[tuple[bytes, int, int, int]]:
    """Type, first byte, bytes of the header, and length of each box of an MP4 file (ISO/IEC 14496-12, section 4.2)."""
    begin = 0
    while begin + 8 <= size_bytes:
        head = _read(file, begin, min(_BOX_HEADER, size_bytes - begin))
        length, header = int.from_bytes(head[:4], "big"), 8
        if length == 1:
            length, header = int.from_bytes(head[8:16], "big"), 16
        elif length == 0:
            length = size_bytes - begin
        if length < header:
            return
        yield head[4:8], begin, header, min(length, size_bytes - begin)
        begin += length


def _read(file: BinaryIO, begin: int, length: int) -> bytes:
    """These bytes, and no others: reading ahead would go into the media data."""
    expect(file, [(begin, begin + length)])
    file.seek(begin)
    return file.read(length)


class _Blanked(SeekableFile):
    """A file with some known pieces. All other bytes are zeros."""

    def __init__(self, size_bytes: int, pieces: list[tuple[int, bytes]]) -> None:
        """`pieces`: the first byte of each, and its content; in order."""
        super().__init__(size_bytes)
        self._pieces = pieces
        self._begins = [begin for begin, _ in pieces]

    def read(self, length: int = -1) -> bytes:
        """Up to `length` bytes, fewer at the end of a piece or of the zeros before the next one."""
        left = self._size_bytes - self._position
        if left <= 0:  # FFmpeg seeks wherever a file says
            return b""
        length = left if length < 0 else min(length, left)
        place = bisect_right(self._begins, self._position) - 1
        begin, data = self._pieces[place] if place >= 0 else (0, b"")
        at = self._position - begin
        if at < len(data):
            found = data[at : at + length]
        else:
            end = self._begins[place + 1] if place + 1 < len(self._pieces) else self._size_bytes
            found = _ZEROS[: min(length, end - self._position)]
        self._position += len(found)
        return found
