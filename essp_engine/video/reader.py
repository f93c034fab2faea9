"""Reads the frames of seeds exactly: the same frames as a plain decode of the file from its start.

The index of a frame is its position in display order, which is the order of the decoder's output. There are three ways
to find a frame. Each is used only if the catalog says that it is exact for the file (`probe.py` checks this) and the
file confirms it:

- By timestamps (`lookahead`), for most files. Reading begins at a keyframe and decodes only the wanted frames and those
  that they refer to (`selection.py`). Opening the file decodes nothing.
- By counting from a keyframe (`seekable`), if timestamps do not give frame indices, or if frames contradicted them. The
  packet found must be the requested keyframe, and the decoder must show that keyframe. Frames before it in display
  order (the leading frames of an open GOP) are dropped, and the others are counted.
- By counting from the start of the file. This is always exact, even for files whose timestamps are missing, repeated or
  out of order.

The catalog of a quick build has facts that no one has verified (`declared`). Then frames are read by timestamps only
as far as the file bears them out: the keyframe found must be one that refers to nothing before it, by the codec's
standard; each frame from there to the last wanted one must come, in order, with the declared size; none is skipped.
Otherwise the frames are counted from the start, and each must be the one that the file's index has there.

The seeds of one video are read together in one forward pass. A frame that several seeds want is decoded and converted
once. If a keyframe lies between two seeds, or two snippets of one, the reader seeks to it.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from types import TracebackType
from typing import Any, cast

import av
import av.error
from av.packet import Packet, PacketSideData, PktSideDataT
from av.video.frame import VideoFrame
from av.video.stream import VideoStream
from numpy.typing import NDArray

from essp_common.errors import BadVideo
from essp_common.objects.ranged import expect
from essp_common.pb.v1.messages_pb2 import Resize, Seed, Seek, Snippet
from essp_engine.video.colour import Colour
from essp_engine.video.container import Limits, VideoFile, demuxed, open_video, reason
from essp_engine.video.conversion import FrameConverter, quarter_turns
from essp_engine.video.frame_headers import shows_one_frame
from essp_engine.video.motion import EXPORT, Motion, MotionOfRun, repeated
from essp_engine.video.motion_layout import CODECS
from essp_engine.video.packets import PARAMETERS, nal_length_bytes, self_contained
from essp_engine.video.png_profiles import packets_without_profile
from essp_engine.video.selection import Order, Shown, Tally, select

_KEYFRAME_WEIGHT = 12
"""Approximate size of a keyframe, relative to other frames."""

_BY_OFFSET = "mpegts"
"""The format in which a keyframe is found by its byte offset, if the catalog has it."""
_BY_DECODING_TIME = ("mpegts", "mpeg")
"""Formats whose demuxers seek by decoding time, and so may land after the keyframe that is shown at that time."""
_EARLY_S = 1.0
"""In these formats, a seek aims this many seconds earlier: more than the reordering of frames."""
_PALETTE_BITS = 8
"""Bits per pixel, as declared by the container, up to which pixels may be palette indices."""

_BEFORE_ALL = -(1 << 62)
"""A timestamp before any other."""
_JPEG_TABLES = (b"\xff\xdb", b"\xff\xc4")
"""The markers of the tables without which a picture depends on an earlier one (ITU-T T.81, annex B)."""

Target = NDArray[Any]
"""The array that receives a seed's frames: `(T, H, W, 3)` uint8 RGB, or according to `Resize.pixels` (`colour.py`)."""


