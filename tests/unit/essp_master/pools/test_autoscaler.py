"""The autoscaler decides by the trainers' wait, explains itself, and does better than plain rules in the simulator."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.autoscaling import RULES, TRACES, Essp, best, simulate
from essp_master.pools.autoscaler import Autoscaler, Limits, Policy, PoolLoad, Saturation, classify

BUSY = PoolLoad(name="decoder", replicas=4, ready=4, busy=0.98, done_per_s=20.0, queue=50, demand_per_s=40.0, wait=0.5)
IDLE = replace(BUSY, busy=0.2, queue=1, wait=0.0, demand_per_s=4.0, done_per_s=4.0)


@pytest.mark.parametrize(
    ("load", "saturation"),
    [
        (BUSY, Saturation.BOTTLENECK),
        (replace(BUSY, busy=0.3, queue=1), Saturation.STARVED),
        (replace(BUSY, wait=0.0, full=True), Saturation.BUFFERED),
        (replace(BUSY, wait=0.0), Saturation.BALANCED),
        (replace(BUSY, ready=0, busy=0.0), Saturation.BOTTLENECK),
        (replace(BUSY, stuck=4), Saturation.BOTTLENECK),
        (replace(BUSY, replicas=0, ready=0, wait=0.0, full=True), Saturation.BOTTLENECK),
    ],
)
def test_a_pool_is_classified_by_the_wait_of_trainers_and_its_own_work(load: PoolLoad, saturation: Saturation) -> None:
    assert classify(load, Policy()) is saturation


def test_a_busy_pool_whose_trainers_do_not_wait_is_left_alone() -> None:
    (decision,) = Autoscaler().decide([(replace(BUSY, wait=0.01, demand_per_s=20.0), Limits())], 0.0)
    assert decision.wanted == decision.replicas
    assert "no trainer waits" in decision.reason


def test_no_sentence_contradicts_the_size_of_the_pool() -> None:
    """One worker at the minimum cannot become fewer, and one that is there need not be added."""
    alone = replace(IDLE, replicas=1, ready=1, demand_per_s=0.0, done_per_s=0.0, queue=0)
    (decision,) = Autoscaler().decide([(alone, Limits(min=1))], 0.0)
    assert (decision.wanted, "suffice" in decision.reason) == (1, False)
    enough = replace(BUSY, replicas=1, ready=1, done_per_s=50.0)
    (decision,) = shown(enough).decide([(enough, Limits())], 100.0)
    assert (decision.wanted, "needed" in decision.reason) == (1, False)
    assert "the 1 worker that it has should do" in decision.reason


def test_it_grows_to_what_the_rates_say() -> None:
    scaler, load, sizes = shown(BUSY), BUSY, []
    for now_s in range(100, 250, 10):
        (decision,) = scaler.decide([(load, Limits())], now_s)
        sizes.append(decision.wanted)
        load = replace(load, replicas=decision.wanted, ready=decision.wanted, done_per_s=5.0 * 0.98 * decision.wanted)
    assert set(sizes) == {10}, "40 clips/s at 5.1 a worker, with headroom"


def shown(load: PoolLoad) -> Autoscaler:
    """An autoscaler that has seen long enough, by 100 s, what these workers make."""
    scaler = Autoscaler()
    for now_s in (0.0, 50.0, 90.0):
        scaler.decide([(replace(load, wait=0.0), Limits())], now_s)
    return scaler


def test_a_step_waits_until_the_workers_of_the_one_before_have_shown_what_they_make() -> None:
    scaler, policy = shown(BUSY), Policy()
    assert scaler.decide([(BUSY, Limits())], 100.0)[0].wanted == 10
    grown = replace(BUSY, replicas=10, ready=10)  # and they make no more than the four before
    for now_s in (110.0, 120.0):
        (decision,) = scaler.decide([(grown, Limits())], now_s)
        assert decision.wanted == 10
        assert "what it makes now is not known yet" in decision.reason
    assert scaler.decide([(grown, Limits())], 110.0 + policy.show_s)[0].wanted > 10


def test_nothing_is_added_to_workers_that_are_not_up_yet() -> None:
    scaler = shown(BUSY)
    assert scaler.decide([(BUSY, Limits())], 100.0)[0].wanted == 10
    for now_s in range(110, 2000, 10):
        (decision,) = scaler.decide([(replace(BUSY, replicas=10, ready=5), Limits())], now_s)
        assert decision.wanted == 10
        assert "5 of 10 workers are not up yet" in decision.reason


def test_workers_that_cannot_work_are_not_made_more() -> None:
    (decision,) = shown(BUSY).decide([(replace(BUSY, hindered="the broker is silent"), Limits())], 100.0)
    assert decision.wanted == decision.replicas
    assert "the broker is silent" in decision.reason


@pytest.mark.parametrize(
    "load",
    [
        pytest.param(BUSY, id="soon after it grew"),
        pytest.param(replace(BUSY, hindered="no worker has told of itself"), id="hindered"),
        pytest.param(replace(BUSY, queue=0, awaited=True), id="awaited by a job that has not begun"),
        pytest.param(replace(BUSY, wait=0.0), id="no trainer waits yet"),
    ],
)
def test_a_pool_without_workers_gets_one_as_soon_as_there_is_work(load: PoolLoad) -> None:
    scaler = Autoscaler()
    scaler.decide([(BUSY, Limits())], 95.0)
    gone = replace(load, replicas=0, ready=0, busy=0.0, done_per_s=0.0)
    assert scaler.decide([(gone, Limits())], 100.0)[0].wanted >= 1


def test_a_pool_whose_input_is_too_slow_is_not_made_larger() -> None:
    (decision,) = shown(BUSY).decide([(replace(BUSY, busy=0.3, queue=1), Limits())], 100.0)
    assert decision.wanted == decision.replicas
    assert "its input is too slow" in decision.reason


def test_stuck_workers_are_made_up_for() -> None:
    healthy = replace(BUSY, replicas=10, ready=10, done_per_s=49.0)
    scaler = shown(healthy)
    assert scaler.decide([(healthy, Limits())], 100.0)[0].wanted == 10
    hung = replace(healthy, stuck=4, done_per_s=29.4)
    (decision,) = scaler.decide([(hung, Limits())], 110.0)
    assert decision.wanted == 14
    assert "including 4 to replace stuck ones" in decision.reason


def test_a_pool_whose_workers_have_made_nothing_yet_does_not_grow() -> None:
    """On a machine of two cores, more of them would only take the time from those that begin."""
    scaler = Autoscaler()
    none = replace(BUSY, replicas=0, ready=0, busy=0.0, done_per_s=0.0, demand_per_s=None, wait=1.0)
    assert scaler.decide([(none, Limits())], 0.0)[0].wanted == 1, "one has to show what a worker makes"
    for now_s in range(10, 600, 10):
        (decision,) = scaler.decide([(replace(none, replicas=1, ready=int(now_s > 60), busy=1.0), Limits())], now_s)
        assert decision.wanted == 1


def test_a_pool_of_unknown_demand_grows_by_one_at_a_time() -> None:
    """A prediction takes all there is."""
    load, asked_s = replace(BUSY, replicas=1, ready=1, done_per_s=5.0, demand_per_s=None, wait=1.0), []
    scaler = shown(load)
    for now_s in range(100, 200, 10):
        (decision,) = scaler.decide([(load, Limits())], now_s)
        if decision.wanted > load.replicas:
            assert decision.wanted == load.replicas + 1
            asked_s.append(now_s)
        load = replace(load, replicas=decision.wanted, ready=decision.wanted, done_per_s=5.0 * decision.wanted)
    assert asked_s == [100, 130, 160, 190], "each has time to come up and show what it makes"


def test_it_shrinks_only_after_a_lasting_surplus_and_not_soon_after_growing() -> None:
    scaler, policy = Autoscaler(), Policy()
    wanted = {}
    for now_s in range(0, 400, 10):
        (decision,) = scaler.decide([(IDLE, Limits())], now_s)
        wanted[now_s] = decision.wanted
    assert all(size == 4 for now_s, size in wanted.items() if now_s < policy.surplus_s)
    assert min(wanted.values()) == 3, "one step at a time"


def test_each_step_down_waits_for_a_surplus_of_its_own() -> None:
    scaler, policy, load, shrunk_s = Autoscaler(), Policy(), IDLE, []
    for now_s in range(0, 600, 10):
        (decision,) = scaler.decide([(load, Limits())], now_s)
        if decision.wanted < load.replicas:
            assert decision.wanted == load.replicas - 1
            shrunk_s.append(now_s)
        load = replace(load, replicas=decision.wanted, ready=decision.wanted)
    assert shrunk_s[0] == policy.surplus_s
    assert all(later - before > policy.surplus_s for before, later in pairwise(shrunk_s))


def test_workers_that_have_just_come_up_are_kept_for_a_while_however_long_the_surplus_has_lasted() -> None:
    scaler, policy = Autoscaler(), Policy()
    came_s, shrunk_s = policy.surplus_s - 10, []
    for now_s in range(0, 400, 10):
        (decision,) = scaler.decide([(replace(IDLE, ready=4 if now_s >= came_s else 3), Limits())], now_s)
        if decision.wanted < IDLE.replicas:
            shrunk_s.append(now_s)
    assert shrunk_s[0] == came_s + policy.grace_s


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("demand_per_s", [None, 40.0])
def test_a_pool_without_work_shrinks_to_none_and_comes_back_with_work(full: bool, demand_per_s: float | None) -> None:
    scaler = shown(BUSY)
    load = replace(BUSY, queue=0, wait=0.0, demand_per_s=0.0, done_per_s=0.0, busy=0.0)
    for now_s in range(100, 2000, 10):
        (decision,) = scaler.decide([(load, Limits())], now_s)
        load = replace(load, replicas=decision.wanted, ready=decision.wanted)
    assert load.replicas == 0
    asked = replace(load, queue=50, demand_per_s=demand_per_s, full=full)  # by a job that nobody has worked for yet
    assert scaler.decide([(asked, Limits())], 2000.0)[0].wanted >= 1
    assert scaler.decide([(load, Limits(min=2))], 2000.0)[0].wanted == 2


@pytest.mark.parametrize("between", [BUSY, replace(IDLE, demand_per_s=40.0)], ids=["too few", "as many as needed"])
def test_an_interruption_of_the_surplus_starts_the_wait_again(between: PoolLoad) -> None:
    scaler = Autoscaler()
    for now_s in range(0, 110, 10):
        scaler.decide([(IDLE, Limits())], now_s)
    scaler.decide([(between, Limits(max=4))], 110.0)
    assert scaler.decide([(IDLE, Limits())], 130.0)[0].wanted == 4


def test_a_cap_is_named() -> None:
    (decision,) = shown(BUSY).decide([(BUSY, Limits(max=4, max_because="partitions of essp.seeds"))], 100.0)
    assert decision.wanted == 4
    assert decision.reason.endswith("; partitions of essp.seeds")


LOADS = st.builds(
    PoolLoad,
    name=st.sampled_from(["decoder", "extractor.flow"]),
    replicas=st.integers(0, 64),
    ready=st.integers(0, 64),
    stuck=st.integers(0, 4),
    busy=st.floats(0, 1),
    done_per_s=st.floats(0, 1000),
    queue=st.integers(0, 10_000),
    demand_per_s=st.none() | st.floats(0, 1000),
    wait=st.floats(0, 1),
    full=st.booleans(),
)


@given(st.lists(LOADS, max_size=30), st.integers(0, 4), st.integers(4, 64))
def test_it_never_leaves_its_limits_and_always_gives_a_reason(loads: list[PoolLoad], low: int, high: int) -> None:
    scaler, limits = Autoscaler(), Limits(min=low, max=high)
    for number, load in enumerate(loads):
        (decision,) = scaler.decide([(load, limits)], 10.0 * number)
        if decision.wanted != load.replicas:
            assert low <= decision.wanted <= high
        if load.queue and load.replicas:
            assert decision.wanted >= 1
        assert len(decision.reason) > len(decision.saturation) + 2


@pytest.mark.parametrize("name", TRACES)
def test_trainers_are_fed_better_than_by_plain_rules_and_with_less_waste_than_by_cpu(name: str) -> None:
    outcomes = {rule: best(TRACES[name], settings) for rule, settings in RULES.items()}
    assert outcomes["essp"].fed == max(outcome.fed for outcome in outcomes.values())
    assert outcomes["essp"].waste < outcomes["hpa_cpu"].waste


def test_the_simulator_loses_when_the_autoscaler_does_nothing() -> None:
    class Nothing(Essp):
        def decide(self, cluster: object, now_s: int) -> None:
            """Leave every pool as it is."""

    assert simulate(TRACES["step_load"], Nothing()).fed < 0.2
