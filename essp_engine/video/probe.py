"""Finds and checks the facts of a video for its catalog row.

A file is decoded completely if it is small, if its packets cannot be trusted (`packets.orderly`), or with `verify`.
`frame_count` is then the number of decoded frames. `seekable` means that decoding from each keyframe gave the same
frames again, bit for bit, through the code that reads seeds.

For any other file, all packets are read, and two groups of pictures go through the same comparison: one in the middle
and the last one. A large file whose packets cannot be trusted is decoded once; the comparison then covers only some
groups, and all groups not known to be independent of earlier data.

`lookahead` is checked in the same groups. Every third frame is read by its timestamp, with as few other frames decoded
as possible (`selection.py`). Only if these frames are identical does the file get a `lookahead`.

All other files raise `BadVideo`, whose kind says what is wrong. Some files crash FFmpeg, so run the probe in a process
that may die.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice, pairwise
from typing import Literal

import av
from av.video.frame import VideoFrame

from essp_common.catalog.notes import SALVAGED
from essp_common.errors import BadVideo
from essp_common.pb.v1.messages_pb2 import Seek
from essp_engine.video.clock import measure, pack
from essp_engine.video.container import Limits, VideoFile, check_complete, open_video
from essp_engine.video.conversion import quarter_turns
from essp_engine.video.digest import digest
from essp_engine.video.notes import Pictures, of_container
from essp_engine.video.packets import Keyframe, Packets, orderly, scan
from essp_engine.video.reader import Reader
from essp_engine.video.selection import lookahead

_FARTHEST = 32
"""Largest `lookahead`. No encoder reorders over more pictures; x264 and x265 use at most 16."""
SALVAGEABLE = ("truncated", "damaged")
"""Kinds of errors that may leave a part of the file intact."""
HOPELESS = "not one frame of it can be used"
"""Part of the error for a file from which nothing can be salvaged."""
HELD_BYTES = 2**29
"""Decoded frames that are held at once while a group of pictures is compared: 170 frames of full HD. A keyframe may
be minutes from the next."""
WHOLE_PIXELS = 100_000_000
"""Files with at most this many pixels in all their frames are decoded completely: about half a second of one core."""


@dataclass(frozen=True, slots=True)
class VideoFacts:
    """The facts of a video, with the field names of `catalog.rows.VideoRow`."""

    container: str
    codec: str
    pixel_format: str
    width: int
    height: int
    rotation: int
    fps: float
    duration_s: float
    start_s: float
    timestamps: bytes
    time_base: tuple[int, int]
    frame_count: int
    seekable: bool
    lookahead: int
    keyframe_pts: tuple[int, ...]
    keyframe_frame: tuple[int, ...]
    keyframe_offset: tuple[int, ...]
    notes: str = ""
    unproven: str = ""


@dataclass(frozen=True, slots=True)
class _Header:
    """What a container declares for its video track."""

    container: str
    codec: str
    pixels: int
    """Pixels of a frame."""
    rate: float
    time_base: Fraction
    begin_s: float
    """When the file begins, on its clock."""
    encrypted: bool
    notes: list[str]


@dataclass(frozen=True, slots=True)
class _Index:
    """The number of frames, and the keyframes with their frame indices (`places`)."""

    frame_count: int
    first: VideoFrame
    keyframes: tuple[Keyframe, ...]
    places: tuple[int, ...]
    seekable: bool
    lookahead: int
    stamps: Sequence[int | None]
    """Timestamps of the frames in display order."""
    pictures: Pictures
    """Properties of all frames, or of those that were decoded."""


def probe(file: VideoFile, *, limits: Limits | None = None, verify: bool = False, timed: bool = False) -> VideoFacts:
    """The facts of a video file. `verify`: decode it completely, whatever its size. `timed`: keep the timestamps of the
    frames even if their rate is constant. Raises `BadVideo`."""
    limits = limits or Limits()
    header, packets = _scanned(file, limits, check=True)
    everywhere = verify or header.pixels * len(packets) <= WHOLE_PIXELS
    index = None
    try:
        if not everywhere and orderly(packets, header.container, header.codec):
            index = _sampled(file, packets, limits)
        index = index or _whole(file, packets, limits, everywhere)
    except BadVideo as error:
        if header.encrypted:
            raise BadVideo(
                "the video is encrypted; decrypt it first, with the key of its owner", "encrypted"
            ) from error
        raise
    return _facts(header, packets, index, timed=timed)


def salvage(file: VideoFile, *, limits: Limits | None = None) -> VideoFacts:
    """The facts of a video file; for a truncated or damaged file, of the frames before the damage.

    `notes` then mentions it. Raises `BadVideo` for all other errors, and if no frame is intact.
    """
    limits = limits or Limits()
    try:
        return probe(file, limits=limits)
    except BadVideo as error:
        if error.kind not in SALVAGEABLE:
            raise
        problem = error
    try:
        header, packets = _scanned(file, limits, check=False)
        index = _whole(file, packets, limits, everywhere=True, sound_part=True)
    except BadVideo as error:
        kind: Literal["truncated", "damaged"] = "truncated" if problem.kind == "truncated" else "damaged"
        raise BadVideo(f"{problem}; {HOPELESS}", kind) from error
    note = f"{SALVAGED}: of a file that is {problem.kind}, the first {index.frame_count} frames are used: {problem}"
    return _facts(replace(header, notes=[note, *header.notes]), packets, index)


def tolerant(file: VideoFile, *, limits: Limits | None = None, timed: bool = False) -> VideoFacts:
    """The facts of a video file; of a truncated or damaged one, what its packets show, for a reader without `strict`.

    Each packet that the container still finds then counts as one frame, also where it cannot be decoded. (Indexed files
    keep their packets; damaged Matroska and MPEG-TS lose some.) Raises `BadVideo` for all other errors, and if no frame
    can be decoded.
    """
    limits = limits or Limits()
    try:
        return probe(file, limits=limits, timed=timed)
    except BadVideo as error:
        if error.kind not in SALVAGEABLE:
            raise
        problem = error
    header, packets = _scanned(file, limits, check=False)
    with Reader(file, limits) as reader:
        first = next((frame for _, frame in reader.frames(strict=False)), None)
    if first is None:
        raise BadVideo(f"{problem}; {HOPELESS}", problem.kind) from problem
    stamps = packets.shown
    known = sorted(stamp for stamp in stamps if stamp is not None)
    pictures = Pictures()
    index = _Index(len(stamps), first, (), (), False, 0, known if len(known) == len(stamps) else stamps, pictures)
    return _facts(header, packets, index, timed=timed)


def _scanned(file: VideoFile, limits: Limits, *, check: bool) -> tuple[_Header, Packets]:
    """The container's declarations, and the packets of the file. `check`: verify that the file is complete."""
    container, stream = open_video(file, limits)
    with container:
        packets = scan(container, stream, limits, check=check)
        context = stream.codec_context
        if not packets:
            raise BadVideo("no frame in the file", "empty")
        if check:
            check_complete(file, stream, len(packets))
        return _Header(
            container.format.name.split(",")[0],
            context.codec.canonical_name,
            context.width * context.height,
            float(stream.average_rate or stream.guessed_rate or 0),
            stream.time_base or Fraction(0),
            (container.start_time or 0) / av.time_base,
            packets.encrypted or "enc_key_id" in stream.metadata,  # for WebM
            of_container(container, stream),
        ), packets


