"""Plans: a pure function of the job, balanced over classes, the same in any shape."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, repeat
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp_common.catalog.catalog import Catalog
from essp_common.catalog.rows import VideoRow
from essp_common.counter_rng import WORDS, CounterRng, below
from essp_common.errors import ConfigError
from essp_common.job.clip_spec import ClipSpec
from essp_common.job.data_spec import SamplingSpec
from essp_common.pb.v1.messages_pb2 import TEST, TRAIN, VALIDATION, Seek
from essp_engine.planning.class_balanced import ClassBalanced
from essp_engine.planning.even import Dense, RoundRobin, Uniform
from essp_engine.planning.exhaustive import Exhaustive
from essp_engine.planning.plan import empty_classes, plan_of, seek_to
from essp_engine.planning.planned_clip import Plan, PlannedClip
from essp_engine.planning.pooled import Pooled
from tests.harness.plans import chi_square, row, view_of

T = TypeVar("T")

MASK = (1 << 64) - 1
PINNED = [(0, 2, 41), (2, 5, 0), (0, 0, 27), (0, 2, 40), (0, 0, 30), (1, 3, 17)]
PINNED_REPLACEMENT = (0, 1, 31)
SEEKABLE = VideoRow("v", "u", "a", "train", 1, "e", seekable=True)


def philox(key: tuple[int, int], counter: tuple[int, int, int, int]) -> list[int]:
    """Philox 4x64-10 straight from the paper, to compare with."""
    (k0, k1), (c0, c1, c2, c3) = key, counter
    for _ in range(10):
        p0, p1 = 0xD2E7470EE14C6C93 * c0, 0xCA5A826395121157 * c2
        c0, c1, c2, c3 = (p1 >> 64) ^ c1 ^ k0, p1 & MASK, (p0 >> 64) ^ c3 ^ k1, p0 & MASK
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & MASK, (k1 + 0xBB67AE8584CAA73B) & MASK
    return [c0, c1, c2, c3]


def first_words(words: Iterator[int], count: int) -> list[int]:
    return [next(words) for _ in range(count)]


def test_reference_gives_the_published_answer() -> None:
    """The known answer of Random123 for key and counter 0."""
    expected = [0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B]
    assert philox((0, 0), (0, 0, 0, 0)) == expected


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**40), st.integers(0, 2**62), st.integers(0, 20))
def test_words_are_philox_at_key_and_counter(seed: int, stream: int, index: int, attempt: int) -> None:
    words = first_words(CounterRng(seed, stream).words(index, attempt), 3 * WORDS)
    expected = [philox((seed, stream), (index + 1, attempt, redraw, 0)) for redraw in range(3)]
    assert words == [word for block in expected for word in block]


def test_bounded_integers_refuse_the_words_that_would_bias_them() -> None:
    """2**64 = 1 (mod 3): one word in 2**64 has to be refused, and it is 0."""
    assert below(iter([0, MASK]), 3) == 2
    assert below(iter([1]), 3) == 0
    assert below(iter([0]), 4) == 0, "a power of two refuses nothing"


@given(st.integers(1, 2**63), st.integers(0, MASK))
def test_bounded_integers_stay_in_bounds(bound: int, word: int) -> None:
    assert 0 <= below(chain([word], repeat(MASK)), bound) < bound


def test_the_order_of_existing_jobs_never_changes() -> None:
    """Whoever changes these numbers changes the result of every job that was run before."""
    view = view_of({"a": [50, 60, 70], "b": [80], "c": [90, 9]})
    clip = ClipSpec(frames=8, stride=2)
    plan = ClassBalanced(view, clip, 1000, seed=42, purpose=TRAIN, epoch=3)
    found = [(c.class_id, c.video, c.first_frame) for c in map(plan.clip, (0, 1, 2, 63, 64, 999))]
    assert found == PINNED
    again = plan.clip(0, attempt=2)
    assert (again.class_id, again.video, again.first_frame) == PINNED_REPLACEMENT


def test_classes_are_drawn_evenly_however_many_videos_they_have() -> None:
    """Chi-square with 9 degrees of freedom stays below 27.9 (p = 0.001); the draw is fixed, so this never flickers."""
    view = view_of({f"c{n}": [100] * (1 + 7 * n) for n in range(10)})
    plan = ClassBalanced(view, ClipSpec(), 20_000, seed=7, purpose=TRAIN, epoch=0)
    counts = Counter(plan.clip(i).class_id for i in range(len(plan)))
    assert chi_square(counts, range(10), len(plan)) < 27.9


def test_videos_and_offsets_are_drawn_evenly() -> None:
    view = view_of({"a": [20] * 10})
    plan = ClassBalanced(view, ClipSpec(frames=11), 20_000, seed=1, purpose=TRAIN, epoch=0)
    clips = [plan.clip(i) for i in range(len(plan))]
    assert chi_square(Counter(c.video for c in clips), range(10), len(plan)) < 27.9
    assert chi_square(Counter(c.first_frame for c in clips), range(10), len(plan)) < 27.9
    pairs = Counter((c.video, c.first_frame) for c in clips)
    assert chi_square(pairs, [(v, f) for v in range(10) for f in range(10)], len(plan)) < 148.2, (
        "99 degrees: independent"
    )


def test_replacements_are_drawn_evenly_and_apart_from_their_offset() -> None:
    view = view_of({"a": [20] * 11})
    plan = ClassBalanced(view, ClipSpec(frames=11), 20_000, seed=1, purpose=TRAIN, epoch=0)
    clips = [(plan.clip(i), plan.clip(i, 1)) for i in range(len(plan))]
    steps = Counter(((second.video - first.video) % 11, second.first_frame) for first, second in clips)
    assert chi_square(steps, [(v, f) for v in range(1, 11) for f in range(10)], len(plan)) < 148.2


@given(st.integers(0, 2**63 - 1), st.integers(0, 5), st.randoms(use_true_random=False))
def test_clips_do_not_depend_on_who_asks_or_in_which_order(seed: int, epoch: int, shuffler: random.Random) -> None:
    """Four workers with plans of their own, asking in any order, see what one sees that goes through in order."""
    view = view_of({"a": [30] * 5, "b": [40] * 3})
    clip = ClipSpec(frames=4)
    alone = ClassBalanced(view, clip, 200, seed, TRAIN, epoch)
    expected = [alone.clip(i) for i in range(200)]
    workers = [ClassBalanced(view, clip, 200, seed, TRAIN, epoch) for _ in range(4)]
    order = list(range(200))
    shuffler.shuffle(order)
    found = {index: workers[place % 4].clip(index) for place, index in enumerate(order)}
    assert [found[i] for i in range(200)] == expected


def test_the_order_of_the_catalogs_rows_makes_no_difference() -> None:
    rows = [row(f"{c}/{n}", 50 + n) for c in "abc" for n in range(5)]
    forth, back = (Catalog(tuple(r)).view("train") for r in (rows, rows[::-1]))
    plans = [ClassBalanced(view, ClipSpec(), 50, 3, TRAIN, 0) for view in (forth, back)]
    assert [plans[0].clip(i) for i in range(50)] == [plans[1].clip(i) for i in range(50)]
    assert [r.id for r in forth.rows] == [r.id for r in back.rows]


def test_epochs_purposes_and_seeds_differ() -> None:
    view = view_of({"a": [100] * 50, "b": [100] * 50})
    cases = [(0, TRAIN, 0), (0, TRAIN, 1), (0, VALIDATION, 0), (1, TRAIN, 0), (2**63 - 1, TRAIN, 2**32 - 1)]
    orders = {
        tuple(ClassBalanced(view, ClipSpec(), 30, seed, purpose, epoch).clip(i).video for i in range(30))
        for seed, purpose, epoch in cases
    }
    assert len(orders) == len(cases)


def test_any_index_costs_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words made for one clip of a plan of 10**15: as many at its end as at its beginning."""
    made: list[int] = []
    real = CounterRng._generate

    def counting(self: CounterRng, index: int, attempt: int, redraw: int, indices: int) -> list[int]:
        made.append(indices * WORDS)
        return real(self, index, attempt, redraw, indices)

    monkeypatch.setattr(CounterRng, "_generate", counting)
    costs = []
    for index in (0, 10**15 - 1):
        made.clear()
        ClassBalanced(view_of({"a": [99] * 9}), ClipSpec(), 10**15, 0, TRAIN, 0).clip(index)
        costs.append(sum(made))
    assert costs[0] == costs[1] <= 64 * WORDS


