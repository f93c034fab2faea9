"""Decoding the wanted frames of a group of pictures and, of the others, only what those are made of.

Where the catalog gives a video a `lookahead`, every packet is one frame, frames are shown in the order of their
timestamps, and those shown before a frame lie among so many packets from its own on. So the number of a frame is
known before it is decoded: the keyframe's, and one more for each timestamp between the two. Then

- what no frame refers to and no clip wants is not decoded (`skip_frame`, decided packet by packet: about half the
  pictures of a stream with B-frames);
- after the last packet of a wanted frame the decoder is drained, instead of being fed until that frame appears.

Skipping changes no other frame: the standards say so of pictures that are marked as not referred to, and the probe
has seen it of this file. Still nothing is taken on trust: frames come with the number that their timestamp has, and
whoever asks notices one that is missing, or out of order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from essp_common.pb.v1.messages_pb2 import Seek

_SKIPPING = frozenset({"h264", "hevc", "mpeg4", "mpeg2video"})
"""Codecs whose decoders in FFmpeg look at `skip_frame` anew for each packet."""


@dataclass(slots=True)
class Tally:
    """What reading took."""

    wanted: int = 0
    """Frames that were written into clips."""
    shared: int = 0
    """Of these, frames that were decoded and converted for another clip already."""
    decoded: int = 0
    skipped: int = 0
    """Frames that lie on the way to wanted ones and were not decoded, since nothing refers to them."""

    def counts(self) -> dict[str, int]:
        """All of it, by name."""
        return {
            "wanted": self.wanted,
            "shared": self.shared,
            "decoded": self.decoded,
            "skipped": self.skipped,
        }


def select(
    packets: Iterator[Packet[VideoStream]],
    stream: VideoStream,
    seek: Seek,
    lookahead: int,
    wanted: Collection[int],
    tally: Tally,
) -> Iterator[tuple[int, VideoFrame]]:
    """The wanted frames with their numbers, as far as the packets have them, in the order in which they are shown.

    `packets` begins with the keyframe `seek`. Raises what `packets` and the decoder raise. The decoder has to be
    flushed (a seek does that) before it is used for anything else.
    """
    order = _Order(packets, seek, lookahead)
    context = stream.codec_context
    skips = context.codec.canonical_name in _SKIPPING
    left = set(wanted)
    begun, passed = tally.decoded, 0
    try:
        for packet, number in order:
            left.discard(number)
            passed += 1
            if skips:
                context.skip_frame = "DEFAULT" if number in wanted else "NONREF"
            yield from _wanted(stream.decode(packet), order, wanted, tally)
            if not left:
                break
        yield from _wanted(stream.decode(None), order, wanted, tally)
        tally.skipped += passed - (tally.decoded - begun)
    finally:
        context.skip_frame = "DEFAULT"


def _wanted(
    frames: Iterable[VideoFrame], order: _Order, wanted: Collection[int], tally: Tally
) -> Iterator[tuple[int, VideoFrame]]:
    for frame in frames:
        tally.decoded += 1
        if (number := order.number(frame.pts)) in wanted:
            yield number, frame


class _Order:
    """Packets in the order of the file, each with the number of the frame that it is."""

    def __init__(self, packets: Iterator[Packet[VideoStream]], seek: Seek, lookahead: int) -> None:
        self._packets = packets
        self._seek = seek
        self._lookahead = lookahead
        self._stamps: list[int] = []
        """Timestamps from the keyframe's on, of all packets read so far, sorted."""

    def __iter__(self) -> Iterator[tuple[Packet[VideoStream], int]]:
        """Frames that are shown before the keyframe have a smaller number than it."""
        ahead: deque[Packet[VideoStream]] = deque()
        for packet in self._packets:
            if not packet.size:
                continue  # PyAV's sign of the end
            if packet.pts is not None and packet.pts >= self._seek.pts:
                insort(self._stamps, packet.pts)
            ahead.append(packet)
            if len(ahead) == self._lookahead:
                yield self._numbered(ahead.popleft())
        yield from map(self._numbered, ahead)

    def number(self, pts: int | None) -> int:
        """The number of the frame shown at this time; -1 for those before the keyframe, and for what no packet says."""
        if pts is None:
            return -1
        place = bisect_left(self._stamps, pts)
        known = place < len(self._stamps) and self._stamps[place] == pts
        return self._seek.frame_index + place if known else -1

    def _numbered(self, packet: Packet[VideoStream]) -> tuple[Packet[VideoStream], int]:
        return packet, self.number(packet.pts)


def lookahead(stamps: Sequence[int]) -> int:
    """What `select` needs for a file whose packets have these timestamps, in the order of the file."""
    smallest_from = list(accumulate(reversed(stamps), min))[::-1]
    # The last packet that is shown no later than packet i is the last from which on something is.
    return max((bisect_right(smallest_from, stamp) - place for place, stamp in enumerate(stamps)), default=0)
