"""Clips by time show what a player shows: at each moment, the last frame that has appeared."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from essp_common.catalog.catalog import Catalog
from essp_common.catalog.rows import VideoRow
from essp_common.catalog.timed import TimedFrames, offsets_of, places_of
from essp_common.catalog.timing import EARLY_S, unpack
from essp_common.job.clip_spec import ClipSpec
from essp_engine.video.clock import measure, pack
from tests.harness.refused import refused

SLACK = Fraction(EARLY_S)
TICK = Fraction(1, 1000)

steady = st.builds(lambda step, count: list(range(0, step * count, step)), st.integers(2, 100), st.integers(2, 60))
varying = st.lists(st.integers(1, 300), min_size=1, max_size=60).map(lambda steps: [0, *np.cumsum(steps).tolist()])
rates = st.sampled_from([0.5, 1, 4, 7.5, 12, 23.976, 24, 30, 60, 100]).flatmap(
    lambda fps: st.sampled_from([{"fps": fps}, {"every_s": 1 / fps}])
)
parts = st.sampled_from([(0.0, 1.0), (0.25, 0.75), (0.5, 0.6)])


def video(pts: list[int], last: int = 40, name: str = "v") -> VideoRow:
    times = measure(pts, TICK, 25.0, last, 0.0)
    return VideoRow(
        name, f"file:///{name}", "c", "train", 1, "e",
        fps=times.fps, duration_s=times.duration_s, start_s=times.start_s,
        timestamps=pack(times.stamps) if times.stamps else b"", time_base=(1, 1000), frame_count=len(pts),
        last_frame=len(pts) - 1, width=8, height=8,
    )  # fmt: skip


videos = st.builds(video, steady | varying, st.integers(1, 100))


@st.composite
def segments(draw: st.DrawFn) -> VideoRow:
    row = draw(videos)
    first = draw(st.integers(0, row.last_frame))
    return replace(row, first_frame=first, last_frame=draw(st.integers(first, row.last_frame)))


def edges(row: VideoRow) -> list[Fraction]:
    """When each frame appears, and the end of the file, from its beginning."""
    if not row.timestamps:
        return [number / Fraction(row.fps) for number in range(row.frame_count + 1)]
    shown = [Fraction(tick) * TICK for tick in unpack(row.timestamps, row.frame_count).tolist()]
    return [*shown, max(Fraction(row.duration_s), shown[-1])]


def shown(row: VideoRow, moment: Fraction, end: int) -> int:
    """The last frame that has appeared at a moment, up to `end`."""
    return max(n for n, appears in enumerate(edges(row)[: end + 1]) if n == 0 or appears <= moment + SLACK)


def frames(row: VideoRow, clip: ClipSpec, first: int) -> list[int]:
    return [min(first + offset, row.last_frame) for offset in offsets_of(row, clip, first)]


def spread(row: VideoRow, count: int, first: int, end: int) -> list[int]:
    times = edges(row)
    gap = (times[end] - times[first]) / (count - 1)
    return [shown(row, times[first] + k * gap, end) for k in range(count)]


def spec(**clip: Any) -> ClipSpec:
    return ClipSpec.model_validate(clip)


@given(segments(), rates, st.integers(1, 20), st.data())
def test_each_moment_shows_the_last_frame_that_has_appeared(
    row: VideoRow, rate: dict[str, float], count: int, data: st.DataObject
) -> None:
    clip = spec(frames=count, **rate)
    first = data.draw(st.integers(row.first_frame, row.last_frame))
    begin, period = edges(row)[first], Fraction(clip.period_s or 0)
    assert frames(row, clip, first) == [shown(row, begin + k * period, row.last_frame) for k in range(count)]


@given(st.integers(2, 100), st.integers(2, 40))
def test_a_steady_video_is_spread_as_by_linspace(length: int, count: int) -> None:
    row = video(list(range(0, 40 * length, 40)))
    wanted = [k * (length - 1) // (count - 1) for k in range(count)]
    assert frames(row, spec(frames=count, spread="video"), 0) == wanted
    assert (wanted[0], wanted[-1]) == (0, length - 1)


@given(segments(), st.integers(2, 20), parts)
def test_frames_are_spread_over_the_time_of_the_whole_video(
    row: VideoRow, count: int, part: tuple[float, float]
) -> None:
    clip = spec(frames=count, spread="video", part=part)
    first, places = places_of(row, clip)
    length = row.last_frame - row.first_frame + 1
    end = row.first_frame + int(np.ceil(length * part[1])) - 1
    assert (first, places) == (row.first_frame + int(np.floor(length * part[0])), 1)
    assert frames(row, clip, first) == spread(row, count, first, end)


@given(segments(), rates, st.integers(2, 20))
def test_a_whole_video_comes_at_its_rate_or_spread_where_it_is_longer(
    row: VideoRow, rate: dict[str, float], most: int
) -> None:
    clip = spec(max_frames=most, **rate)
    period, times = Fraction(clip.period_s or 0), edges(row)
    begin, length = times[row.first_frame], times[row.last_frame + 1] - times[row.first_frame]
    if abs(length - most * period) < 2 * SLACK:
        return
    if length > most * period:
        wanted = spread(row, most, row.first_frame, row.last_frame)
    else:
        wanted = [shown(row, begin + k * period, row.last_frame) for k in range(most)]
    assert places_of(row, clip) == (row.first_frame, 1)
    assert frames(row, clip, row.first_frame) == wanted


@given(segments(), rates, st.integers(1, 20), parts)
def test_clips_fit_at_every_place_and_nowhere_else(
    row: VideoRow, rate: dict[str, float], count: int, part: tuple[float, float]
) -> None:
    clip = spec(frames=count, part=part, **rate)
    times, reach = edges(row), (count - 1) * Fraction(clip.period_s or 0)
    length = row.last_frame - row.first_frame + 1
    begin = row.first_frame + int(np.floor(length * part[0]))
    end = row.first_frame + int(np.ceil(length * part[1]))
    fitting = [first for first in range(begin, end) if times[first] + reach + SLACK < times[end]]
    first, places = places_of(row, clip)
    if fitting:
        assert list(range(first, first + places)) == fitting
    else:
        assert places == 1
        assert row.first_frame <= first <= row.last_frame
        if part == (0.0, 1.0):
            assert first == row.first_frame


@settings(max_examples=30)
@given(st.lists(segments(), min_size=1, max_size=6), rates, st.booleans(), parts)
def test_a_table_of_videos_gives_what_each_video_gives(
    rows: list[VideoRow], rate: dict[str, float], whole: bool, part: tuple[float, float]
) -> None:
    rows = [replace(row, id=f"{number}", uri=f"file:///{number}") for number, row in enumerate(rows)]
    clip = spec(part=part, **({"max_frames": 8} if whole else {"frames": 8}), **rate)
    timed = TimedFrames(Catalog(tuple(rows)).view("train").rows, clip)
    firsts, counts = timed.places
    for number, row in enumerate(rows):
        first, count = places_of(row, clip)
        assert (firsts[number], counts[number]) == (first, count)
        for begin in {first, first + count - 1}:
            wanted = [min(begin + offset, row.last_frame) for offset in offsets_of(row, clip, begin)]
            found = [min(begin + offset, row.last_frame) for offset in timed.offsets(number, begin)]
            assert found == wanted
            appear = [float(edges(row)[frame]) + row.start_s for frame in wanted]
            assert timed.times_s(number, begin) == pytest.approx(appear)


@pytest.mark.parametrize("clip", [{"fps": 4}, {"seconds": 2.0}, {"every_s": 0.25}])
def test_videos_of_any_rate_cover_the_same_time(clip: dict[str, float]) -> None:
    rows = [
        replace(video([0, 1]), fps=fps, frame_count=round(10 * fps), last_frame=round(10 * fps) - 1, duration_s=10.0)
        for fps in (24.0, 30000 / 1001, 30.0, 60.0)
    ]
    for row in rows:
        times = np.array(frames(row, spec(frames=8, **clip), 0)) / row.fps
        wanted = np.arange(8) / 4
        assert (times <= wanted + EARLY_S).all()
        assert (times > wanted - 1 / row.fps).all()


def test_snippets_each_last_so_many_seconds() -> None:
    row = video(list(range(0, 4000, 40)))
    assert offsets_of(row, spec(frames=8, snippets=2, seconds=1.0), 0) == (0, 6, 12, 18)


def test_a_frame_appears_at_the_time_that_ffprobe_prints() -> None:
    row = replace(video([0, 1]), fps=30.0, frame_count=90, last_frame=89, duration_s=3.0)
    assert offsets_of(row, spec(frames=3, every_s=0.033333), 0) == (0, 1, 2)
    assert offsets_of(row, spec(frames=10, fps=30), 0) == tuple(range(10))


@pytest.mark.parametrize("clip", [{"fps": 4}, {"seconds": 2.0}, {"every_s": 0.25}, {"every_s": 1, "max_frames": 8}])
def test_videos_without_times_are_refused(clip: dict[str, float]) -> None:
    known, unknown = video([0, 40, 80], name="known"), replace(video([0, 40], name="unknown"), fps=0.0)
    with refused(f"clip.{next(iter(clip))}", "unsupported") as caught:
        TimedFrames(Catalog((known, unknown)).view("train").rows, spec(**clip))
    assert "unknown" in str(caught.value)
    with refused(f"clip.{next(iter(clip))}", "unsupported"):
        offsets_of(unknown, spec(**clip), 0)


def test_they_can_be_spread_by_their_number() -> None:
    row = replace(video([0, 1]), fps=0.0, frame_count=9, last_frame=8)
    assert offsets_of(row, spec(frames=3, spread="video"), 0) == (0, 4, 8)
