"""Reads the packets of a file without decoding them, for a cheap probe.

`scan` reads the packets once. `orderly` says whether they can be trusted: each packet is one shown frame, each has a
different timestamp, and frames are shown in the order of timestamps. The packets then give the number of frames and the
frame index of each keyframe.

`orderly` is deliberately strict: a file that is not known to be intact is decoded completely instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import av.container
import av.error
from av.packet import Packet, PktSideDataT
from av.video.stream import VideoStream

from essp_common.errors import BadVideo
from essp_engine.video.container import Limits, demuxed, reason
from essp_engine.video.frame_headers import HEADERS, shows_one_frame

_PLACEHOLDER_BYTES = 8
"""An MPEG-4 packet of at most this size shows nothing or repeats a picture: a sign of packed B-frames."""

PARAMETERS: tuple[PktSideDataT, ...] = ("palette", "new_extradata", "param_change")
"""Decoder parameters that demuxers provide only once, with the first packet or the packet at which they change."""

_INDEXED = ("mov", "matroska", "avi")
"""Formats that store whole frames as packets, rather than a byte stream that must be split into frames."""


_CUT = ("mpegts", "mpeg")
"""Formats that are byte streams with occasional timestamps, from which frames must be split."""


@dataclass(frozen=True, slots=True)
class Keyframe:
    """A packet that is marked as a keyframe."""

    pts: int
    offset: int
    """Byte offset in the file; -1 if the container does not say."""
    self_contained: bool
    """Whether, by the codec's standard, the frames shown from here on refer to no earlier frame."""


@dataclass(slots=True)
class Packets:
    """The packets of a video stream, in the order of the file."""

    pts: list[int | None] = field(default_factory=list)
    dts: list[int | None] = field(default_factory=list)
    """Decoding times of the packets."""
    keyframes: list[Keyframe] = field(default_factory=list)
    smallest: int = 1 << 62
    corrupt: int = 0
    unshown: set[int] = field(default_factory=set)
    """Numbers of the packets that are decoded but not shown (edit lists)."""
    hidden: int = 0
    """Number of packets that show no frame, or more than one, according to their codec header."""
    parameters: int = 0
    """Number of packets with one of `PARAMETERS`."""
    changes: int = 0
    """Number of those, after the first packet, whose parameters differ from the previous ones."""
    own_stamps: bool = True
    """Whether the file has a timestamp for each packet. False: some are calculated, possibly differently after a
    seek."""
    encrypted: bool = False
    """Whether any packet is encrypted (ISO/IEC 23001-7)."""
    last_duration: int = 0
    """How long the packet with the latest timestamp is shown, in ticks; 0 if the file does not say."""

    @property
    def shown(self) -> list[int | None]:
        """The timestamps of the packets that are shown."""
        return [pts for number, pts in enumerate(self.pts) if number not in self.unshown]

    def __len__(self) -> int:
        return len(self.pts)


