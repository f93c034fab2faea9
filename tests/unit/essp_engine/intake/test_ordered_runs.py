"""Of several messages for a clip, from runs and attempts, an intake takes the one that counts in its run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from essp_common.pb.v1.messages_pb2 import (
    LOST,
    TRAIN,
)
from essp_engine.intake.ordered import Delivery
from tests.unit.essp_engine.intake.ordered_bench import FLOW, OrderedBench, places, plan, take_all


@pytest.mark.parametrize(("told", "reported"), [(2, 2), (0, 3)])
def test_the_master_learns_which_runs_bytes_are_missed(bench: OrderedBench, told: int, reported: int) -> None:
    """Those of an earlier run may be gone: it is told the fence of the seed or, if that is not known, of this run."""
    phases = [plan(TRAIN, 0, 1)]
    bench.cache.purge(bench.feature(phases[0], 0, fence=told))
    with bench.intake(phases) as intake:
        assert intake.take(0) is None
    assert [(p.failed.kind, p.fence) for p in bench.progress()] == [(LOST, reported)]


def test_of_two_messages_for_a_clip_that_of_this_run_is_what_the_master_hears_of(bench: OrderedBench) -> None:
    """Both are delivered again to a consumer whose state is older: it has trained with the first one and died."""
    phases = [plan(TRAIN, 0, 1)]
    for fence in (2, 3):
        key = bench.feature(phases[0], 0, fence=fence)
    bench.cache.purge(key)
    with bench.intake(phases) as intake:
        assert intake.take(0) is None
        assert [(p.failed.kind, p.fence) for p in bench.progress()] == [(LOST, 3)]
        bench.feature(phases[0], 0, fence=3)
        assert places(take_all(intake)) == [(0, 0), (0, "end")]


def test_of_two_attempts_that_of_this_run_is_taken_though_the_run_before_needed_more(bench: OrderedBench) -> None:
    """A video could not be decoded, was replaced, and is sound again. The bytes of both are gone."""
    phases = [plan(TRAIN, 0, 1)]
    for attempt, fence in ((1, 2), (0, 3)):
        bench.cache.purge(bench.feature(phases[0], 0, attempt=attempt, fence=fence))
    with bench.intake(phases) as intake:
        assert intake.take(0) is None
        assert [(p.failed.clip.attempt, p.fence) for p in bench.progress()] == [(0, 3)]
        bench.feature(phases[0], 0, fence=3)
        assert places(take_all(intake)) == [(0, 0), (0, "end")]


@pytest.mark.parametrize("fence", [2, 3])
def test_a_skip_counts_more_than_what_was_made_before_it(bench: OrderedBench, fence: int) -> None:
    """In this run or in an earlier one. The bytes may be gone, and the master would not make them again."""
    phases = [plan(TRAIN, 0, 1)]
    bench.cache.purge(bench.feature(phases[0], 0, fence=fence))
    bench.feature(phases[0], 0, skipped="gone", fence=3)
    with bench.intake(phases, replace(FLOW, since=3)) as intake:
        taken, _ = take_all(intake)
        assert isinstance(taken, Delivery)
        assert taken.skipped == "gone"
        intake.finish([taken])
    assert (bench.backlog(), bench.progress()) == (0, [])


@pytest.mark.parametrize(("since", "skipped"), [(3, False), (2, True), (0, True)])
def test_a_skip_of_an_earlier_run_says_nothing_of_this_one(bench: OrderedBench, since: int, skipped: bool) -> None:
    """The video may have been repaired. One of an earlier master of this run counts."""
    phases = [plan(TRAIN, 0, 1)]
    bench.feature(phases[0], 0, skipped="damaged", fence=2)
    with bench.intake(phases, replace(FLOW, since=since)) as intake:
        taken = take_all(intake)
        assert bool(taken) == skipped
        bench.feature(phases[0], 0, fence=3)
        taken += take_all(intake)
        assert places(taken) == [(0, 0), (0, "end")]
        intake.finish([t for t in taken if isinstance(t, Delivery)])
    assert bench.backlog() == 0


@pytest.mark.parametrize(("since", "taken"), [(3, False), (2, True), (0, True)])
def test_what_an_earlier_run_made_is_not_taken(bench: OrderedBench, since: int, taken: bool) -> None:
    """The job may have been started again with another catalog. What an earlier master of this run had made counts."""
    phases = [plan(TRAIN, 0, 1)]
    bench.feature(phases[0], 0, fence=2)
    with bench.intake(phases, replace(FLOW, since=since)) as intake:
        found = take_all(intake)
        assert bool(found) == taken
        bench.feature(phases[0], 0, fence=3)
        found += take_all(intake)
        assert places(found) == [(0, 0), (0, "end")]
        intake.finish([each for each in found if isinstance(each, Delivery)])
        take_all(intake)
    assert bench.backlog() == bench.cache.usage().keys == 0


def test_a_message_that_takes_the_place_of_another_one_keeps_its_bytes(bench: OrderedBench) -> None:
    phases = [plan(TRAIN, 0, 1)]
    for fence in (2, 3):
        bench.feature(phases[0], 0, fence=fence)
    with bench.intake(phases) as intake:
        taken, _ = take_all(intake)
        assert isinstance(taken, Delivery)
        assert bytes(taken.value) == b"1.0.0.0"
        intake.finish([taken])
    assert (bench.cache.usage().keys, bench.backlog()) == (0, 0)


@pytest.mark.parametrize("late", [0, 1])
def test_of_two_attempts_the_later_one_counts_in_either_order(bench: OrderedBench, late: int) -> None:
    phases = [plan(TRAIN, 0, 2)]
    for attempt in (late, 1 - late):
        bench.feature(phases[0], 1, attempt=attempt)
    with bench.intake(phases) as intake:
        assert take_all(intake) == []
        assert bench.cache.usage().keys == 1, "the bytes of the other attempt are freed"
        bench.feature(phases[0], 0)
        taken = [t for t in take_all(intake) if isinstance(t, Delivery)]
        assert [t.clip.attempt for t in taken] == [0, 1]
        intake.finish(taken)
        assert bench.cache.usage().keys == 0
        assert bench.backlog() == 0


@pytest.mark.parametrize("taken_before", [False, True])
def test_a_message_of_the_next_run_is_left_to_its_intake(bench: OrderedBench, taken_before: bool) -> None:
    """While a trainer saves, the next run may have begun: it begins where the master knew of a checkpoint."""
    phases, runs = [plan(TRAIN, 0, 2)], {5: 5}
    if taken_before:
        bench.feature(phases[0], 0, fence=3)
    with bench.intake(phases, replace(FLOW, since=3, run_of=runs.get)) as intake:
        done = [t for t in take_all(intake) if isinstance(t, Delivery)]
        intake.finish(done)
        reports = len(bench.progress())
        bench.feature(phases[0], 0, fence=5)
        assert take_all(intake) == []
        assert (len(bench.progress()), bench.cache.usage().keys) == (reports, 1), "it is not called trained in this run"
    assert bench.backlog() == 1
    with bench.intake(phases, replace(FLOW, fence=5, since=5, run_of=runs.get)) as intake:
        assert places(take_all(intake)) == [(0, 0)]


def test_a_message_of_another_master_waits_until_it_is_known_that_it_is_of_this_run(bench: OrderedBench) -> None:
    phases, runs = [plan(TRAIN, 0, 2)], dict[int, int]()
    for index, fence in ((0, 4), (1, 3)):
        bench.feature(phases[0], index, fence=fence)
    with bench.intake(phases, replace(FLOW, since=2, run_of=runs.get)) as intake:
        assert take_all(intake) == []
        runs[4] = 2
        assert places(take_all(intake)) == [(0, 0), (0, 1), (0, "end")]