class Reader:
    """One open video. Used from one thread."""

    def __init__(
        self,
        file: VideoFile,
        limits: Limits | None = None,
        *,
        lookahead: int = 0,
        declared: tuple[int, int] | None = None,
        motion: bool = False,
    ) -> None:
        """`lookahead`: the catalog's value. `declared`: width and height that no one has verified, like the other facts
        (`VideoRow.declared`). `motion`: `read` gives motion vectors, too. Raises `BadVideo` if the file does not open,
        exceeds a limit, or has no motion vectors."""
        self._file = file
        self._limits = limits or Limits()
        self._lookahead = self._ahead = lookahead
        self._described = lookahead > 0
        self._declared = declared
        self._motion = motion
        self._converter = FrameConverter()
        self._onward: Iterator[tuple[int, VideoFrame]] | None = None
        """The frames from `_next`, of a decode from the start of the file that can be continued."""
        self._next, self._strict = 0, True
        self._last: VideoFrame | None = None
        """The frame before `_next`; without `strict` it replaces those that are lost."""
        self._sent = _Sent()
        self._parameters: dict[PktSideDataT, PacketSideData] | None = None
        """Parameters provided with the first packet after opening, which a seek would lose; None: not read yet."""
        self.tally = Tally()
        self.colours: list[Colour | None] = []
        """For each seed of the last `read`: the colours of its frames; None for RGB."""
        self._open()

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the container. A file object that was passed in stays open."""
        self._onward = None
        self._container.close()

    def read(
        self,
        seeds: Sequence[Seed],
        resize: Resize,
        targets: Sequence[Target],
        *,
        strict: bool = True,
        motions: Sequence[Motion] = (),
    ) -> list[BadVideo | None]:
        """Fill the target of each seed, and with `motions` the motion of its frames (`motion.py`). Returns for each
        seed None or its error; an error affects no other seed.

        A seed with `seek` may be decoded from that keyframe; one without is decoded from the start of the file, or from
        where the previous read stopped. Frames after `last_frame` repeat that frame.

        `strict`: a seed fails if the decoder raises, flags one of its frames as corrupt, or the file ends early.
        Otherwise damaged packets are skipped, and the last shown frame replaces missing ones.
        """
        outcomes: list[BadVideo | None] = [None] * len(seeds)
        output = _Output(self._converter, resize, targets, motions, _gaps(seeds) if motions else {})
        self.colours = output.colours
        runs = _runs(seeds)
        if not isinstance(self._file, str):
            expect(self._file, [needed for run in runs if (needed := run.byte_range())])
        for run in runs:
            try:
                self._read_run(run, output, strict)
            except BadVideo as error:
                for want in run.wants[run.filled :]:
                    outcomes[want.seed] = error
            output.motion.end()
            self.tally.wanted += run.filled
            self.tally.shared += run.shared
        for motion in motions:
            repeated(motion)
        for seed in output.recoloured:
            outcomes[seed] = outcomes[seed] or BadVideo(
                "the frames of this clip change their matrix or range, so they have no colours in common; use "
                "clip.pixels: rgb for such videos"
            )
        return outcomes

    def frames(self, seek: Seek | None = None, *, strict: bool = True) -> Iterator[tuple[int, VideoFrame]]:
        """Yields frames with their indices, from the keyframe `seek` or the start of the file. Raises `BadVideo`."""
        if seek is not None and seek.frame_index > 0 and (shown := self.from_keyframe(seek, strict=strict)):
            yield from _numbered(shown, self._sent, seek.frame_index, seek.pts)
        else:
            yield from self._from_start(strict)

    def sound(self) -> Iterator[tuple[int, VideoFrame]]:
        """Yields the frames from the start of the file up to the first sign of damage, with their indices.

        The last packet before the damage may be incomplete, so it is not decoded. Frames that the decoder would show
        only because no more packets come are left out, because one before them may be missing.
        """
        packets = self._restarted()  # may open the file again
        yield from enumerate(_sound(packets, self._stream))

    def from_keyframe(self, seek: Seek, *, strict: bool = True) -> Iterator[VideoFrame] | None:
        """The keyframe and the frames shown after it; None if the file has no such keyframe there."""
        try:
            packets = self._packets_from(seek)
            if packets is None:
                return None
            shown = _decoded(packets, self._stream, strict, self._sent)
            keyframe = _skip_leading(seek.pts, shown)
        except (av.error.FFmpegError, BadVideo):
            return None
        return None if keyframe is None else chain([keyframe], shown)

    def selected(
        self, seek: Seek, wanted: Collection[int], shown: Shown | None = None
    ) -> Iterator[tuple[int, VideoFrame]]:
        """Yields the wanted frames from the keyframe `seek`, by timestamps. `shown` is called with each decoded frame.

        Ends early if the file contradicts the catalog.
        """
        try:
            packets = self._packets_from(seek)
            if packets is not None:
                yield from select(packets, self._stream, seek, self._lookahead, wanted, self.tally, shown)
        except (av.error.FFmpegError, BadVideo):
            return

    def _read_run(self, run: _Run, output: _Output, strict: bool) -> None:
        read = self._read_selected if self._declared is None else self._read_proving
        while self._lookahead and run.seek is not None:
            if read(run, run.seek, output):
                return
            self._distrust()
        if self._declared is not None:  # its keyframes are not proven, or contradicted by the file
            run.seek, run.filled = None, 0
            while self._described:
                self._distrust()
        self._read_counted(run, output, strict)

    def _read_selected(self, run: _Run, seek: Seek, output: _Output) -> bool:
        """Fill the wanted frames by timestamps. Returns False if some were not found; those that were found are
        filled."""
        wants = run.wants
        for number, frame in self.selected(seek, {want.frame for want in wants}, output.shown):
            if run.filled == len(wants):  # one comes twice, so two packets have its timestamp: all numbers are in doubt
                run.filled = 0
                return False
            if number != wants[run.filled].frame or frame.is_corrupt:
                return False
            run.fill(number, frame, output)
        return run.filled == len(wants)

    def _read_proving(self, run: _Run, seek: Seek, output: _Output) -> bool:
        """The same for a file whose order of frames is not proven: all frames from the keyframe to the last wanted one
        must come in order, with the declared size. Returns False otherwise."""
        wants, run.filled = run.wants, 0
        frames = range(seek.frame_index, wants[-1].frame + 1)
        for expected, (number, frame) in zip(frames, self.selected(seek, frames, output.shown), strict=False):
            if number != expected or frame.is_corrupt or _displayed(frame) != self._declared:
                return False
            if number == wants[run.filled].frame:
                run.fill(number, frame, output)
        return run.filled == len(wants)

    def _check_size(self, first: VideoFrame) -> None:
        """Raise `BadVideo` if the first frame of the file does not have the declared size, for which clips were made.

        Later frames may have another size: clips have the size of the first.
        """
        found, declared = _displayed(first), self._declared
        if declared is not None and found != declared:
            what = f"the file has frames of {found[0]}x{found[1]}, and its index declares {declared[0]}x{declared[1]}"
            raise BadVideo(f"{what}; build the catalog again, without --quick", "changed")

    def _distrust(self) -> None:
        """Reopen the file, and from now on rely on its keyframes only, not on timestamps.

        If no one has verified the timestamps, they get another chance with a decoder that knows how far frames are
        reordered, for which opening has to decode the first ones.
        """
        if self._declared is None or not self._described:
            self._lookahead = 0
        self._described = False
        self._container.close()
        self._open()

    def _read_counted(self, run: _Run, output: _Output, strict: bool) -> None:
        try:
            self._fill_counted(run, output, strict)
        except BaseException:
            self._onward = None
            raise

    def _fill_counted(self, run: _Run, output: _Output, strict: bool) -> None:
        wants = run.wants
        counted = self._counted(run, strict)
        last = self._last  # set where this read continues an earlier one
        for number, frame in counted:
            self.tally.decoded += 1
            self._next = number + 1
            if number == 0:
                self._check_size(frame)
            if output.shown is not None:
                output.shown(number, frame)
            if wants[run.filled].frame < number:
                run.fill_before(number, frame if last is None else last, output)
            self._last = last = frame
            if run.filled < len(wants) and number == wants[run.filled].frame:
                if strict and frame.is_corrupt:
                    raise BadVideo(f"frame {number} is damaged")
                run.fill(number, frame, output)
            if run.filled == len(wants):
                return
        self._onward = None
        if strict or last is None:
            raise BadVideo(f"the video ends before its frame {wants[run.filled].frame}", "truncated")
        run.fill_before(wants[-1].frame + 1, last, output)

    def _counted(self, run: _Run, strict: bool) -> Iterator[tuple[int, VideoFrame]]:
        """The frames from a keyframe or the start of the file; from the start, no frame is decoded twice if reads go
        forward."""
        if run.seek is not None:
            self._last = None
            return self.frames(run.seek, strict=strict)
        if self._onward is None or run.wants[0].frame < self._next or strict != self._strict:
            self._last = None
            self._onward, self._strict = self._from_start(strict), strict
        return self._onward

    def _open(self) -> None:
        """Open the file, again if it is closed. After a `BadVideo`, whatever needs the file tries again."""
        self._untouched, self._parameters, self._is_open = False, None, False
        try:
            self._container, self._stream = open_video(self._file, self._limits, described=self._described)
        except BadVideo:  # MPEG-TS and MPEG-PS have no header that describes their streams
            if not self._described:
                raise
            self._container, self._stream = open_video(self._file, self._limits)
        context = self._stream.codec_context
        if self._motion:
            if context.codec.canonical_name not in CODECS:
                raise BadVideo(
                    f"{context.codec.canonical_name} has no motion vectors; use flow for such videos", "format"
                )
            context.options = {**context.options, **EXPORT}
        if 0 < context.bits_per_coded_sample <= _PALETTE_BITS:
            self._lookahead = 0  # files with a palette are read with care, whatever the catalog says
        self._untouched, self._is_open = True, True

    def _from_start(self, strict: bool) -> Iterator[tuple[int, VideoFrame]]:
        packets = self._restarted()
        if self._declared is None:
            return _numbered(_decoded(packets, self._stream, strict, self._sent), self._sent)
        return self._in_order(packets, strict)

    def _in_order(self, packets: Iterator[Packet[VideoStream]], strict: bool) -> Iterator[tuple[int, VideoFrame]]:
        """Yields the decoded frames and their numbers. Raises `BadVideo` when the first one is not where the index of
        the file has it."""
        order = Order(packets, Seek(pts=_BEFORE_ALL), self._ahead)
        whole = chain((packet for packet, _ in order), [None])
        shown = _decoded(whole, self._stream, strict, self._sent)
        for number, frame in _numbered(shown, self._sent):
            if order.number(frame.pts) != number:
                raise BadVideo(
                    f"frame {number} of the file is not the one that its index has there; build the catalog again, "
                    "without --quick",
                    "changed",
                )
            yield number, frame

    def _restarted(self) -> Iterator[Packet[VideoStream]]:
        """The packets from the start of the file."""
        self._onward = None
        if not self._untouched:
            # Seeking to the start differs between formats; reopening does not.
            self._container.close()
            self._open()
        self._untouched = False
        return self._packets()

    def _packets_from(self, seek: Seek) -> Iterator[Packet[VideoStream]] | None:
        """The packet of the keyframe and those after it; None if the file has no such keyframe there."""
        if not self._is_open:
            self._open()
        if self._parameters is None:
            self._parameters = {} if self._lookahead else self._first_parameters()
        self._untouched = False
        self._onward = None
        container_format = self._container.format.name
        if container_format == _BY_OFFSET and seek.byte_offset:
            self._container.seek(seek.byte_offset, unsupported_byte_offset=True, stream=self._stream)
        else:
            early = _EARLY_S if container_format in _BY_DECODING_TIME else 0
            self._container.seek(seek.pts - int(early / (self._stream.time_base or 1)), stream=self._stream)
        packets = self._packets()
        keyframe = _keyframe(seek.pts, packets)
        if keyframe is None or not self._enterable(keyframe):
            return None
        for kind, data in self._parameters.items():
            if not keyframe.has_sidedata(kind):
                data.to_packet(cast(Any, keyframe))
        return chain([keyframe], packets)

    def _enterable(self, keyframe: Packet[VideoStream]) -> bool:
        """Whether decoding may begin at a keyframe: the catalog knows it, or else the codec's standard must say so."""
        if self._declared is None:
            return True
        context = self._stream.codec_context
        codec = context.codec.canonical_name
        if codec == "mjpeg" and not all(table in bytes(keyframe) for table in _JPEG_TABLES):
            return False
        return shows_one_frame(codec, memoryview(keyframe)) and self_contained(
            keyframe, codec, nal_length_bytes(context.extradata or b"", codec)
        )

    def _first_parameters(self) -> dict[PktSideDataT, PacketSideData]:
        """Decoder parameters that come only with the first packet, such as a palette."""
        if not self._untouched:
            self._container.close()
            self._open()
        first = next(self._packets(), None)
        if first is None:
            return {}
        return {kind: first.get_sidedata(kind) for kind in PARAMETERS if first.has_sidedata(kind)}

    def _packets(self) -> Iterator[Packet[VideoStream]]:
        try:
            yield from packets_without_profile(demuxed(self._container, self._stream), self._stream)
        except av.error.FFmpegError as error:
            raise BadVideo(f"the rest of the file cannot be read: {reason(error)}") from error


