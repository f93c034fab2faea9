"""Reads one file for a check, once: `decoded` examines every frame, `packets_only` decodes no frame.

Runs in a child process (`essp_engine.decoding.probing`), because the bytes are untrusted. Memory does not grow with the
length of a video beyond three numbers a frame: only a few thumbnails are kept.

What the decoder rejects is counted and skipped, because the rest of the file is still worth reading. Raises
`BadVideo` for a file that does not open or does not contain a frame.
"""

from __future__ import annotations

import heapq
from array import array
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from hashlib import blake2b

import av.error
import numpy as np
import simplejpeg
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.reformatter import Interpolation, VideoReformatter
from av.video.stream import VideoStream
from numpy.typing import NDArray

from essp.catalog.check.measures import Measures, Stretch
from essp.catalog.check.signals import (
    CUT_LEVELS,
    SIDE,
    STILL_LEVELS,
    Picture,
    Samples,
    cuts,
    frozen,
    hashes,
    is_black,
    stretches,
)
from essp_common.errors import BadVideo
from essp_common.pb.v1.messages_pb2 import Resize
from essp_engine.video.container import Limits, VideoFile, demuxed, open_video, reason
from essp_engine.video.conversion import FrameConverter, quarter_turns
from essp_engine.video.fields import WholePictures
from essp_engine.video.notes import Pictures
from essp_engine.video.planes import rows_of
from essp_engine.video.png_profiles import packets_without_profile

BLACK_S = 0.5
FROZEN_S = 1.0
"""The shortest stretches that are reported."""
_LEAST_FRAMES = 6
_MOST_STRETCHES = 12
"""The most stretches of one kind in one file."""
_STRIP = 4
_THUMBNAIL = 160
"""The longer side of a thumbnail, in pixels."""
_QUALITY = 60
_USUAL_RATE = 25.0


def decoded(file: VideoFile) -> Measures:
    """The measures of a file, all frames decoded."""
    return _read(file, decode=True)


def packets_only(file: VideoFile) -> Measures:
    """The measures of a file that need no decoded frame: a tenth of the time or less."""
    return _read(file, decode=False)


def _read(file: VideoFile, decode: bool) -> Measures:
    limits = Limits()
    container, stream = open_video(file, limits, described=not decode)
    with container:
        rate = float(stream.average_rate or stream.guessed_rate or _USUAL_RATE)
        packets = _Packets(stream)
        look = _Look(min(max(rate, 1.0), 240.0))
        try:
            for packet in packets_without_profile(demuxed(container, stream), stream):
                packets.take(packet)
                if packets.count > limits.frames or look.frames > limits.frames:
                    raise BadVideo(f"more than {limits.frames} frames", "limit")
                if decode:
                    look.take(_frames(stream, packet, look))
        except av.error.FFmpegError as error:
            raise BadVideo(f"the file cannot be read to its end: {reason(error)}") from error
        if not (look.frames if decode else packets.count):
            raise BadVideo("no frame in the file", "empty")
        aspect = float(stream.sample_aspect_ratio or 1)
        found = Measures(
            decode,
            packets.count,
            look.frames,
            stream.frames,
            keyframes=packets.keyframes,
            pixel_aspect=aspect,
            digest=packets.digest.hexdigest(),
        )
        return look.measures(found) if decode else found


class _Packets:
    """Counts packets and computes a digest of their content."""

    def __init__(self, stream: VideoStream) -> None:
        self.count = self.keyframes = 0
        self.digest = blake2b(stream.codec_context.extradata or b"", digest_size=16)

    def take(self, packet: Packet[VideoStream]) -> None:
        if packet.size:
            self.count += 1
            self.keyframes += packet.is_keyframe
            self.digest.update(memoryview(packet))


def _frames(stream: VideoStream, packet: Packet[VideoStream], look: _Look) -> Iterator[VideoFrame]:
    """The frames that the decoder returns for this packet."""
    try:
        yield from stream.decode(packet)
    except av.error.FFmpegError:
        look.note_damage()


