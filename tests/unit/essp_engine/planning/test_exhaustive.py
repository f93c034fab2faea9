"""The exhaustive plan: every place once a pass, whoever asks, in an order that shares decodes."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp_common.catalog.catalog import Catalog
from essp_common.catalog.view import CatalogView
from essp_common.counter_rng import CounterRng
from essp_common.job.clip_spec import ClipSpec
from essp_common.job.data_spec import SamplingSpec
from essp_common.pb.v1.messages_pb2 import TRAIN
from essp_engine.planning.decode_cost import decode_cost
from essp_engine.planning.exhaustive import Exhaustive
from essp_engine.planning.permutation import Permutation
from essp_engine.planning.plan import plan_of
from essp_engine.planning.planned_clip import Plan, PlannedClip
from tests.harness.plans import chi_square, row, view_of
from tests.harness.refused import Refusal, refused

CLIP = ClipSpec(frames=4, stride=2)
SPAN = 7
seeds = st.integers(0, 2**63 - 1)
sets = st.lists(st.integers(1, 60), min_size=1, max_size=8)
"""Lengths of videos, some of them shorter than a clip."""


def plan(
    view: CatalogView,
    per_visit: int,
    visits: int,
    seed: int = 0,
    epoch: int = 0,
    step: int = 1,
    size: int | None = None,
) -> Plan:
    """A window holds so many visits."""
    return Exhaustive(view, CLIP, size, seed, TRAIN, epoch, step, per_visit, per_visit * visits)


def clips_of(made: Plan) -> list[PlannedClip]:
    return [made.clip(index) for index in range(len(made))]


def places(view: CatalogView, step: int = 1) -> Counter[tuple[int, int]]:
    """Each place of each video once."""
    found: Counter[tuple[int, int]] = Counter()
    for video, each in enumerate(view.rows):
        last = max(0, each.last_frame - each.first_frame + 1 - SPAN)
        found.update((video, each.first_frame + min(place, last)) for place in range(0, last + step, step))
    return found


def shown(clips: list[PlannedClip]) -> Counter[tuple[int, int]]:
    return Counter((clip.video, clip.first_frame) for clip in clips)


@given(seeds, sets, st.integers(1, 9), st.integers(1, 9), st.integers(1, 20), st.integers(0, 5))
def test_an_epoch_shows_every_place_once(
    seed: int, lengths: list[int], per_visit: int, visits: int, step: int, epoch: int
) -> None:
    view = view_of({"a": lengths, "b": [30]})
    made = plan(view, per_visit, visits, seed, epoch, step)
    expected = places(view, step)
    assert set(expected.values()) == {1}
    assert shown(clips_of(made)) == expected
    assert len(made) == len(expected)


@given(seeds, st.integers(1, 6), st.integers(1, 6), st.integers(1, 60))
def test_shorter_or_longer_epochs_go_on_where_the_one_before_stopped(
    seed: int, per_visit: int, visits: int, size: int
) -> None:
    view = view_of({"a": [9, 15], "b": [5]})
    expected = places(view)
    assert len(expected) == 13
    epochs = -(-13 * 3 // size)
    clips = [
        clip for epoch in range(epochs) for clip in clips_of(plan(view, per_visit, visits, seed, epoch, size=size))
    ]
    times = shown(clips)
    assert set(times) == set(expected)
    assert max(times.values()) - min(times.values()) <= 1, "a place comes again when all have come"
    assert sum(times.values()) == epochs * size


@given(st.integers(0, 60), st.integers(7, 60))
def test_frames_are_all_in_some_clip_where_steps_are_no_longer_than_clips(first: int, length: int) -> None:
    view = Catalog((row("a/x", length, first),)).view(None)
    clip = ClipSpec(frames=5)
    made = Exhaustive(view, clip, None, 0, TRAIN, 0, 5, 2, 8)
    seen = {frame for one in clips_of(made) for frame in range(one.first_frame, one.first_frame + 5)}
    assert seen == set(range(first, first + length))


@given(seeds, st.randoms(use_true_random=False), st.integers(1, 6), st.integers(1, 12))
def test_clips_do_not_depend_on_who_asks_or_in_which_order(
    seed: int, shuffler: random.Random, per_visit: int, visits: int
) -> None:
    view = view_of({"a": [25] * 5})
    expected = clips_of(plan(view, per_visit, visits, seed))
    workers = [plan(view, per_visit, visits, seed) for _ in range(3)]
    order = list(range(len(expected)))
    shuffler.shuffle(order)
    found = {index: workers[place % 3].clip(index) for place, index in enumerate(order)}
    assert [found[index] for index in range(len(expected))] == expected
    resumed = plan(view, per_visit, visits, seed).units(70, len(expected))
    assert sorted(clip for unit in resumed for clip in unit) == expected[70:]
    assert [clip.index for clip in expected] == list(range(len(expected)))
    with pytest.raises(LookupError, match="none stands in for another"):
        workers[0].clip(0, 1)


@given(seeds, st.integers(2, 8), st.integers(2, 20))
def test_places_of_a_visit_are_neighbours_and_their_clips_far_apart(seed: int, per_visit: int, visits: int) -> None:
    """In whole windows; there, two visits in a row of a video are not told apart from a longer one: look at places."""
    made = plan(view_of({"a": [1000 * per_visit]}), per_visit, visits, seed)
    window = [made.clip(index) for index in range(per_visit * visits)]
    starts = sorted((clip.first_frame, clip.index) for clip in window)
    runs = 1 + sum(b[0] - a[0] != 1 for a, b in pairwise(starts))
    assert runs <= visits
    near = [abs(a[1] - b[1]) for a, b in pairwise(starts) if b[0] - a[0] == 1]
    assert sum(distance >= visits / 2 for distance in near) >= (per_visit - 1) * visits


@given(seeds, sets, st.integers(1, 9), st.integers(1, 9), st.integers(0, 3))
def test_the_visits_of_a_video_follow_one_another_from_its_first_place_on(
    seed: int, lengths: list[int], per_visit: int, visits: int, epoch: int
) -> None:
    view = view_of({"a": lengths})
    made = plan(view, per_visit, visits, seed, epoch)
    windows = {(clip.video, clip.first_frame): clip.index // (per_visit * visits) for clip in clips_of(made)}
    for video, each in enumerate(view.rows):
        count = sum(1 for place, _ in windows if place == video)
        for begin in range(each.first_frame, each.first_frame + count // per_visit * per_visit, per_visit):
            assert len({windows[video, place] for place in range(begin, begin + per_visit)}) == 1


def test_visits_of_an_epoch_come_in_an_order_of_their_own() -> None:
    view = view_of({"a": [200] * 50})
    made = [plan(view, 8, 4, epoch=epoch) for epoch in range(3)]
    orders = [tuple(each.clip(index).video for index in range(32)) for each in made]
    assert len(set(orders)) == 3
    assert all(len(set(order)) > 2 for order in orders)
    assert len({plan(view, 8, 4, seed).clip(0) for seed in range(3)}) == 3


@given(seeds, st.integers(0, 9), st.integers(1, 3000))
def test_a_permutation_has_each_number_once(seed: int, index: int, size: int) -> None:
    order = Permutation(CounterRng(seed, 1), index, size)
    found = order(np.arange(size))
    assert sorted(found.tolist()) == list(range(size))
    assert order(np.arange(size)[::-1][:5]).tolist() == found[::-1][:5].tolist(), "place by place"


def test_permutations_are_even() -> None:
    """Where a number goes, and where the next one goes then: chi-square below p = 0.001."""
    moved: Counter[tuple[int, int]] = Counter()
    first: Counter[int] = Counter()
    rng = CounterRng(5, 3)
    for index in range(2_700):
        one, other = Permutation(rng, index, 10)(np.array([3, 4])).tolist()
        first[one] += 1
        moved[one, other] += 1
    assert chi_square(first, range(10), 2_700) < 27.9
    assert chi_square(moved, [(a, b) for a in range(10) for b in range(10) if a != b], 2_700) < 137.2


def test_a_job_gets_the_exhaustive_plan() -> None:
    view = view_of({"a": [40] * 5})
    sampling = SamplingSpec(kind="exhaustive", clips_per_visit=4, window=32, step=3, seed=5)
    made = plan_of(view, CLIP, sampling, TRAIN, 2)
    assert clips_of(made) == clips_of(plan(view, 4, 8, 5, 2, 3))
    assert sampling.issue_window == 32
    shares = [plan_of(view, CLIP, sampling.model_copy(update={"ranks": 2, "rank": rank}), TRAIN, 2) for rank in (0, 1)]
    both = sum((shown(clips_of(share)) for share in shares), Counter())
    assert both == shown(clips_of(made)[: len(made) // 2 * 2])


def test_visits_as_long_as_groups_of_pictures_decode_each_frame_once() -> None:
    keyframes = tuple(range(0, 3000, 50))
    rows = [
        replace(each, seekable=True, keyframe_frame=keyframes, keyframe_pts=keyframes, keyframe_offset=keyframes)
        for each in view_of({"a": [3000] * 20}).rows
    ]
    view = Catalog(tuple(rows)).view(None)
    cost = decode_cost(plan(view, 50, 16), view, 800, 64)
    assert cost.frames / cost.clips < 1.15, "visits begin with a group of pictures"
    assert cost.times_less > 27


def test_more_places_than_an_epoch_may_have_are_refused() -> None:
    view = view_of({"a": [2**20] * 1000})
    with refused("sampling.step", "range"):
        plan(view, 4, 8)
    assert len(plan(view, 4, 8, step=2)) == 524_286_000
    assert plan(view, 4, 8, step=2).clip(524_285_999).index == 524_285_999
    assert len(plan(view, 4, 8, size=10)) == 10


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kind": "exhaustive", "clips_per_visit": 6, "window": 32}, ("window", "conflict")),
        ({"kind": "exhaustive", "locality": 32}, ("locality", "conflict")),
        ({"kind": "pooled", "step": 2}, ("step", "conflict")),
    ],
)
def test_fields_that_do_not_go_together_are_refused(fields: dict[str, object], words: Refusal) -> None:
    with refused(*words):
        SamplingSpec.model_validate(fields)