lengths = st.dictionaries(st.sampled_from("abcdef"), st.lists(st.integers(1, 60), min_size=1, max_size=5), min_size=1)
clip_specs = st.builds(ClipSpec, frames=st.integers(1, 20), stride=st.integers(1, 4))


@given(lengths, clip_specs, st.integers(0, 2**32), st.integers(1, 4))
def test_every_clip_fits_its_video(counts: dict[str, list[int]], clip: ClipSpec, seed: int, per_video: int) -> None:
    """Clips lie within their video; one that is shorter than a clip starts at its first frame."""
    view = view_of(counts)
    span = (clip.frames - 1) * clip.stride + 1
    plans = [
        ClassBalanced(view, clip, 40, seed, TRAIN, 0),
        Uniform(view, clip, per_video),
        RoundRobin(view, clip, per_video, 40, epoch=2),
    ]
    for planned in (plan.clip(i) for plan in plans for i in range(len(plan))):
        video = view.rows[planned.video]
        assert planned.class_id == view.class_id[planned.video]
        assert (planned.frame_count, planned.stride) == (clip.frames, clip.stride)
        if video.frame_count < span:
            assert planned.first_frame == 0
        else:
            assert 0 <= planned.first_frame <= video.frame_count - span


@given(st.integers(0, 500), st.integers(1, 30), st.integers(0, 99))
def test_clips_stay_within_their_segment(first: int, frames: int, seed: int) -> None:
    view = Catalog((row("a/x#1", frames, first),)).view("train")
    for plan in (ClassBalanced(view, ClipSpec(frames=10), 20, seed, TRAIN, 0), Uniform(view, ClipSpec(frames=10), 3)):
        starts = [plan.clip(i).first_frame for i in range(len(plan))]
        assert min(starts) >= first
        assert max(starts) <= max(first, first + frames - 10)


