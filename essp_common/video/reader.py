"""Frame-exact reading: the frames of any seed are those that a plain decode of the file from its start gives.

A frame's number is its place in the output of the decoder, which is display order. There are three ways to it, each
taken only where the catalog says that it is exact (`probe.py` proves that, file by file) and the file confirms it:

- by timestamps (`lookahead`): most files. Begins at a keyframe, decodes what the wanted frames are made of and
  nothing else (`selection.py`), and does not decode the file's beginning when it is opened;
- by counting from a keyframe (`seekable`): where timestamps do not number frames, or frames turned out otherwise
  than they say. The packet found must be the keyframe that was asked for, and the first frame shown must be its;
  frames before it in display order (the leading frames of an open GOP) are dropped, and the rest is counted;
- by counting from the start of the file, which is always exact: real files have timestamps missing, doubled and out
  of order.

Seeds of one video are read together in one pass forward: a frame that several want is decoded and converted once,
and a keyframe between two seeds is jumped to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from types import TracebackType

import av
import av.error
import numpy as np
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from numpy.typing import NDArray

from essp_common.errors import BadVideo
from essp_common.objects.ranged import expect
from essp_common.pb.v1.messages_pb2 import Resize, Seed, Seek
from essp_common.video.container import Limits, VideoFile, open_video, reason
from essp_common.video.pictures import Pictures
from essp_common.video.selection import Tally, select

_KEYFRAME_WEIGHT = 12
"""A keyframe takes about so many times the bytes of another frame."""

Target = NDArray[np.uint8]
"""(T, H, W, 3) uint8, RGB: where a seed's frames are written."""