class _Look:
    """Examines frames one after the other."""

    def __init__(self, rate: float) -> None:
        self._reformatter = VideoReformatter()
        self._whole_pictures = WholePictures()
        self._thumbnails = _Thumbnails()
        self._before: tuple[Picture, ...] = ()
        """The last two pictures, the later one first."""
        self._step, self._leap, self._peak = array("f"), array("f"), array("B")
        self._black = array("B")
        self._damaged, self._first_damaged = 0, -1
        self._pictures: Samples[Picture] = Samples(64)
        self._strip: Samples[str] = Samples(8)
        self._fields_and_sizes = Pictures()
        self._cuts: list[tuple[float, int, tuple[str, str]]] = []
        """The largest changes so far: their size, the frame after each, and the frames on both sides."""
        self._last: VideoFrame | None = None
        self._least = {
            "black": max(_LEAST_FRAMES, round(BLACK_S * rate)),
            "frozen": max(_LEAST_FRAMES, round(FROZEN_S * rate)),
        }
        self._run = Counter[str]()
        self._seen: dict[tuple[str, int], str] = {}
        """A thumbnail of each long stretch, by its kind and the number of a frame in it."""

    @property
    def frames(self) -> int:
        return len(self._step)

    def note_damage(self) -> None:
        """Count the next frame as missing or damaged."""
        self._damaged += 1
        if self._first_damaged < 0:
            self._first_damaged = self.frames

    def take(self, frames: Iterator[VideoFrame]) -> None:
        """Examine these frames."""
        for frame in frames:
            if frame.is_corrupt:
                self.note_damage()
            self._look_at(frame)
            self._last = frame

    def _look_at(self, frame: VideoFrame) -> None:
        number = self.frames
        self._fields_and_sizes.take(frame)
        picture = self._cells(frame)
        step, peak = _difference(picture, self._before[:1])
        leap, _ = _difference(picture, self._before[1:])
        if step >= CUT_LEVELS and self._last is not None:
            self._offer(step, number, frame)
        self._step.append(step)
        self._leap.append(leap)
        self._peak.append(peak if number else 255)
        black = is_black(picture)
        self._black.append(black)
        self._follow("black", black, number, frame)
        self._follow("frozen", number > 0 and not black and peak <= STILL_LEVELS, number, frame)
        if self._pictures.due(number):
            self._pictures.keep(number, picture)
        if self._strip.due(number):
            self._strip.keep(number, self._thumbnails.of(frame))
        self._before = picture, *self._before[:1]

    def _cells(self, frame: VideoFrame) -> Picture:
        whole = self._whole_pictures.of(frame)
        small = self._reformatter.reformat(whole, SIDE, SIDE, "gray", interpolation=Interpolation.AREA, threads=1)
        return rows_of(small.planes[0], SIDE).copy()

    def _offer(self, step: float, number: int, frame: VideoFrame) -> None:
        """Keep a change that may be a cut, with the frames on both sides, if it is among the largest."""
        full = len(self._cuts) >= 2 * _MOST_STRETCHES
        if self._last is None or (full and step <= self._cuts[0][0]):
            return
        found = step, number, (self._thumbnails.of(self._last), self._thumbnails.of(frame))
        (heapq.heappushpop if full else heapq.heappush)(self._cuts, found)

    def _follow(self, kind: str, goes_on: bool, number: int, frame: VideoFrame) -> None:
        """Make a thumbnail when a stretch is long enough to be reported."""
        self._run[kind] = self._run[kind] + 1 if goes_on else 0
        if self._run[kind] == _LEAST_FRAMES - 1 and len(self._seen) < 8 * _MOST_STRETCHES:
            self._seen[kind, number] = self._thumbnails.of(frame)

    def measures(self, found: Measures) -> Measures:
        """The result for all frames so far."""
        step, leap = (np.frombuffer(numbers, np.float32).astype(np.float64) for numbers in (self._step, self._leap))
        black = np.frombuffer(self._black, np.uint8).astype(bool)
        peak = np.where(black, 255, np.frombuffer(self._peak, np.uint8).astype(np.int64))
        beside = {number: pictures for _, number, pictures in self._cuts}
        kept: list[Stretch] = []
        left_out: dict[str, int] = {}
        for kind, runs in (
            ("black", stretches(black, self._least["black"])),
            ("frozen", frozen(step, peak, self._least["frozen"])),
        ):
            told = sorted(sorted(runs, key=lambda run: run[0] - run[1])[:_MOST_STRETCHES])
            kept += [Stretch(kind, first, last, self._of(kind, first, last)) for first, last in told]  # type: ignore[arg-type]
            left_out |= {kind: len(runs) - len(told)} if len(runs) > len(told) else {}
        dark = {edge for one in kept if one.kind == "black" for edge in (one.first, one.last + 1)}
        changes = [cut for cut in cuts(step, leap) if cut not in dark]
        told_cuts = sorted(sorted(changes, key=lambda cut: -step[cut])[:_MOST_STRETCHES])
        kept += [Stretch("cut", cut - 1, cut, beside.get(cut, ())) for cut in told_cuts]
        left_out |= {"cut": len(changes) - len(told_cuts)} if len(changes) > len(told_cuts) else {}
        shown, moved = hashes(np.array(self._pictures.all))
        return replace(
            found,
            frames=self.frames,
            damaged=self._damaged,
            first_damaged=self._first_damaged,
            shown=tuple(shown),
            moved=tuple(moved),
            stretches=tuple(kept),
            left_out=left_out,
            strip=tuple(self._strip.spread(_STRIP, self.frames)),
            notes="\n".join(self._fields_and_sizes.notes()),
        )

    def _of(self, kind: str, first: int, last: int) -> tuple[str, ...]:
        """A thumbnail of a stretch."""
        return tuple(jpeg for (name, number), jpeg in self._seen.items() if name == kind and first <= number <= last)[
            :1
        ]


def _difference(picture: Picture, earlier: tuple[Picture, ...]) -> tuple[float, int]:
    """Mean and largest absolute difference of two pictures; 0 without an earlier one."""
    if not earlier:
        return 0.0, 0
    apart = np.abs(picture.astype(np.int16) - earlier[0])
    return int(apart.sum()) / apart.size, int(apart.max())


class _Thumbnails:
    """Small JPEG pictures, as a page holds them."""

    def __init__(self) -> None:
        self._converter = FrameConverter()

    def of(self, frame: VideoFrame) -> str:
        """A frame as clips show it: rotated, and with square pixels."""
        turned = quarter_turns(frame) % 2
        height, width = (frame.width, frame.height) if turned else (frame.height, frame.width)
        scale = _THUMBNAIL / max(height, width)
        target: NDArray[np.uint8] = np.zeros((max(1, round(height * scale)), max(1, round(width * scale)), 3), np.uint8)
        self._converter.write(frame, Resize(mode=Resize.EXACT, interpolation="area"), target)
        return b64encode(simplejpeg.encode_jpeg(target, _QUALITY, colorspace="RGB", colorsubsampling="420")).decode()