@given(lengths, st.integers(0, 2**32), st.integers(0, 39))
def test_replacements_are_other_videos_of_the_class(all_lengths: dict[str, list[int]], seed: int, index: int) -> None:
    """Each video of the class comes once, then there is none left."""
    view = view_of(all_lengths)
    plan = ClassBalanced(view, ClipSpec(frames=2), 40, seed, TRAIN, 0)
    class_id = plan.clip(index).class_id
    count = len(view.by_class[class_id])
    tried = [plan.clip(index, attempt) for attempt in range(count)]
    assert sorted(c.video for c in tried) == sorted(view.by_class[class_id].tolist())
    assert [c.attempt for c in tried] == list(range(count))
    with pytest.raises(LookupError, match="no other video"):
        plan.clip(index, count)


def test_evaluation_has_no_replacements() -> None:
    with pytest.raises(LookupError):
        Uniform(view_of({"a": [20, 20]}), ClipSpec(), 2).clip(0, attempt=1)


def test_uniform_takes_the_middle_of_even_segments_in_time_order() -> None:
    view = view_of({"a": [100], "b": [11, 5]})
    plan = Uniform(view, ClipSpec(frames=11), 3)
    found = [(plan.clip(i).video, plan.clip(i).first_frame) for i in range(len(plan))]
    assert found == [(0, 15), (0, 45), (0, 75), (1, 0), (1, 0), (1, 0), (2, 0), (2, 0), (2, 0)]