def _facts(header: _Header, packets: Packets, index: _Index, *, timed: bool = False) -> VideoFacts:
    last_duration = packets.last_duration if index.frame_count == len(packets.shown) else 0
    times = measure(index.stamps, header.time_base, header.rate, last_duration, header.begin_s, packets.dts)
    stamps = times.stamps
    if timed and times.fps > 0 and not stamps and None not in index.stamps:
        known = [stamp for stamp in index.stamps if stamp is not None]
        stamps = tuple(known) if all(a <= b for a, b in pairwise(known)) else ()
    first = index.first
    turns = quarter_turns(first)
    width, height = (first.height, first.width) if turns % 2 else (first.width, first.height)
    return VideoFacts(
        container=header.container,
        codec=header.codec,
        pixel_format=first.format.name,
        width=width,
        height=height,
        rotation=(-90 * turns) % 360,
        fps=times.fps,
        duration_s=times.duration_s,
        start_s=times.start_s,
        timestamps=pack(stamps) if stamps else b"",
        time_base=(header.time_base.numerator, header.time_base.denominator),
        frame_count=index.frame_count,
        seekable=index.seekable,
        lookahead=index.lookahead,
        keyframe_pts=tuple(keyframe.pts for keyframe in index.keyframes),
        keyframe_frame=index.places,
        keyframe_offset=tuple(keyframe.offset for keyframe in index.keyframes),
        notes="\n".join([*header.notes, *index.pictures.notes()]),
    )


