"""The pooled plan: draws like `class_balanced`, several clips a draw, far apart, and the same for everybody."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from essp_common.catalog.view import CatalogView
from essp_common.errors import ConfigError
from essp_common.job.clip_spec import ClipSpec
from essp_common.job.data_spec import SamplingSpec
from essp_common.pb.v1.messages_pb2 import TRAIN
from essp_engine.planning import class_balanced as class_balanced_module
from essp_engine.planning import pooled as pooled_module
from essp_engine.planning.class_balanced import ClassBalanced
from essp_engine.planning.plan import plan_of
from essp_engine.planning.planned_clip import Plan, PlannedClip
from essp_engine.planning.pooled import Pooled
from tests.harness.plans import chi_square, view_of
from tests.harness.refused import Refusal, refused

CLIP = ClipSpec(frames=4)
MANY = view_of({f"c{n}": [400] * 200 for n in range(5)})
"""A thousand videos."""
seeds = st.integers(0, 2**63 - 1)


def plan(view: CatalogView, size: int, per_visit: int, visits: int, seed: int = 0, epoch: int = 0) -> Plan:
    """`size` clips; a window holds so many visits."""
    return Pooled(view, CLIP, size, seed, TRAIN, epoch, per_visit, per_visit * visits)


def clips_of(made: Plan) -> list[PlannedClip]:
    return [made.clip(index) for index in range(len(made))]


def visited(view: CatalogView, count: int, seed: int = 0, epoch: int = 0) -> list[int]:
    """The videos of the first visits: those that `class_balanced` draws."""
    return [clip.video for clip in clips_of(ClassBalanced(view, CLIP, count, seed, TRAIN, epoch))]


@given(seeds, st.integers(0, 9), st.integers(1, 60), st.integers(1, 200))
def test_one_clip_a_visit_is_class_balanced(seed: int, epoch: int, window: int, size: int) -> None:
    view = view_of({"a": [30] * 5, "b": [40, 50], "c": [3]})
    one, other = plan(view, size, 1, window, seed, epoch), ClassBalanced(view, CLIP, size, seed, TRAIN, epoch)
    assert clips_of(one) == clips_of(other)
    assert one.clip(0, 0) == other.clip(0, 0)
    again = [made.clip(index, 1) for made in (one, other) for index in range(size) if made.clip(index).class_id == 0]
    assert again[: len(again) // 2] == again[len(again) // 2 :]


@given(seeds, st.integers(1, 9), st.integers(1, 20), st.integers(1, 4))
def test_each_visit_of_a_whole_window_gives_all_its_clips(seed: int, per_visit: int, visits: int, windows: int) -> None:
    made = clips_of(plan(MANY, per_visit * visits * windows, per_visit, visits, seed))
    drawn = visited(MANY, visits * windows, seed)
    for window in range(windows):
        found = Counter(clip.video for clip in made[window * per_visit * visits :][: per_visit * visits])
        expected = Counter(drawn[window * visits :][:visits])
        assert found == {video: per_visit * count for video, count in expected.items()}


@given(seeds, st.integers(2, 9), st.integers(1, 20), st.integers(1, 400))
def test_clips_of_a_visit_lie_far_apart(seed: int, per_visit: int, visits: int, size: int) -> None:
    """Also in a last window that is not full, whose visits give as many clips as there is room for."""
    made = clips_of(plan(MANY, size, per_visit, visits, seed))
    for begin in range(0, size, per_visit * visits):
        window = made[begin : begin + per_visit * visits]
        there = -(-len(window) // per_visit)
        places: dict[int, list[int]] = {}
        for place, clip in enumerate(window):
            places.setdefault(clip.video, []).append(place)
        if len(places) < there:  # a video was drawn twice
            continue
        assert len(places) == there
        assert all(1 <= len(found) <= per_visit for found in places.values())
        assert all(b - a >= there / 2 for found in places.values() for a, b in pairwise(found))
        for turn in range(0, len(window), there):
            videos = [clip.video for clip in window[turn : turn + there]]
            assert len(set(videos)) == len(videos), "a turn has each visit once"


@given(seeds, st.randoms(use_true_random=False), st.integers(1, 6), st.integers(1, 12))
def test_clips_do_not_depend_on_who_asks_or_in_which_order(
    seed: int, shuffler: random.Random, per_visit: int, visits: int
) -> None:
    expected = clips_of(plan(MANY, 150, per_visit, visits, seed))
    workers = [plan(MANY, 150, per_visit, visits, seed) for _ in range(3)]
    order = list(range(150))
    shuffler.shuffle(order)
    found = {index: workers[place % 3].clip(index) for place, index in enumerate(order)}
    assert [found[index] for index in range(150)] == expected
    resumed = plan(MANY, 150, per_visit, visits, seed)
    assert [clip for unit in resumed.units(70, 150) for clip in unit if clip not in expected[70:]] == []


@given(seeds)
def test_windows_drawn_at_once_are_those_drawn_one_by_one(seed: int) -> None:
    """Numbers that the vector code cannot be sure of are drawn singly; here all of them are."""

    def unsure(words: NDArray[np.uint64], bounds: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        shape = np.broadcast_shapes(words.shape, bounds.shape)
        return np.zeros(shape, np.int64), np.ones(shape, np.bool_)

    at_once = clips_of(plan(MANY, 90, 3, 10, seed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(class_balanced_module, "below_each", unsure)
        patch.setattr(pooled_module, "below_each", unsure)
        assert clips_of(plan(MANY, 90, 3, 10, seed)) == at_once


def test_classes_and_places_are_drawn_evenly() -> None:
    """Chi-square below p = 0.001, with the visit as the unit, since the clips of a visit share their class."""
    view = view_of({f"c{n}": [100] * (1 + 7 * n) for n in range(10)})
    made = clips_of(plan(view, 24_000, 8, 64, seed=7))
    visits = Counter(clip.class_id for clip in made)
    assert chi_square(Counter({name: count // 8 for name, count in visits.items()}), range(10), 3_000) < 27.9
    short = clips_of(plan(view_of({"a": [13] * 100}), 24_000, 8, 64, seed=7))
    assert chi_square(Counter(clip.first_frame for clip in short), range(10), 24_000) < 27.9


def test_the_places_of_a_visit_are_independent() -> None:
    view = view_of({"a": [13]})
    made = clips_of(plan(view, 16_000, 2, 1, seed=3))
    pairs = Counter((a.first_frame, b.first_frame) for a, b in zip(made[::2], made[1::2], strict=True))
    assert chi_square(pairs, [(a, b) for a in range(10) for b in range(10)], 8_000) < 148.2


def test_epochs_and_windows_are_mixed_differently() -> None:
    view = view_of({"a": [4]})  # one place: what is left is the order
    orders = set()
    for epoch in range(3):
        made = plan(MANY, 800, 8, 50, epoch=epoch)
        for begin in (0, 400):
            first_seen = {clip.video: place for place, clip in reversed(list(enumerate(clips_of(made)[begin:][:50])))}
            drawn = visited(MANY, 100, epoch=epoch)[begin // 8 :][:50]
            orders.add(tuple(first_seen[video] for video in drawn))
    assert len(orders) == 6
    assert {clip.first_frame for clip in clips_of(plan(view, 80, 8, 10))} == {0}


@given(seeds, st.integers(0, 89))
def test_all_clips_of_a_visit_are_replaced_by_one_video_of_their_class(seed: int, index: int) -> None:
    view = view_of({"a": [30] * 8, "b": [40] * 6})
    made = plan(view, 90, 3, 5, seed)
    clip = made.clip(index)
    count = len(view.by_class[clip.class_id])
    tried = [made.clip(index, attempt) for attempt in range(count)]
    assert sorted(one.video for one in tried) == sorted(view.by_class[clip.class_id].tolist())
    assert [one.attempt for one in tried] == list(range(count))
    with pytest.raises(LookupError, match="no other video"):
        made.clip(index, count)
    begin = index // 15 * 15
    drawn = visited(view, 30, seed)[begin // 3 :][:5]
    assume(drawn.count(clip.video) == 1)
    siblings = [i for i in range(begin, begin + 15) if made.clip(i).video == clip.video]
    assert len(siblings) == 3
    assert len({made.clip(i, 1).video for i in siblings}) == 1


@given(seeds, st.integers(0, 150), st.integers(0, 150))
def test_a_unit_is_all_that_a_window_wants_of_a_video(seed: int, start: int, stop: int) -> None:
    made = plan(MANY, 150, 5, 8, seed)
    units = made.units(start, stop)
    issued = sorted((clip for unit in units for clip in unit), key=lambda clip: clip.index)
    assert issued == clips_of(made)[start:stop]
    keys = [(unit[0].index // 40, unit[0].video) for unit in units]
    assert len(set(keys)) == len(keys)
    assert all(len({clip.video for clip in unit}) == 1 for unit in units)


def test_a_job_gets_the_pooled_plan() -> None:
    sampling = SamplingSpec(kind="pooled", clips_per_epoch=96, clips_per_visit=4, window=32, seed=5)
    made = plan_of(MANY, CLIP, sampling, TRAIN, 2)
    assert clips_of(made) == clips_of(plan(MANY, 96, 4, 8, seed=5, epoch=2))
    assert sampling.issue_window == 32


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"kind": "pooled", "clips_per_visit": 6, "window": 32},
            ("window", "conflict"),
        ),
        ({"kind": "pooled", "locality": 32}, ("locality", "conflict")),
        ({"window": 32}, ("window", "conflict")),
    ],
)
def test_fields_that_do_not_go_together_are_refused(fields: dict[str, object], words: Refusal) -> None:
    with refused(*words):
        SamplingSpec.model_validate(fields)


def test_what_is_stored_of_any_kind_can_be_read_again() -> None:
    for kind in ("class_balanced", "pooled", "exhaustive", "uniform"):
        sampling = SamplingSpec(kind=kind)
        assert SamplingSpec.model_validate_json(sampling.model_dump_json()) == sampling


def test_a_window_that_visits_do_not_fill_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be divided"):
        Pooled(MANY, CLIP, 10, 0, TRAIN, 0, 4, 10)
