"""Divides the clips of one video into work units, and a work unit of a long video into messages.

A decoder reads the clips of a message in one pass, group of pictures (GOP) by group of pictures, and skips GOPs that no
clip needs. So clips that share a GOP belong together, and clips that do not may be read by two decoders at once. Two
rules follow from that.

- A work unit has a limited number of clips. Clips that are issued together anyway (within a window) are divided by
  their place in the video, not by their indices: then each of its GOPs is in one unit, or in two at the boundary of
  units.
- The clips of a unit form *runs*, between which the reader seeks. Runs of a long video become separate messages, each
  with enough to decode that the cost of another message, and of opening the file again, is negligible.

Neither rule changes the clip at an index, nor the ledger's accounting: a unit is issued as one, and reported clip by
clip.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

from essp_common.catalog.rows import VideoRow
from essp_engine.planning.planned_clip import PlannedClip

PIECE_PIXELS = 1 << 26
"""The minimum that a message of a divided unit decodes: 290 frames of 640x360, 32 of 1920x1080, about 0.2 s. Another
message costs 0.4 ms, and opening the file 0.5 ms."""
_LONG_PIXELS = 4 * PIECE_PIXELS
"""Shorter videos are read by one decoder, which has them open."""
_MOST_PARTS = 64
"""The maximum number of parts of a video. Opening the file means reading an index of all its frames, 3 ms for 45,000,
so each message should decode a fair share of them."""

LEAST_SKIPPED = 8
"""Frames that have to be skipped for a seek within a clip to be worth its cost."""


def units_of(clips: Sequence[PlannedClip], most: int, together: bool) -> Iterator[Sequence[PlannedClip]]:
    """Divide clips of one video (or one file of records), with ascending indices, into as few work units of at most
    `most` clips as possible, of about equal size; indices also ascend within each unit.

    `together`: all of them are in one window, and may be issued in any order.
    """
    if len(clips) <= most:
        yield clips
        return
    ordered = sorted(clips, key=_place) if together else clips
    count = -(-len(clips) // most)
    edges = [len(clips) * number // count for number in range(count + 1)]
    parts = [sorted(ordered[first:end]) for first, end in pairwise(edges)]
    yield from sorted(parts)  # units with the earliest clips come first


def is_divisible(seekable: bool, frame_count: int, height: int, width: int) -> bool:
    """Whether several decoders may read a video at once, and it is long enough to benefit."""
    return seekable and frame_count * height * width >= _LONG_PIXELS


def pieces(row: VideoRow, clips: Sequence[PlannedClip]) -> list[tuple[int, list[PlannedClip]]]:
    """The clips of a work unit of a divisible video, grouped by message, each with a number. Clips that are close in
    the video tend to have the same number, even across messages."""
    if clips[0].later:  # its snippets are spread over the whole video
        return [(0, list(clips))]
    least = max(-(-PIECE_PIXELS // (row.height * row.width)), -(-row.frame_count // _MOST_PARTS))
    found: list[tuple[int, list[PlannedClip]]] = []
    frames = least
    for begin, end, run in _runs(row, clips):
        if frames >= least:
            found.append((begin // least, []))
            frames = 0
        found[-1][1].extend(run)
        frames += end - begin
    if len(found) > 1 and frames < least:
        _, rest = found.pop()
        found[-1][1].extend(rest)
    for _, piece in found:
        piece.sort()
    return sorted(found, key=lambda piece: piece[1][0])


def parts_of(frames: Sequence[int], keyframes: Sequence[int], begin: int, end: int) -> list[list[int]]:
    """Ascending frames of a clip, divided into parts that are decoded from a keyframe each. `begin`, `end`: the range
    of the video's keyframes in `keyframes`.

    Frames chosen by time may be far apart, and then the groups of pictures between them need not be decoded.
    """
    parts = [[frames[0]]]
    for frame in frames[1:]:
        last = parts[-1][-1]
        if frame - last > LEAST_SKIPPED:
            place = bisect_right(keyframes, frame, begin, end) - 1
            if place >= begin and worth_a_seek(last, keyframes[place]):
                parts.append([])
        parts[-1].append(frame)
    return parts


@lru_cache(maxsize=4096)
def widest_step(offsets: tuple[int, ...]) -> int:
    """The most frames from one of the frames of a clip to the next."""
    return max((b - a for a, b in pairwise(offsets)), default=0)


def worth_a_seek(last: int, keyframe: int) -> bool:
    """Whether a clip continues at this keyframe after its frame `last`, instead of being decoded up to it."""
    return keyframe - last > LEAST_SKIPPED


def _runs(row: VideoRow, clips: Sequence[PlannedClip]) -> Iterator[tuple[int, int, list[PlannedClip]]]:
    """Clips that are read by decoding forward from one keyframe, and the frames [begin, end) decoded for them."""
    keyframes = row.keyframe_frame
    run: list[PlannedClip] = []
    begin = reached = 0
    for clip in sorted(clips, key=_place):
        place = bisect_right(keyframes, clip.first_frame) - 1
        keyframe = keyframes[place] if place >= 0 else 0
        if run and keyframe >= reached:
            yield begin, reached, run
            run = []
        if not run:
            begin = keyframe
        run.append(clip)
        last = min(clip.first_frame + clip.reach, row.last_frame)
        reached = max(reached, last + 1)
    yield begin, reached, run


def _place(clip: PlannedClip) -> tuple[int, int, int]:
    return clip.video, clip.first_frame, clip.index  # the rows of records ascend in the order of their file