def _whole(file: VideoFile, packets: Packets, limits: Limits, everywhere: bool, *, sound_part: bool = False) -> _Index:
    """Decode the file completely, then again from keyframes, and compare.

    `everywhere`: from each keyframe. Otherwise only from those that the codec's standard does not make independent of
    earlier data, and from three more: the second, one in the middle, and the last.

    `sound_part`: decode up to the first damage. Frames are then counted, because reading ahead would meet the damage.
    """
    stamps: list[int | None] = []
    digests: list[int] = []
    pictures = Pictures()
    with Reader(file, limits) as reader:
        for number, frame in reader.sound() if sound_part else reader.frames():
            if frame.is_corrupt:
                raise BadVideo(f"frame {number} of the file is damaged")
            stamps.append(frame.pts)
            digests.append(digest(frame))
            pictures.take(frame)
            if len(stamps) > limits.frames:
                raise BadVideo(f"more than {limits.frames} frames", "limit")
        if not stamps:
            raise BadVideo("the decoder gives no frame", "empty")
        # decoded again, because no frame may be held while decoding
        first = next(frame for _, frame in reader.frames())
    shown, places = places_of(stamps, packets.keyframes)
    tried = set(range(len(shown))) if everywhere else _doubtful(shown)
    ends = (*places[1:], len(stamps))
    compared = [start for number, start in enumerate(zip(shown, places, ends, strict=False)) if number in tried]
    seekable = bool(shown) and not packets.changes and _repeats(file, limits, compared, digests)
    if not seekable:
        return _Index(len(stamps), first, (), (), seekable=False, lookahead=0, stamps=stamps, pictures=pictures)
    numbered = (everywhere or packets.own_stamps) and not sound_part
    ahead = needed_lookahead(packets) if numbered and sorted(packets.shown, key=_or_first) == stamps else 0
    if ahead:
        with Reader(file, limits, lookahead=ahead) as reader:
            if not all(_selects(reader, k, place, digests[place:end]) for k, place, end in reversed(compared)):
                ahead = 0
    return _Index(len(stamps), first, shown, places, seekable=True, lookahead=ahead, stamps=stamps, pictures=pictures)


