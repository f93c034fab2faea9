"""Decodes the wanted frames of a group of pictures, and otherwise only frames that they refer to.

The catalog gives a video a `lookahead` only if every packet is one frame and frames are shown in the order of their
timestamps. Every frame that is shown before a given one then comes, in the file, within `lookahead` packets starting
with that frame's own; packets that an edit list omits do not count. So the index of a frame is known before it is
decoded: the index of the keyframe, plus the number of timestamps between the two. This saves decoding in two ways:

- Frames that no clip wants and no other frame refers to are not decoded (`skip_frame`, set for each packet). These are
  about half the frames of a stream with B-frames.
- The decoder is drained after the packet of the last wanted frame, instead of being fed until that frame appears.

Skipping changes no other frame. The standards guarantee this for pictures marked as non-reference, and the probe has
checked it for the file. The reader checks again: each frame carries the index that follows from its timestamp, so the
caller notices frames that are missing or out of order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from essp_common.pb.v1.messages_pb2 import Seek

_SKIPPING = frozenset({"h264", "hevc", "mpeg4", "mpeg2video"})
"""Codecs whose FFmpeg decoders check `skip_frame` for each packet."""


Shown = Callable[[int, VideoFrame], None]
"""Takes a decoded frame and its index."""


@dataclass(slots=True)
class Tally:
    """Counts of frames while reading."""

    wanted: int = 0
    """Frames that were written into clips."""
    shared: int = 0
    """Of these, frames that had already been decoded and converted for another clip."""
    decoded: int = 0
    skipped: int = 0
    """Frames before wanted ones that were not decoded, because no frame refers to them."""

    def counts(self) -> dict[str, int]:
        """All counts by name."""
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
    shown: Shown | None = None,
) -> Iterator[tuple[int, VideoFrame]]:
    """Yields the wanted frames with their indices, in display order, as far as the packets contain them. `shown` is
    called with each decoded frame, wanted or not, before it is yielded.

    `packets` begins with the keyframe `seek`. Errors of `packets` and of the decoder pass through. Flush the decoder (a
    seek does) before any other use.
    """
    order = Order(packets, seek, lookahead)
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
            yield from _wanted(stream.decode(packet), order, wanted, tally, shown)
            if not left:
                break
        yield from _wanted(stream.decode(None), order, wanted, tally, shown)
        tally.skipped += passed - (tally.decoded - begun)
    finally:
        context.skip_frame = "DEFAULT"


def _wanted(
    frames: Iterable[VideoFrame], order: Order, wanted: Collection[int], tally: Tally, shown: Shown | None
) -> Iterator[tuple[int, VideoFrame]]:
    for frame in frames:
        tally.decoded += 1
        number = order.number(frame.pts)
        if shown is not None:
            shown(number, frame)
        if number in wanted:
            yield number, frame


class Order:
    """Packets in file order, each with the index of its frame. They begin with the keyframe `seek`."""

    def __init__(self, packets: Iterator[Packet[VideoStream]], seek: Seek, lookahead: int) -> None:
        self._packets = packets
        self._seek = seek
        self._lookahead = lookahead
        self._stamps: list[int] = []
        """Timestamps of all packets read so far, starting with the keyframe's, sorted."""

    def __iter__(self) -> Iterator[tuple[Packet[VideoStream], int]]:
        """Yields packets with frame indices. Frames shown before the keyframe, or omitted by an edit list, have index
        -1."""
        ahead: deque[Packet[VideoStream]] = deque()
        shown = 0  # of the packets in `ahead`
        for packet in self._packets:
            if not packet.size:
                continue  # PyAV's end marker
            ahead.append(packet)
            if packet.is_discard:
                continue
            if packet.pts is not None and packet.pts >= self._seek.pts:
                insort(self._stamps, packet.pts)
            shown += 1
            while shown == self._lookahead:
                shown -= not ahead[0].is_discard
                yield self._numbered(ahead.popleft())
        yield from map(self._numbered, ahead)

    def number(self, pts: int | None) -> int:
        """The index of the frame with this timestamp; -1 if it is before the keyframe or no packet has it."""
        if pts is None:
            return -1
        place = bisect_left(self._stamps, pts)
        known = place < len(self._stamps) and self._stamps[place] == pts
        return self._seek.frame_index + place if known else -1

    def _numbered(self, packet: Packet[VideoStream]) -> tuple[Packet[VideoStream], int]:
        return packet, -1 if packet.is_discard else self.number(packet.pts)


def lookahead(stamps: Sequence[int]) -> int:
    """The `lookahead` that `select` needs for packets with these timestamps, in file order."""
    smallest_from = list(accumulate(reversed(stamps), min))[::-1]
    # Minima from the end are sorted, so bisecting finds the last packet that is shown no later than packet i.
    return max((bisect_right(smallest_from, stamp) - place for place, stamp in enumerate(stamps)), default=0)
