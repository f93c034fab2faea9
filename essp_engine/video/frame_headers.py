"""Parses the headers of VP8, VP9 and AV1 packets: whether a packet shows one frame, and whether that is a keyframe.

These codecs also have frames that are never shown, and only serve others as a reference. A keyframe that is shown
replaces all references, so nothing after it refers to anything before it (RFC 6386, section 9.7; VP9 bitstream
specification, section 7.2; AV1 bitstream specification, section 7.20). A packet that is not understood counts as having
no keyframe and no shown frame: the file is then decoded completely instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple


class Header(NamedTuple):
    """The parsed header of a packet."""

    shown: int
    """The number of frames that it shows."""
    keyframe: bool
    """Whether its first frame is a keyframe that is shown."""


_NOTHING = Header(0, False)


def shows_one_frame(codec: str, packet: memoryview) -> bool:
    """Whether a packet shows one frame. Always true for codecs that have no other packets."""
    return codec not in HEADERS or HEADERS[codec](packet).shown == 1


def _vp8(packet: memoryview) -> Header:
    if len(packet) < 3:
        return _NOTHING
    shown = packet[0] >> 4 & 1
    return Header(shown, bool(shown) and not packet[0] & 1)


def _vp9(packet: memoryview) -> Header:
    frames = [_vp9_frame(frame) for frame in _vp9_frames(packet)]
    return Header(sum(frame.shown for frame in frames), frames[0].keyframe) if frames else _NOTHING


def _vp9_frames(packet: memoryview) -> Iterator[memoryview]:
    """The frames of a superframe (VP9 bitstream specification, annex B), or the single frame."""
    last = packet[-1] if len(packet) else 0
    count, bytes_each = (last & 7) + 1, (last >> 3 & 3) + 1
    index = 2 + count * bytes_each
    if last >> 5 != 0b110 or len(packet) < index or packet[-index] != last:
        if len(packet):
            yield packet
        return
    start = 0
    for number in range(count):
        at = len(packet) - index + 1 + number * bytes_each
        size = int.from_bytes(packet[at : at + bytes_each], "little")
        if size:
            yield packet[start : start + size]
        start += size


def _vp9_frame(frame: memoryview) -> Header:
    bits = _bits(frame[:2])
    if len(frame) < 2 or bits[:2] != "10":
        return _NOTHING
    at = 5 if bits[2:4] == "11" else 4  # profile 3 has a reserved bit
    existing, inter, shown = (bit == "1" for bit in bits[at : at + 3])
    return Header(1, False) if existing else Header(int(shown), shown and not inter)


def _av1(packet: memoryview) -> Header:
    """One temporal unit (AV1 bitstream specification, sections 5.3 and 5.9.2)."""
    shown, keyframe, begun = 0, False, False
    for kind, content in _obus(packet):
        if kind not in (_FRAME_HEADER, _FRAME) or not len(content):
            continue
        bits = _bits(content[:1])
        existing, intra_kind, visible = bits[0] == "1", int(bits[1:3], 2), bits[3] == "1"
        keyframe = keyframe or (not begun and not existing and visible and intra_kind == 0)
        shown += existing or visible
        begun = True
    return Header(shown, keyframe)


_FRAME_HEADER, _FRAME = 3, 6


def _obus(packet: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Type and content of each open bitstream unit."""
    at = 0
    while at < len(packet):
        head = packet[at]
        at += 2 if head & 4 else 1
        size = len(packet) - at
        if head & 2:
            size, shift = 0, 0
            while at < len(packet):
                size |= (packet[at] & 127) << shift
                shift += 7
                at += 1
                if not packet[at - 1] & 128 or shift > 56:
                    break
        yield head >> 3 & 15, packet[at : at + size]
        at += size


def _bits(data: memoryview) -> str:
    return "".join(f"{byte:08b}" for byte in data)


HEADERS: Mapping[str, Callable[[memoryview], Header]] = {"vp8": _vp8, "vp9": _vp9, "av1": _av1}
"""By the codec's canonical name. (A reduced still picture of AV1 lacks these bits, but is not a video.)"""