class Reader:
    """One open video. Used from one thread."""

    def __init__(self, file: VideoFile, limits: Limits | None = None, *, lookahead: int = 0) -> None:
        """`lookahead`: of the catalog. Raises `BadVideo` when the file does not open or is over a limit."""
        self._file = file
        self._limits = limits or Limits()
        self._lookahead = lookahead
        self._pictures = Pictures()
        self.tally = Tally()
        self._open()

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the container (and not a file that was given)."""
        self._container.close()

    def read(
        self, seeds: Sequence[Seed], resize: Resize, targets: Sequence[Target], *, strict: bool = True
    ) -> list[BadVideo | None]:
        """Fill the target of each seed; for each, None or what is wrong with it. A bad one leaves the others alone.

        A seed with `seek` may be begun at that keyframe, one without is decoded from the file's start. Frames past
        `last_frame` repeat that frame. `strict`: an error of the decoder, a frame that it flags as corrupt, or a
        file that ends early fails the seeds that need those frames. Otherwise damaged packets are passed over, and
        what was last shown stands in for frames that are not there.
        """
        outcomes: list[BadVideo | None] = [None] * len(seeds)
        runs = _runs(seeds)
        if not isinstance(self._file, str):
            expect(self._file, [needed for run in runs if (needed := run.byte_range())])
        for run in runs:
            try:
                self._read_run(run, resize, targets, strict)
            except BadVideo as error:
                for want in run.wants[run.filled :]:
                    outcomes[want.seed] = error
            self.tally.wanted += run.filled
            self.tally.shared += run.shared
        return outcomes

    def frames(self, seek: Seek | None = None, *, strict: bool = True) -> Iterator[tuple[int, VideoFrame]]:
        """Frames with their numbers, from the keyframe `seek` or from the start of the file. Raises `BadVideo`."""
        if seek is not None and seek.frame_index > 0 and (shown := self.from_keyframe(seek, strict=strict)):
            yield from enumerate(shown, seek.frame_index)
        else:
            yield from enumerate(self._from_start(strict))

    def from_keyframe(self, seek: Seek, *, strict: bool = True) -> Iterator[VideoFrame] | None:
        """The keyframe and what is shown after it, or None when the file does not have it there."""
        try:
            packets = self._packets_from(seek)
            if packets is None:
                return None
            shown = _decoded(packets, self._stream, strict)
            keyframe = _skip_leading(seek.pts, shown)
        except (av.error.FFmpegError, BadVideo):
            return None
        return None if keyframe is None else chain([keyframe], shown)

    def selected(self, seek: Seek, wanted: Collection[int]) -> Iterator[tuple[int, VideoFrame]]:
        """Wanted frames from the keyframe `seek` on, by timestamps; ends early where the file is not as described."""
        try:
            packets = self._packets_from(seek)
            if packets is not None:
                yield from select(packets, self._stream, seek, self._lookahead, wanted, self.tally)
        except (av.error.FFmpegError, BadVideo):
            return

    def _read_run(self, run: _Run, resize: Resize, targets: Sequence[Target], strict: bool) -> None:
        if self._lookahead and run.seek is not None:
            if self._read_selected(run, run.seek, resize, targets):
                return
            self._distrust()
        self._read_counted(run, resize, targets, strict)

    def _read_selected(self, run: _Run, seek: Seek, resize: Resize, targets: Sequence[Target]) -> bool:
        """Whether every want was met. Those that were are, whatever happens to the others."""
        wants = run.wants
        for number, frame in self.selected(seek, {want.frame for want in wants}):
            if number != wants[run.filled].frame or frame.is_corrupt:
                return False
            run.fill(number, frame, self._pictures, resize, targets)
        return run.filled == len(wants)

    def _distrust(self) -> None:
        """Open the file anew, as one of which nothing is known but its keyframes."""
        self._lookahead = 0
        self._container.close()
        self._open()

    def _read_counted(self, run: _Run, resize: Resize, targets: Sequence[Target], strict: bool) -> None:
        wants = run.wants
        frame: VideoFrame | None = None
        for number, frame in self.frames(run.seek, strict=strict):
            self.tally.decoded += 1
            if number < wants[run.filled].frame:
                continue
            if strict and frame.is_corrupt:
                raise BadVideo(f"frame {number} is damaged")
            run.fill(number, frame, self._pictures, resize, targets)
            if run.filled == len(wants):
                return
        if strict or frame is None:
            raise BadVideo(f"the video ends before its frame {wants[run.filled].frame}", "truncated")
        while run.filled < len(wants):
            run.fill(wants[run.filled].frame, frame, self._pictures, resize, targets)

    def _open(self) -> None:
        try:
            self._container, self._stream = open_video(self._file, self._limits, described=self._lookahead > 0)
        except BadVideo:
            if not self._lookahead:
                raise
            self._lookahead = 0
            self._container, self._stream = open_video(self._file, self._limits)
        self._untouched = True

    def _from_start(self, strict: bool) -> Iterator[VideoFrame]:
        if not self._untouched:
            # Seeking to the start is not the same for every format; opening again is.
            self._container.close()
            self._open()
        self._untouched = False
        return _decoded(self._packets(), self._stream, strict)

    def _packets_from(self, seek: Seek) -> Iterator[Packet[VideoStream]] | None:
        """The packet of the keyframe and those after it, or None when the file does not have it there."""
        self._untouched = False
        self._container.seek(seek.pts, stream=self._stream)
        packets = self._packets()
        first = next(packets, None)
        if first is None or not first.is_keyframe or first.pts != seek.pts:
            return None
        return chain([first], packets)

    def _packets(self) -> Iterator[Packet[VideoStream]]:
        try:
            yield from self._container.demux(self._stream)
        except av.error.FFmpegError as error:
            raise BadVideo(f"the file cannot be read on: {reason(error)}") from error


@dataclass(frozen=True, slots=True)
class _Want:
    """A frame, and where it goes."""

    frame: int
    seed: int
    slot: int


@dataclass(slots=True)
class _Run:
    """Wants that are met by decoding forward from one place, by frame number."""

    seek: Seek | None
    wants: list[_Want] = field(default_factory=list)
    filled: int = 0
    """How many of the wants, from the first, have been met."""
    shared: int = 0
    """How many of those by a frame that another want had brought."""
    last_seek: Seek | None = None
    """The last keyframe before the seed that reaches farthest."""

    def byte_range(self) -> tuple[int, int] | None:
        """About where in the file it is decoded from; None where the catalog does not say."""
        first, last = self.seek, self.last_seek
        if first is None or last is None or not (first.byte_offset and last.byte_offset < last.next_offset):
            return None
        frames = last.next_frame - last.frame_index
        reach = self.wants[-1].frame - last.frame_index + 1
        share = min(1.0, (reach + _KEYFRAME_WEIGHT) / (frames + _KEYFRAME_WEIGHT))
        return first.byte_offset, last.byte_offset + int(share * (last.next_offset - last.byte_offset))

    def fill(
        self, number: int, frame: VideoFrame, pictures: Pictures, resize: Resize, targets: Sequence[Target]
    ) -> None:
        """Meet every want of frame `number`: convert once, copy to the others."""
        done: NDArray[np.uint8] | None = None
        while self.filled < len(self.wants) and (want := self.wants[self.filled]).frame == number:
            place = targets[want.seed][want.slot]
            if done is not None and done.shape == place.shape:
                place[...] = done
                self.shared += 1
            else:
                pictures.write(frame, resize, place)
                done = place
            self.filled += 1


def _runs(seeds: Sequence[Seed]) -> list[_Run]:
    """The seeds in passes forward, each begun at the last keyframe that serves its first seed."""
    frames = [[min(s.first_frame + slot * s.stride, s.last_frame) for slot in range(s.frame_count)] for s in seeds]
    runs: list[_Run] = []
    reached = -1  # the last frame that the current run decodes
    for position in sorted((p for p in range(len(seeds)) if frames[p]), key=lambda p: frames[p][0]):
        seed, wanted = seeds[position], frames[position]
        seek = seed.seek if seed.HasField("seek") and seed.seek.frame_index <= wanted[0] else None
        if not runs or (seek is not None and seek.frame_index > reached):
            runs.append(_Run(seek))
        runs[-1].wants.extend(_Want(frame, position, slot) for slot, frame in enumerate(wanted))
        if wanted[-1] > reached:
            reached, runs[-1].last_seek = wanted[-1], seek
    for run in runs:
        run.wants.sort(key=lambda want: want.frame)
    return runs


def _skip_leading(pts: int, shown: Iterator[VideoFrame]) -> VideoFrame | None:
    """The keyframe itself, shown after the leading frames that refer across it; None when it does not appear."""
    for frame in shown:
        if frame.pts is None or frame.pts > pts:
            return None
        if frame.pts == pts:
            return frame
    return None


def _decoded(packets: Iterator[Packet[VideoStream]], stream: VideoStream, strict: bool) -> Iterator[VideoFrame]:
    """What the decoder makes of the packets. Not strict: packets that it refuses are passed over."""
    while True:
        try:
            packet = next(packets)
        except StopIteration:
            return
        except BadVideo:
            if strict:
                raise
            return
        try:
            frames = stream.decode(packet)
        except av.error.FFmpegError as error:
            if strict:
                raise BadVideo(f"the decoder gives up: {reason(error)}") from error
            continue
        yield from frames