def test_round_robin_goes_on_in_the_next_epoch() -> None:
    view = view_of({"a": [100, 100], "b": [100]})
    clips = [
        plan.clip(i) for epoch in range(3) for plan in [RoundRobin(view, ClipSpec(), 2, 2, epoch)] for i in range(2)
    ]
    assert [c.video for c in clips] == [0, 1, 2, 0, 1, 2]
    assert [c.first_frame for c in clips] == [22, 22, 22, 67, 67, 67]


def test_indices_outside_the_plan_are_refused() -> None:
    view, clip = view_of({"a": [20]}), ClipSpec()
    plans = [
        ClassBalanced(view, clip, 5, 0, TRAIN, 0),
        Pooled(view, clip, 5, 0, TRAIN, 0, 2, 4),
        Exhaustive(view, clip, 5, 0, TRAIN, 0, 1, 2, 4),
        Dense(view, clip, 0.1),
        RoundRobin(view, clip, 2, 5, 0),
    ]
    for plan in plans:
        for index in (-1, len(plan)):
            with pytest.raises(IndexError):
                plan.clip(index)


def test_classes_without_usable_videos_are_left_out_and_named() -> None:
    rows = (row("a/1"), row("b/1", error="damaged: no"), row("c/1"))
    view = Catalog(rows).view("train")
    plan = ClassBalanced(view, ClipSpec(), 50, 0, TRAIN, 0)
    assert {plan.clip(i).class_id for i in range(50)} == {0, 2}
    assert empty_classes(view) == ("b",)


def test_nothing_to_draw_from_is_said_plainly() -> None:
    with pytest.raises(ConfigError, match="no usable video"):
        ClassBalanced(Catalog(()).view("train"), ClipSpec(), 1, 0, TRAIN, 0)


