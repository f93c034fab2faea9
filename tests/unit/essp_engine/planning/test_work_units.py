"""How clips are divided into work units and messages: nothing is lost, and what shares frames stays together."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp_common.catalog.rows import VideoRow
from essp_engine.planning.planned_clip import PlannedClip
from essp_engine.planning.work_units import PIECE_PIXELS, is_divisible, pieces, units_of
from tests.harness.plans import row

LENGTH = 4000
SIDE = 512  # 256 frames are a piece


def video(gop: int, length: int = LENGTH, side: int = SIDE) -> VideoRow:
    keyframes = tuple(range(0, length, gop))
    return replace(
        row("a/long", length), height=side, width=side, seekable=True, keyframe_frame=keyframes,
        keyframe_pts=keyframes, keyframe_offset=keyframes,
    )  # fmt: skip


def clips(starts: list[int], frames: int = 8, stride: int = 4) -> list[PlannedClip]:
    return [PlannedClip(index, 0, 0, 0, start, frames, stride) for index, start in enumerate(starts)]


def span(of: VideoRow, clip: PlannedClip) -> range:
    """The frames that are decoded for a clip by itself."""
    begin = max(frame for frame in of.keyframe_frame if frame <= clip.first_frame)
    return range(begin, min(clip.first_frame + (clip.frame_count - 1) * clip.stride, of.last_frame) + 1)


PLACES = st.lists(st.integers(0, LENGTH - 1), min_size=1, max_size=60)


@given(PLACES, st.integers(1, 40), st.booleans())
def test_units_hold_each_clip_once_in_rising_order(starts: list[int], most: int, together: bool) -> None:
    planned = clips(starts)
    units = list(units_of(planned, most, together))
    assert sorted(clip for unit in units for clip in unit) == planned
    assert all(0 < len(unit) <= most and list(unit) == sorted(unit) for unit in units)
    assert max(map(len, units)) - min(map(len, units)) <= 1
    assert [unit[0] for unit in units] == sorted(unit[0] for unit in units)
    if not together:
        assert [clip for unit in units for clip in unit] == planned


@given(PLACES, st.integers(1, 40))
def test_units_of_a_window_lie_side_by_side_in_the_video(starts: list[int], most: int) -> None:
    """So a group of pictures is in two of them at most where it has no more clips than a unit."""
    if len(starts) <= most:
        return
    units = [sorted(clip.first_frame for clip in unit) for unit in units_of(clips(starts), most, together=True)]
    units.sort()
    assert all(before[-1] <= after[0] for before, after in pairwise(units))


@given(PLACES, st.sampled_from([1, 12, 60, 250, 1000, LENGTH]))
def test_messages_hold_each_clip_once_and_share_no_frame(starts: list[int], gop: int) -> None:
    of, planned = video(gop), clips(starts)
    made = pieces(of, planned)
    assert sorted(clip for _, piece in made for clip in piece) == planned
    decoded = [{frame for clip in piece for frame in span(of, clip)} for _, piece in made]
    assert all(one.isdisjoint(other) for one, other in combinations(decoded, 2)), "each frame is decoded once"
    least = PIECE_PIXELS // SIDE**2
    assert len(made) == 1 or all(len(frames) >= least for frames in decoded)
    assert [piece[0] for _, piece in made] == sorted(piece[0] for _, piece in made)
    if len(made) > 1:
        assert len({number for number, _ in made}) == len(made), "they may go to different decoders"


def test_clips_far_apart_in_a_long_video_go_to_many_decoders() -> None:
    """As far as each message has enough to decode: 258 frames the one, 129 + 79 + 79 the other."""
    made = pieces(video(gop=250), clips([3800, 200, 1100, 250, 2300]))
    assert [[clip.first_frame for clip in piece] for _, piece in made] == [[3800, 1100, 2300], [200, 250]]
    assert [number for number, _ in made] == [3, 0]


@pytest.mark.parametrize("starts", [[0, 100, 240], [0, 240, 480]])
def test_clips_that_share_a_group_of_pictures_stay_together(starts: list[int]) -> None:
    assert len(pieces(video(gop=250), clips(starts))) == 1


def test_a_clip_alone_goes_where_its_part_of_the_video_is_read() -> None:
    of = video(gop=50)
    numbers = [pieces(of, clips([start]))[0][0] for start in range(0, LENGTH, 10)]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) == 16
    assert len({pieces(video(50, 90_000), clips([start]))[0][0] for start in range(0, 90_000, 25)}) == 64


@pytest.mark.parametrize(
    ("of", "divisible"),
    [
        (video(60), True),
        (video(60, length=300, side=400), False),  # ten seconds
        (video(60, length=300, side=1440), True),  # ten seconds of a large picture
        (replace(video(60), seekable=False), False),  # decoded from its start, which two would do twice
    ],
)
def test_only_long_videos_are_divided(of: VideoRow, divisible: bool) -> None:
    assert is_divisible(of.seekable, of.frame_count, of.height, of.width) is divisible