def scan(
    container: av.container.InputContainer,
    stream: VideoStream,
    limits: Limits,
    *,
    check: bool = True,
    blank: bool = False,
) -> Packets:
    """Read every packet. Raises `BadVideo` for too many frames, or if the file cannot be read to its end.

    Without `check`, it is read as far as possible. `blank`: the content of packets is not there (`quick.py`), so each
    counts as one frame, and each keyframe as self-contained.
    """
    found = Packets(own_stamps=container.format.name not in _CUT)
    latest = -(1 << 63)
    current: dict[str, bytes] = {"new_extradata": stream.codec_context.extradata or b""}
    codec = stream.codec_context.codec.canonical_name
    length_bytes = nal_length_bytes(stream.codec_context.extradata or b"", codec)
    try:
        for packet in demuxed(container, stream):
            if not packet.size:
                continue
            if packet.is_discard:
                found.unshown.add(len(found))
            if parameters := parameters_of(packet):
                found.parameters += 1
                found.changes += len(found) > 0 and not current.items() >= parameters.items()
                current |= parameters
            found.pts.append(packet.pts)
            found.dts.append(packet.dts)
            found.smallest = min(found.smallest, packet.size)
            found.corrupt += packet.is_corrupt
            found.encrypted = found.encrypted or packet.has_sidedata("encryption_info")
            found.hidden += not (blank or shows_one_frame(codec, memoryview(packet)))
            if packet.pts is not None and packet.pts >= latest:
                latest, found.last_duration = packet.pts, packet.duration or 0
            if packet.is_keyframe and packet.pts is not None:
                offset = -1 if packet.pos is None else packet.pos
                contained = blank or self_contained(packet, codec, length_bytes)
                found.keyframes.append(Keyframe(packet.pts, offset, contained))
            if len(found) > limits.frames:
                raise BadVideo(f"more than {limits.frames} frames", "limit")
    except av.error.FFmpegError as error:
        if check:
            raise BadVideo(f"the file cannot be read to its end: {reason(error)}") from error
    return found


def parameters_of(packet: Packet[VideoStream]) -> dict[str, bytes]:
    """The `PARAMETERS` provided with a packet, by kind."""
    return {kind: bytes(packet.get_sidedata(kind)) for kind in PARAMETERS if packet.has_sidedata(kind)}


def orderly(found: Packets, container_format: str, codec: str) -> bool:
    """Whether the packets give the number of frames and the frame index of each keyframe."""
    stamps = found.pts
    return (
        container_format.split(",")[0] in _INDEXED
        and codec in _ONE_FRAME_A_PACKET
        and not found.corrupt
        and not found.unshown
        and not found.parameters
        and not found.hidden
        and not (codec == "mpeg4" and found.smallest <= _PLACEHOLDER_BYTES)
        and None not in stamps
        and len(set(stamps)) == len(stamps)
        and bool(found.keyframes)
        and found.keyframes[0].pts == stamps[0] == min(stamp for stamp in stamps if stamp is not None)
        and all(keyframe.self_contained for keyframe in found.keyframes)
    )


_ONE_FRAME_A_PACKET = ("h264", "hevc", "mpeg4", "mpeg2video", "mjpeg", "prores", "vp8", "vp9", "av1")
H264_IDR = frozenset({5})
_HEVC_IRAP = frozenset(range(16, 22))


def self_contained(packet: Packet[VideoStream], codec: str, length_bytes: int) -> bool:
    """Whether, by the codec's standard, the frames shown from this packet on refer to no earlier frame."""
    if codec == "h264":
        return not H264_IDR.isdisjoint(kind & 0x1F for kind in nal_heads(bytes(packet), length_bytes))
    if codec == "hevc":
        return not _HEVC_IRAP.isdisjoint(kind >> 1 & 0x3F for kind in nal_heads(bytes(packet), length_bytes))
    if codec in HEADERS:
        return HEADERS[codec](memoryview(packet)).keyframe
    return codec in _ONE_FRAME_A_PACKET


def nal_length_bytes(extradata: bytes, codec: str) -> int:
    """Size of the length field before each NAL unit (ISO/IEC 14496-15); 0: start codes (Annex B)."""
    at = 4 if codec == "h264" else 21
    if codec not in ("h264", "hevc") or len(extradata) <= at or extradata[0] != 1:
        return 0
    return (extradata[at] & 3) + 1


def nal_heads(data: bytes, length_bytes: int) -> Sequence[int]:
    """The first byte of each NAL unit."""
    heads = []
    at = 0
    if length_bytes:
        while at + length_bytes < len(data):
            heads.append(data[at + length_bytes])
            at += length_bytes + int.from_bytes(data[at : at + length_bytes], "big")
    else:
        while (at := data.find(b"\0\0\1", at)) >= 0 and at + 3 < len(data):
            heads.append(data[at + 3])
            at += 3
    return heads