@dataclass(frozen=True, slots=True)
class _Want:
    """A wanted frame and its destination."""

    frame: int
    seed: int
    slot: int


class _Output:
    """The destination of frames, with their size and colours."""

    def __init__(
        self,
        converter: FrameConverter,
        resize: Resize,
        targets: Sequence[Target],
        motions: Sequence[Motion],
        gaps: Mapping[tuple[int, int], int],
    ) -> None:
        self._converter = converter
        self._motions = motions
        self._gaps = gaps
        self.motion = MotionOfRun()
        self.shown = self.motion.shown if motions else None
        self._resize = resize
        self._targets = targets
        self._written = [False] * len(targets)
        self.colours: list[Colour | None] = [None] * len(targets)
        self.recoloured: set[int] = set()
        """Seeds whose frames have different colours."""

    def convert(self, frame: VideoFrame, want: _Want) -> tuple[Target, Colour | None]:
        """Convert a frame to its destination. Returns the destination, and the frame's colour."""
        place = self._targets[want.seed][want.slot]
        self._add_motion(frame, want, place)
        colour = self._converter.write(frame, self._resize, place)
        self._note(want.seed, colour)
        return place, colour

    def copy(self, done: tuple[Target, Colour | None], frame: VideoFrame, want: _Want) -> bool:
        """Copy a converted frame to the destination of another want. Returns False if that has another shape."""
        place = self._targets[want.seed][want.slot]
        if done[0].shape != place.shape:
            return False
        self._add_motion(frame, want, place)
        place[...] = done[0]
        self._note(want.seed, done[1])
        return True

    def _add_motion(self, frame: VideoFrame, want: _Want, place: Target) -> None:
        if self._motions:
            output = (place.shape[0] * 2 // 3, place.shape[1]) if place.ndim == 2 else (place.shape[0], place.shape[1])
            gap, target = self._gaps[want.seed, want.slot], self._motions[want.seed][want.slot]
            self.motion.want(want.frame, frame, self._resize, output, gap, target)

    def _note(self, seed: int, colour: Colour | None) -> None:
        if not self._written[seed]:
            self._written[seed], self.colours[seed] = True, colour
        elif colour != self.colours[seed]:
            self.recoloured.add(seed)


@dataclass(slots=True)
class _Run:
    """Wanted frames, by index, that are read by decoding forward from one position."""

    seek: Seek | None
    wants: list[_Want] = field(default_factory=list)
    filled: int = 0
    """How many of `wants` are filled, counted from the first."""
    shared: int = 0
    """How many of those reused a frame that was converted for another one."""
    last_seek: Seek | None = None
    """The last keyframe before the snippet that ends last."""

    def byte_range(self) -> tuple[int, int] | None:
        """Estimated bytes [start, end) of the file that the run reads; None if the catalog does not say."""
        first, last = self.seek, self.last_seek
        if first is None or last is None or not (first.byte_offset and last.byte_offset < last.next_offset):
            return None
        frames = last.next_frame - last.frame_index
        reach = self.wants[-1].frame - last.frame_index + 1
        share = min(1.0, (reach + _KEYFRAME_WEIGHT) / (frames + _KEYFRAME_WEIGHT))
        return first.byte_offset, last.byte_offset + int(share * (last.next_offset - last.byte_offset))

    def fill(self, number: int, frame: VideoFrame, output: _Output) -> None:
        """Write frame `number` to each target that wants it: convert it once, and copy it to the others."""
        done: tuple[Target, Colour | None] | None = None
        while self.filled < len(self.wants) and (want := self.wants[self.filled]).frame == number:
            if done is not None and output.copy(done, frame, want):
                self.shared += 1
            else:
                done = output.convert(frame, want)
            self.filled += 1

    def fill_before(self, number: int, frame: VideoFrame, output: _Output) -> None:
        """Write `frame` to the targets that want one before `number`, which are lost."""
        while self.filled < len(self.wants) and (wanted := self.wants[self.filled].frame) < number:
            self.fill(wanted, frame, output)


def _displayed(frame: VideoFrame) -> tuple[int, int]:
    """Width and height as displayed."""
    return (frame.height, frame.width) if quarter_turns(frame) % 2 else (frame.width, frame.height)


def _runs(seeds: Sequence[Seed]) -> list[_Run]:
    """The seeds as forward runs. Each begins at the last keyframe before its first snippet."""
    runs: list[_Run] = []
    reached = -1  # index of the last frame that the current run decodes
    for wants, part in sorted(_snippets(seeds), key=lambda snippet: snippet[0][0].frame):
        seek = part.seek if part.HasField("seek") and part.seek.frame_index <= wants[0].frame else None
        if not runs or (seek is not None and seek.frame_index > reached):
            runs.append(_Run(seek))
        runs[-1].wants.extend(wants)
        if wants[-1].frame > reached:
            reached, runs[-1].last_seek = wants[-1].frame, seek
    for run in runs:
        run.wants.sort(key=lambda want: want.frame)
    return runs


def _snippets(seeds: Sequence[Seed]) -> Iterator[tuple[list[_Want], Seed | Snippet]]:
    """The wanted frames of each snippet of each seed, and where to begin for them."""
    for position, seed in enumerate(seeds):
        parts: tuple[Seed | Snippet, ...] = (seed, *seed.later)
        if seed.offsets:
            yield from _chosen(position, seed, parts)
            continue
        length = seed.frame_count // len(parts)
        for number, part in enumerate(parts if length else ()):
            frames = (min(part.first_frame + place * seed.stride, seed.last_frame) for place in range(length))
            yield [_Want(frame, position, slot) for slot, frame in enumerate(frames, number * length)], part


def _chosen(position: int, seed: Seed, parts: Sequence[Seed | Snippet]) -> Iterator[tuple[list[_Want], Seed | Snippet]]:
    """The wanted frames of the parts of a seed whose frames are chosen one by one."""
    slots = itertools.count()
    for part in parts:
        frames = (min(part.first_frame + offset, seed.last_frame) for offset in part.offsets)
        if wants := [_Want(frame, position, next(slots)) for frame in frames]:
            yield wants, part


def _gaps(seeds: Sequence[Seed]) -> dict[tuple[int, int], int]:
    """For each seed and slot, the frames of the video since the frame before it in its clip; for the first frame, up to
    the one after it. The first frame of a further snippet is of no use to a feature."""
    wants = [want for of_part, _ in _snippets(seeds) for want in of_part]
    gaps: dict[tuple[int, int], int] = {}
    for before, after in pairwise(wants):
        if before.seed == after.seed:
            gaps[after.seed, after.slot] = after.frame - before.frame
            gaps.setdefault((before.seed, before.slot), after.frame - before.frame)
    return {(want.seed, want.slot): gaps.get((want.seed, want.slot), 1) for want in wants}


def _keyframe(pts: int, packets: Iterator[Packet[VideoStream]]) -> Packet[VideoStream] | None:
    """Skip packets without decoding, up to the keyframe with this timestamp; None if it does not come.

    Most demuxers seek exactly to the keyframe, some to an earlier one, for example with edit lists and in ASF.
    """
    for packet in packets:
        if packet.pts == pts and packet.is_keyframe:
            return packet
        if packet.dts is not None and packet.dts > pts:  # nothing is shown before it is decoded
            return None
    return None


def _skip_leading(pts: int, shown: Iterator[VideoFrame]) -> VideoFrame | None:
    """Skip the leading frames and return the keyframe; None if the decoder does not show it."""
    for frame in shown:
        if frame.pts is None or frame.pts > pts:
            return None
        if frame.pts == pts:
            return frame
    return None


@dataclass(slots=True)
class _Sent:
    """The timestamps of packets whose frames are still to be shown, noted only without `strict`.

    After damage, decoders leave out frames, and not only those of packets that they reject: without its references none
    is shown up to the next keyframe. A frame that is left out keeps its number, for its packet was sent.
    """

    waiting: list[int] = field(default_factory=list)
    rejected: set[int] = field(default_factory=set)
    one_each: bool = True
    """Each packet shows one frame, as far as was seen before any damage: not so for fields in packets of their own."""

    def skipped(self, after: int, pts: int) -> int:
        """How many frames were left out between the frame shown before, at `after`, and the one at `pts`."""
        left = [one for one in self.waiting if after < one < pts]
        self.waiting = [one for one in self.waiting if one > pts]
        if left and not self.rejected:
            self.one_each = False
        return len(left) if self.one_each else len(self.rejected.intersection(left))


def _numbered(
    shown: Iterable[VideoFrame], sent: _Sent, first: int = 0, first_pts: int = _BEFORE_ALL
) -> Iterator[tuple[int, VideoFrame]]:
    """Number the frames from `first` on."""
    number, before = first, first_pts
    for frame in shown:
        if frame.pts is not None:
            if sent.rejected and frame.pts <= before:
                continue  # without its keyframe, a decoder shows some frames late
            if sent.waiting:
                number += sent.skipped(before, frame.pts)
            before = frame.pts
        yield number, frame
        number += 1


def _decoded(
    packets: Iterator[Packet[VideoStream] | None], stream: VideoStream, strict: bool, sent: _Sent
) -> Iterator[VideoFrame]:
    """Yields the decoded frames. None instead of a packet: no more come. Unless `strict`, packets that the decoder
    rejects are skipped, and packets are noted in `sent`."""
    sent.waiting, sent.rejected, sent.one_each = [], set(), True
    codec = stream.codec_context.codec.canonical_name
    while True:
        try:
            packet = next(packets)
        except StopIteration:
            return
        except BadVideo:
            if strict:
                raise
            return
        pts = None if strict or packet is None or packet.is_discard else packet.pts
        if pts is not None and packet is not None and shows_one_frame(codec, memoryview(packet)):
            sent.waiting.append(pts)
        try:
            frames = stream.decode(packet)
        except av.error.FFmpegError as error:
            if strict:
                raise BadVideo(f"the decoder fails: {reason(error)}") from error
            if pts is not None:
                sent.rejected.add(pts)
                sent.waiting += [] if pts in sent.waiting else [pts]  # damaged, it may look like one without a frame
            continue
        yield from frames


def _sound(packets: Iterator[Packet[VideoStream]], stream: VideoStream) -> Iterator[VideoFrame]:
    """Yields the decoded frames up to the first sign of damage."""
    held: Packet[VideoStream] | None = None
    try:
        for packet in packets:
            if not packet.size:  # PyAV's end marker
                return
            for frame in stream.decode(held) if held is not None else ():
                if frame.is_corrupt:
                    return
                yield frame
            if packet.is_corrupt:
                return
            held = packet
    except (av.error.FFmpegError, BadVideo):
        return
