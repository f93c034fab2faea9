"""Removes the colour profile (`iCCP`) from PNG files, and from packets of PNG-coded video.

ESSP does not apply the profile, and it can crash the process: FFmpeg stores its name in the side data of the frame, and
PyAV 18 frees that twice when the side data is read, as for the display matrix.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import cast

from av.packet import Packet
from av.video.stream import VideoStream

_SIGNATURE_BYTES = 8


def without_profile(data: bytes, at: int = _SIGNATURE_BYTES) -> bytes:
    """A PNG file, or a packet of one, without its profile. Damage is left unchanged. `at`: the start of its chunks."""
    kept = [data[:at]]
    while at < len(data):
        end = at + 12 + int.from_bytes(data[at : at + 4], "big")  # length, name, content and checksum
        if data[at + 4 : at + 8] != b"iCCP":
            kept.append(data[at:end])
        at = end
    return b"".join(kept)


def packets_without_profile(
    packets: Iterable[Packet[VideoStream]], stream: VideoStream
) -> Iterator[Packet[VideoStream]]:
    """The packets of a stream; PNG packets without their profile.

    For PNG, packets that an edit list omits are dropped here, because a newly created packet would be shown.
    """
    if stream.codec_context.codec.canonical_name != "png":
        yield from packets
        return
    for packet in packets:
        if not packet.is_discard:
            yield _without_profile(packet) if packet.size else packet


def forget_profile(stream: VideoStream) -> None:
    """Remove the profile from the initialisation data of an animated PNG decoder."""
    context = stream.codec_context
    if context.codec.canonical_name == "apng" and context.extradata:
        context.extradata = without_profile(context.extradata, 0)


def _without_profile(packet: Packet[VideoStream]) -> Packet[VideoStream]:
    found = cast("Packet[VideoStream]", Packet(without_profile(bytes(packet))))
    found.pts, found.dts, found.duration = packet.pts, packet.dts, packet.duration
    found.time_base, found.stream, found.is_keyframe = packet.time_base, packet.stream, packet.is_keyframe
    return found
