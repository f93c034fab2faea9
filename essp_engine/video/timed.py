"""Frames of a video by their times, without a catalog.

`FrameTimes` has the timestamp of each frame and the places of the keyframes. In an MP4 whose frames are stored in the
order in which they are shown (AV1, VP9, H.264 without B-frames, ...) they are in its index, so that no frame is read
for them. In any other file all packets are read once, but not decoded.

`TimedReader` opens a file, and decodes the frames that it is asked for from the keyframe before each. Every decoded
frame must have the timestamp that the index gives it, so a wrong index cannot lead to a wrong frame.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice

import av.container
import numpy as np
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from numpy.typing import NDArray

from essp_common.errors import BadVideo
from essp_common.pb.v1.messages_pb2 import Seek
from essp_engine.video.container import Limits, VideoFile, open_video
from essp_engine.video.packets import scan
from essp_engine.video.reader import Reader
from essp_engine.video.selection import lookahead

_RECOVERING = ("h264", "hevc")
"""Codecs whose keyframes may refer to frames before them."""
_COMPARED = 8
"""Packets whose timestamps are compared with the index. If frames are reordered at all, the first ones show it."""


@dataclass(frozen=True, slots=True)
class FrameTimes:
    """The times of the frames of a video, in display order, and its keyframes."""

    stamps: NDArray[np.int64]
    """Ticks, increasing."""
    time_base: Fraction
    """Seconds of a tick."""
    keyframes: Sequence[int]
    """Numbers of the keyframes, increasing."""
    lookahead: int
    """See `selection.py`."""

    def __len__(self) -> int:
        return len(self.stamps)

    def second(self, number: int) -> float:
        """When a frame is shown, on the clock of the file."""
        return float(int(self.stamps[number]) * self.time_base)

    def nearest(self, seconds: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The numbers of the frames nearest to these times, and how far from them, in seconds, each is shown."""
        shown = self.stamps * float(self.time_base)
        after = np.clip(np.searchsorted(shown, seconds), 1, max(len(shown) - 1, 1))
        before = after - 1
        after = np.minimum(after, len(shown) - 1)
        numbers = np.where(seconds - shown[before] <= shown[after] - seconds, before, after)
        return numbers, np.abs(shown[numbers] - seconds)

    def keyframe(self, number: int) -> int:
        """The number of the last keyframe at or before a frame."""
        return self.keyframes[max(bisect_right(self.keyframes, number) - 1, 0)]


def frame_times(file: VideoFile, limits: Limits | None = None) -> FrameTimes:
    """The times of all frames. Raises `BadVideo` for a file that does not open, or lacks timestamps."""
    limits = limits or Limits()
    try:
        container, stream = open_video(file, limits, described=True)
    except BadVideo:  # MPEG-TS and MPEG-PS have no header that describes their streams
        container, stream = open_video(file, limits)
    with container:
        if container.format.name.startswith("mov") and (indexed := _indexed(container, stream)) is not None:
            return indexed
    container, stream = open_video(file, limits)
    with container:
        return _scanned(container, stream, limits)


def _indexed(container: av.container.InputContainer, stream: VideoStream) -> FrameTimes | None:
    """The times according to the container's index; None if they are not display times."""
    entries = stream.index_entries
    stamps = np.fromiter((entry.timestamp for entry in entries), np.int64, len(entries))
    if not len(stamps) or any(entry.is_discard for entry in entries) or (np.diff(stamps) <= 0).any():
        return None
    packets = [packet for packet in islice(container.demux(stream), _COMPARED) if packet.size]
    if any(packet.pts != stamp or packet.dts != stamp for packet, stamp in zip(packets, stamps.tolist(), strict=False)):
        return None
    keyframes = [number for number, entry in enumerate(entries) if entry.is_keyframe]
    if keyframes[:1] != [0] or stream.time_base is None:
        return None
    return FrameTimes(stamps, stream.time_base, keyframes, 1)


def _scanned(container: av.container.InputContainer, stream: VideoStream, limits: Limits) -> FrameTimes:
    packets = scan(container, stream, limits)
    shown = [stamp for stamp in packets.shown if stamp is not None]
    stamps = np.array(sorted(set(shown)), np.int64)
    if not len(stamps) or len(stamps) != len(packets.shown) or stream.time_base is None or not packets.own_stamps:
        raise BadVideo("its frames have no timestamps of their own, so they cannot be found by time")
    of_itself = stream.codec_context.codec.canonical_name not in _RECOVERING
    entries = [keyframe.pts for keyframe in packets.keyframes if of_itself or keyframe.self_contained]
    keyframes = sorted({0, *np.searchsorted(stamps, entries).tolist()})
    return FrameTimes(stamps, stream.time_base, keyframes, lookahead(shown))


class TimedReader:
    """One open video. Used from one thread at a time."""

    def __init__(self, file: VideoFile, limits: Limits | None = None) -> None:
        """Raises `BadVideo`."""
        self.times = frame_times(file, limits)
        self._reader = Reader(file, limits, lookahead=self.times.lookahead)

    def close(self) -> None:
        """Close the file, but not a file object that was passed in."""
        self._reader.close()

    def frames(self, numbers: Sequence[int]) -> Generator[tuple[int, VideoFrame], None, None]:
        """Yields these frames, whose numbers increase. Frames between two of them are decoded only where no keyframe
        lies between. Raises `BadVideo` for a damaged one."""
        begin = 0
        for place in range(1, len(numbers) + 1):
            # A keyframe that follows the frame before is reached by decoding on, which costs less than a seek.
            if place == len(numbers) or self.times.keyframe(numbers[place]) > numbers[place - 1] + 1:
                yield from self._run(numbers[begin:place])
                begin = place

    def _run(self, numbers: Sequence[int]) -> Generator[tuple[int, VideoFrame], None, None]:
        """Frames that are decoded in one go, from the keyframe before the first of them."""
        first = self.times.keyframe(numbers[0])
        seek = Seek(pts=int(self.times.stamps[first]), frame_index=first)
        given = 0
        for number, frame in self._reader.selected(seek, set(numbers)):
            if number != numbers[given] or not self._is(number, frame):
                break
            yield number, frame
            given += 1
            if given == len(numbers):
                return
        rest, why = list(numbers[given:]), ""
        try:
            for number, frame in self._reader.frames(seek):
                if number == rest[0]:
                    if not self._is(number, frame):
                        break
                    yield number, frame
                    del rest[0]
                    if not rest:
                        return
        except BadVideo as error:
            why = f": {error}"
        raise BadVideo(f"its frame {rest[0]}, at {self.times.second(rest[0]):.3f} s, is missing or damaged{why}")

    def _is(self, number: int, frame: VideoFrame) -> bool:
        return frame.pts == self.times.stamps[number] and not frame.is_corrupt