def _doubtful(keyframes: Sequence[Keyframe]) -> set[int]:
    """Numbers of the keyframes to try in a large file."""
    last = len(keyframes) - 1
    return {number for number, k in enumerate(keyframes) if not k.self_contained} | {0, min(1, last), last // 2, last}


def needed_lookahead(packets: Packets) -> int:
    """The `lookahead` that the packets need; 0 if it is larger than `_FARTHEST`, or if packets carry parameters,
    because packets that are read but not decoded would take them along."""
    ahead = lookahead([stamp for stamp in packets.shown if stamp is not None]) if not packets.parameters else 0
    return ahead if ahead <= _FARTHEST else 0


def _or_first(stamp: int | None) -> int:
    return -(1 << 63) if stamp is None else stamp


def _selects(reader: Reader, keyframe: Keyframe, place: int, digests: Sequence[int]) -> bool:
    """Whether every third frame after a keyframe, read by its timestamp, is identical."""
    wanted = range(place + min(2, len(digests) - 1), place + len(digests), 3)
    found = reader.selected(Seek(pts=keyframe.pts, frame_index=place), wanted)
    return [(number, digest(frame)) for number, frame in found] == [(n, digests[n - place]) for n in wanted]


def places_of(
    stamps: Sequence[int | None], keyframes: Sequence[Keyframe]
) -> tuple[tuple[Keyframe, ...], tuple[int, ...]]:
    """The keyframes that are shown, and their frame indices; both empty if timestamps do not increase with each frame,
    or two keyframes have the same one."""
    rising = [stamp for stamp in stamps if stamp is not None]
    if len(rising) != len(stamps) or any(b <= a for a, b in pairwise(rising)):
        return (), ()
    place = {stamp: number for number, stamp in enumerate(rising)}
    shown = tuple(sorted((k for k in keyframes if k.pts in place), key=lambda keyframe: keyframe.pts))
    if any(b.pts == a.pts for a, b in pairwise(shown)):
        return (), ()
    return shown, tuple(place[keyframe.pts] for keyframe in shown)


def _repeats(
    file: VideoFile, limits: Limits, starts: Sequence[tuple[Keyframe, int, int]], digests: Sequence[int]
) -> bool:
    """Whether each of these groups of pictures, decoded from its keyframe, gives the same frames as decoding from the
    start. `starts`: keyframe, first frame and end of each.

    Groups are decoded last to first, by a decoder that has not seen the start of the file. Some decoders need data that
    exists only there (such as the version of x264 that wrote a 4:4:4 file) and give other frames without it.

    The frames of a group are held, up to `HELD_BYTES`. In a damaged file a decoder may show memory that it never
    wrote: old pictures in the first decode, and zeros or much older pictures here, so that the digests differ.
    """
    with Reader(file, limits) as reader:
        for keyframe, place, end in reversed(starts):
            if not place:
                continue
            again = reader.from_keyframe(Seek(pts=keyframe.pts, frame_index=place))
            if again is None:
                return False
            if _digests_of_held(islice(again, end - place)) != list(digests[place:end]):
                return False
    return True


def _digests_of_held(frames: Iterable[VideoFrame]) -> list[int]:
    """Compute the digest of each frame. The newest frames stay in memory, up to `HELD_BYTES`."""
    found: list[int] = []
    held, held_bytes = deque[VideoFrame](), 0
    for frame in frames:
        found.append(digest(frame))
        held.append(frame)
        held_bytes += _bytes_of(frame)
        while held_bytes > HELD_BYTES:
            held_bytes -= _bytes_of(held.popleft())
    return found


def _bytes_of(frame: VideoFrame) -> int:
    return sum(plane.buffer_size for plane in frame.planes)


def _sampled(file: VideoFile, packets: Packets, limits: Limits) -> _Index | None:
    """The index according to the packets; None if the middle or the last group of pictures contradicts it."""
    stamps = sorted(stamp for stamp in packets.pts if stamp is not None)
    keyframes, places = places_of(stamps, packets.keyframes)
    if len(keyframes) < 2:
        return None
    ahead = needed_lookahead(packets)
    pictures = Pictures()
    with (
        Reader(file, limits) as reader,
        Reader(file, limits) as fresh,
        Reader(file, limits, lookahead=ahead) as selecting,
    ):
        first = next(frame for _, frame in reader.frames())
        pictures.take(first)
        for sample in sorted({len(keyframes) // 2, len(keyframes) - 1}, reverse=True):
            end = places[sample + 1] if sample + 1 < len(keyframes) else len(stamps)
            digests = _bears_out(reader, fresh, keyframes, places, sample, stamps[:end], pictures)
            if digests is None:
                return None
            if ahead and not _selects(selecting, keyframes[sample], places[sample], digests):
                ahead = 0
    if len(pictures.sizes) > 1:
        return None
    return _Index(
        len(stamps), first, keyframes, places, seekable=True, lookahead=ahead, stamps=stamps, pictures=pictures
    )


def _bears_out(
    reader: Reader,
    fresh: Reader,
    keyframes: Sequence[Keyframe],
    places: Sequence[int],
    sample: int,
    stamps: Sequence[int],
    pictures: Pictures,
) -> list[int] | None:
    """Digests of the frames from keyframe number `sample` to the end of `stamps`; None if a check fails.

    The frames must have the timestamps of the packets. A decoder that has not seen the start of the file must give the
    same frames as one that has seen it and begins one keyframe earlier.
    """
    before, place = places[sample - 1], places[sample]
    longer = reader.from_keyframe(Seek(pts=keyframes[sample - 1].pts, frame_index=before))
    if longer is None:
        return None
    expected = [(frame.pts, digest(frame)) for frame in islice(longer, place - before, len(stamps) - before)]
    shorter = fresh.from_keyframe(Seek(pts=keyframes[sample].pts, frame_index=place))
    if shorter is None:
        return None
    found = []
    for frame in islice(shorter, len(stamps) - place):
        found.append((frame.pts, digest(frame)))
        pictures.take(frame)
    if found != expected or [stamp for stamp, _ in found] != list(stamps[place:]):
        return None
    return [frame for _, frame in found]
