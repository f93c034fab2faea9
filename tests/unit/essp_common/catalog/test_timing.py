"""Seconds and frames of a video: what is cut is what is on the screen then."""

from __future__ import annotations

import tracemalloc
import zlib
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp_common.catalog.rows import VideoRow
from essp_common.catalog.timing import Timing, unpack
from essp_common.errors import ConfigError
from essp_engine.video.clock import measure, pack

MS = Fraction(1, 1000)

stamps = st.lists(st.integers(0, 5000), min_size=2, max_size=60).map(lambda steps: np.cumsum(steps).tolist())
regular = st.builds(
    lambda first, step, count: [first + step * frame for frame in range(count)],
    st.integers(0, 5000),
    st.integers(2, 5000),
    st.integers(2, 60),
)
"""Of a constant rate, from any time on."""


def video(pts: list[int], last: int = 40, declared: float = 25.0, time_base: Fraction = MS) -> VideoRow:
    times = measure(pts, time_base, declared, last, 0.0)
    return VideoRow(
        "v",
        "u",
        "",
        "",
        1,
        "e",
        fps=times.fps,
        duration_s=times.duration_s,
        start_s=times.start_s,
        timestamps=pack(times.stamps) if times.stamps else b"",
        time_base=(time_base.numerator, time_base.denominator),
        frame_count=len(pts),
    )


@pytest.mark.parametrize("count", [0, 1, 2])
def test_timestamps_that_would_fill_the_memory_are_not_unpacked(count: int) -> None:
    bomb = zlib.compress(bytes(2**24))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=f"do not describe {count} frames"):
            unpack(bomb, count)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@given(stamps)
def test_packed_timestamps_come_back(pts: list[int]) -> None:
    assert unpack(pack(pts), len(pts)).tolist() == [stamp - pts[0] for stamp in pts]


@given(st.binary(max_size=40), st.integers(1, 9))
def test_damaged_timestamps_are_refused(data: bytes, count: int) -> None:
    with pytest.raises(ValueError, match="they"):
        unpack(data, count)
    with pytest.raises(ConfigError, match=r"timestamps of v: .*; build the catalog again"):
        Timing(VideoRow("v", "u", "", "", 1, "e", fps=1.0, timestamps=data or b"x", frame_count=count)).shown_s(0)


def test_timestamps_of_more_frames_than_there_are_do_not_fill_the_memory() -> None:
    with pytest.raises(ValueError, match="not describe 5 frames"):
        unpack(pack(range(2_000_000)), 5)


@given(stamps | regular, st.data())
def test_frames_are_those_on_the_screen(pts: list[int], data: st.DataObject) -> None:
    row = video(pts)
    timing = Timing(row)
    shown = [timing.shown_s(frame) for frame in range(len(pts) + 1)]
    if row.timestamps:
        assert shown[:-1] == pytest.approx([stamp / 1000 for stamp in pts])
    assert shown[-1] == pytest.approx(shown[0] + row.duration_s)
    start_s = data.draw(st.floats(0, shown[-1] + 1))
    end_s = data.draw(st.floats(start_s, shown[-1] + 2))
    frames = timing.frames(start_s, end_s)
    if start_s >= shown[-1]:
        assert not frames
        return
    assert len(frames) >= 1
    edges = (shown[frames[0]], shown[frames[-1] + 1])
    if len(frames) > 1:
        assert abs(edges[0] - start_s) == pytest.approx(min(abs(edge - start_s) for edge in shown))
        assert abs(edges[1] - end_s) == pytest.approx(min(abs(edge - end_s) for edge in shown))


@pytest.mark.parametrize("fps", [10.0, 23.976, 25.0, 30000 / 1001, 59.94, 240.0])
@pytest.mark.parametrize("declared", [1000.0, 0.0, None])
def test_a_constant_rate_is_found_behind_a_clock_of_milliseconds(fps: float, declared: float | None) -> None:
    pts = [round(1000 * frame / fps) for frame in range(500)]
    times = measure(pts, MS, fps if declared is None else declared, 0, 0.0)
    assert times.stamps == ()
    assert times.fps == (fps if declared is None else pytest.approx(fps, rel=1e-3))
    assert times.duration_s == pytest.approx(500 / fps, rel=1e-3)


def test_a_dropped_frame_makes_a_rate_variable() -> None:
    pts = [frame + (frame >= 250) for frame in range(500)]
    assert measure(pts, Fraction(1, 25), 25.0, 1, 0.0).stamps == tuple(pts)
    assert measure([40 * stamp for stamp in pts], MS, 25.0, 40, 0.0).stamps


def test_a_mean_rate_is_over_the_whole_length_with_the_last_frame() -> None:
    times = measure([0, 100, 200, 5200], MS, 1000.0, 800, 0.0)
    assert times.duration_s == pytest.approx(6.0)
    assert times.fps == pytest.approx(4 / 6)


@pytest.mark.parametrize("pts", [[None, 1, 2], [0, 2, 1], [7], [3, 3, 3]])
def test_without_usable_timestamps_the_declared_rate_counts(pts: list[int | None]) -> None:
    assert measure(pts, MS, 25.0, 0, 0.0).duration_s == pytest.approx(len(pts) / 25)


def test_seconds_count_from_the_beginning_of_the_file() -> None:
    """Its sound may begin before its pictures, and its clock anywhere."""
    times = measure([91500, 91540, 91580], MS, 25.0, 40, 91.0)
    assert times.start_s == pytest.approx(0.5)
    assert measure([0, 40, 80], MS, 25.0, 40, -0.02).start_s == 0.0


@pytest.mark.parametrize("last", [40, 80], ids=["constant", "variable"])
def test_segments_of_a_video_that_begins_late_count_from_the_beginning_of_the_file(last: int) -> None:
    pts = [500 + 40 * frame for frame in range(49)]
    row = video([*pts, pts[-1] + last])
    assert bool(row.timestamps) is (last == 80)
    timing = Timing(row)
    assert timing.frames(0.9, 1.5) == range(10, 25)
    assert timing.frames(0.0, 0.7) == range(5)
    assert timing.frames(0.905, 0.91) == range(10, 11), "too short to hold a change: what is shown then"