@given(st.integers(1, 40), st.integers(0, 150), st.integers(0, 150), st.integers(0, 2**32))
def test_locality_moves_clips_only_within_their_window(window: int, start: int, stop: int, seed: int) -> None:
    view = view_of({"a": [50] * 3, "b": [50] * 2})
    near = ClassBalanced(view, ClipSpec(), 150, seed, TRAIN, 0, locality=window)
    far = ClassBalanced(view, ClipSpec(), 150, seed, TRAIN, 0)
    issued = [clip for unit in near.units(start, stop) for clip in unit]
    assert sorted(issued, key=lambda clip: clip.index) == [far.clip(i) for i in range(start, stop)]
    windows = [clip.index // window for clip in issued]
    assert windows == sorted(windows), "a window is issued before the next"
    units = [(unit[0].index // window, unit[0].video) for unit in near.units(start, stop)]
    assert len(units) == len(set(units)), "one unit for each video of a window"
    assert all(len({clip.video for clip in unit}) == 1 for unit in near.units(start, stop))


def test_batches_are_as_mixed_with_locality_as_without() -> None:
    """What is decoded together is not trained together: consumers take clips in index order."""
    videos, window, batch = 60, 256, 16
    view = view_of({"a": [100] * (videos // 2), "b": [100] * (videos // 2)})
    near = ClassBalanced(view, ClipSpec(), 20 * window, 3, TRAIN, 0, locality=window)
    issued = [clip for unit in near.units(0, len(near)) for clip in unit]
    trained = sorted(issued, key=lambda clip: clip.index)
    assert _repeats(issued, 1) > 0.7, "seeds of a video are issued one after the other"
    # Of draws that know nothing of each other, one in `videos` repeats the one before, whatever the distance, and
    # a batch holds videos * (1 - (1 - 1 / videos) ** batch) of them.
    deviation = (1 / videos / len(trained)) ** 0.5
    for distance in (1, 2, 4, 8, batch, window):
        assert abs(_repeats(trained, distance) - 1 / videos) < 4 * deviation
    distinct = [len({clip.video for clip in trained[i : i + batch]}) for i in range(0, len(trained), batch)]
    expected = videos * (1 - (1 - 1 / videos) ** batch)
    assert abs(np.mean(distinct) - expected) < 4 * np.std(distinct) / len(distinct) ** 0.5
    assert abs(_autocorrelation(trained, 1)) < 4 / len(trained) ** 0.5 < _autocorrelation(issued, 1)


def _repeats(clips: list[PlannedClip], distance: int) -> float:
    """The share of clips that are of the same video as the one so many before."""
    pairs = list(zip(clips, clips[distance:], strict=False))
    return sum(a.video == b.video for a, b in pairs) / len(pairs)


def _autocorrelation(clips: list[PlannedClip], distance: int) -> float:
    """Of the numbers of the videos."""
    numbers = np.array([clip.video for clip in clips], float)
    return float(np.corrcoef(numbers[:-distance], numbers[distance:])[0, 1])


def test_units_without_locality_are_runs_of_one_video_in_index_order() -> None:
    plan = Uniform(view_of({"a": [100, 100]}), ClipSpec(), 3)
    assert [[c.index for c in unit] for unit in plan.units(1, 6)] == [[1, 2], [3, 4, 5]]


def test_a_job_gets_the_plan_its_sampling_says() -> None:
    view = view_of({"a": [100, 100], "b": [100]})
    drawn, walked = SamplingSpec(seed=5, clips_per_epoch=7), SamplingSpec(kind="uniform")
    training = plan_of(view, ClipSpec(), drawn, TRAIN, 1)
    assert clips(training) == clips(ClassBalanced(view, ClipSpec(), 7, 5, TRAIN, 1))
    assert clips(plan_of(view, ClipSpec(), walked, TRAIN, 1)) == clips(RoundRobin(view, ClipSpec(), 3, 3, 1))
    assert clips(plan_of(view, ClipSpec(), drawn, TEST, 0)) == clips(Uniform(view, ClipSpec(), 3))


def clips(plan: Plan) -> list[PlannedClip]:
    return [plan.clip(i) for i in range(len(plan))]


@pytest.mark.parametrize(("frame", "expected"), [(0, 0), (11, 0), (12, 1), (99, 2)])
def test_decoding_begins_at_the_last_keyframe_before_the_clip(frame: int, expected: int) -> None:
    video = replace(SEEKABLE, keyframe_pts=(-5, 60, 120), keyframe_frame=(0, 12, 24), keyframe_offset=(-1, 900, 1800))
    seek = Seek()
    assert seek_to(video, frame, seek)
    assert seek.frame_index == (0, 12, 24)[expected]
    assert seek.pts == (-5, 60, 120)[expected]
    assert seek.byte_offset == (0, 900, 1800)[expected]


def test_decoding_begins_at_the_start_where_no_keyframe_will_do() -> None:
    video = replace(SEEKABLE, keyframe_pts=(60,), keyframe_frame=(12,), keyframe_offset=(0,))
    seek = Seek()
    assert not seek_to(video, 11, seek)
    assert not seek_to(replace(video, seekable=False), 50, seek)
    assert seek == Seek()


def test_views_number_classes_alike_in_every_split() -> None:
    rows = (row("a/1"), VideoRow("b/1", "u", "b", "test", 1, "e", frame_count=9, last_frame=8))
    catalog = Catalog(rows)
    assert catalog.view("train").classes == catalog.view("test").classes == ("a", "b")
    assert catalog.view("test").class_id.tolist() == [1]
    assert [videos.tolist() for videos in catalog.view("test").by_class] == [[], [0]]
    assert np.array_equal(catalog.view(None).length, [100, 9])
