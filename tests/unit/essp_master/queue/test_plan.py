"""Which jobs run, and in which order the others wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from essp_master.config import Team
from essp_master.queue.plan import UNBOUNDED, Amount, Contender, Plan, plan

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def job(name: str, at: int, need: int = 1, team: str = "", ranks: int = 0, **more: object) -> Contender:
    """A job that waits, and was started `at` seconds after the first one."""
    made = Contender(name=name, team=team, since=BEGIN + timedelta(seconds=at), need=Amount(need, ranks, 1))
    return replace(made, **{"waiting": "running" not in more, **more})  # type: ignore[arg-type]


def running(jobs: Sequence[Contender]) -> list[str]:
    """The names of those that run."""
    return [job.name for job in jobs if job.running]


def done(jobs: Sequence[Contender], decided: Plan, hold: bool = False) -> list[Contender]:
    """The jobs once a plan is carried out. `hold`: those that made room still have everything in hand."""
    after = []
    for each in jobs:
        if each.name in decided.start:
            each = replace(each, running=True, waiting=False, held=Amount())
        elif each.name in decided.preempt:
            each = replace(each, running=False, waiting=True, held=each.need if hold else Amount())
        after.append(each)
    return after


def settled(jobs: Sequence[Contender], capacity: Amount, teams: Mapping[str, Team]) -> list[Contender]:
    """The jobs after as many plans as it takes until nothing changes."""
    now = list(jobs)
    for _ in range(2 * len(now) + 2):
        decided = plan(now, capacity, teams)
        if not decided.start and not decided.preempt:
            return now
        now = done(now, decided)
    raise AssertionError("the plans never come to an end")


def test_jobs_run_in_the_order_of_their_starts_as_far_as_there_is_room() -> None:
    decided = plan([job(name, at) for at, name in enumerate("abcd")], Amount(2, UNBOUNDED), {})
    assert decided.start == ("a", "b")
    assert [(w.job, w.position) for w in decided.waiting] == [("c", 1), ("d", 2)]
    assert decided.waiting[0].reason == "its budget is 1 B, and 0 B of 2 B are free"
    assert decided.waiting[1].reason == "c comes first"


def test_a_higher_priority_goes_first_and_takes_the_place_of_a_lower_one() -> None:
    low = job("low", 0, priority=-1)
    present = settled([job("old", 1), low], Amount(2, UNBOUNDED), {})
    decided = plan([*present, job("new", 2, priority=5)], Amount(2, UNBOUNDED), {})
    assert decided.preempt == {"low": "new"}
    assert decided.start == (), "what made room still has something in hand"
    assert [(w.job, w.reason) for w in decided.waiting] == [
        ("new", "it starts when low has finished the current work"),
        ("low", "it made room for new, and continues when there is room again"),
    ]
    assert running(settled([*present, job("new", 2, priority=5)], Amount(2, UNBOUNDED), {})) == ["old", "new"]


def test_a_job_takes_no_place_of_its_equals() -> None:
    present = settled([job("a", 0), job("b", 1)], Amount(2, UNBOUNDED), {})
    assert plan([*present, job("c", 2)], Amount(2, UNBOUNDED), {}).preempt == {}


def test_nothing_overtakes_a_large_job() -> None:
    present = [job("a", 0, 3, running=True), job("large", 1, 4), job("small", 2, 1, team="other")]
    decided = plan(present, Amount(5, UNBOUNDED), {})
    assert decided.start == ("small",), "a team without a job has the smaller share"
    decided = plan([*present[:2], job("small", 2, 1)], Amount(5, UNBOUNDED), {})
    assert decided.start == ()
    assert [w.job for w in decided.waiting] == ["large", "small"]


def test_nothing_overtakes_a_large_job_of_another_team() -> None:
    """Though it would fit: else small ones could keep the large one waiting for ever."""
    present = [job("a0", 0, 3, "a", running=True), job("b0", 1, 4, "b", running=True)]
    decided = plan([*present, job("large", 2, 5, "a"), job("small", 3, 1, "b")], Amount(10, UNBOUNDED), {})
    assert decided.start == ()
    assert [(w.job, w.reason) for w in decided.waiting] == [
        ("large", "its budget is 5 B, and 3 B of 10 B are free"),
        ("small", "a job of another team comes first"),
    ]


def test_nothing_of_the_same_team_overtakes_a_job_that_its_quota_holds_back() -> None:
    present = [job("a0", 0, 2, "a", running=True), job("b0", 0, 3, "b", running=True)]
    waiting = [job("a1", 1, 2, "a"), job("a2", 2, 1, "a"), job("b1", 3, 2, "b")]
    decided = plan([*present, *waiting], Amount(10, UNBOUNDED), {"a": Team(budget=3)})
    assert decided.start == ("b1",), "others are none the worse for it"
    assert [w.job for w in decided.waiting] == ["a1", "a2"]
    assert decided.waiting[1].reason == "a1 comes first"


def test_teams_wait_in_turn() -> None:
    """In the order in which their jobs would run, not in that of their starts."""
    full = job("c0", 0, 4, "c", running=True)
    waiting = {"b1": 1, "b2": 2, "a1": 3, "a2": 4, "b3": 30}
    jobs = [full, *(job(name, at, team=name[0]) for name, at in waiting.items())]
    decided = plan(jobs, Amount(4, UNBOUNDED), {"c": Team(weight=100)})
    assert [w.job for w in decided.waiting] == ["b1", "a1", "b2", "a2", "b3"]


def test_a_job_does_not_wait_for_what_it_has_in_hand_itself() -> None:
    made_room = job("a", 0, 4, held=Amount(4))
    assert plan([made_room], Amount(5, UNBOUNDED), {}).start == ("a",)


def test_a_job_that_needs_more_than_there_is_runs_alone() -> None:
    large = job("large", 0, 50)
    now = settled([large, job("b", 1)], Amount(5, UNBOUNDED), {})
    assert running(now) == ["large"]
    assert running(settled([each for each in now if each.name != "large"], Amount(5, UNBOUNDED), {})) == ["b"]


@pytest.mark.parametrize(
    ("quota", "reason"),
    [
        (Team(jobs=1), "team a runs 1 job, and may run 1"),
        (Team(budget=2), "its budget is 2 B, and 0 B of the 2 B of team a are free"),
        (Team(ranks=3), "it needs 2 ranks, and 1 of the 3 of team a are free"),
    ],
)
def test_a_quota_holds_back_its_own_team_only(quota: Team, reason: str) -> None:
    jobs = [job("a1", 0, 2, "a", 2), job("a2", 1, 2, "a", 2), job("b1", 2, 2, "b", 2)]
    decided = plan(jobs, Amount(100, 100), {"a": quota})
    assert decided.start == ("a1", "b1")
    assert [(w.job, w.reason) for w in decided.waiting] == [("a2", reason)]


@pytest.mark.parametrize("quota", [Team(jobs=1), Team(budget=2), Team(ranks=2)])
def test_a_higher_priority_takes_its_place_within_a_quota_from_its_own_team(quota: Team) -> None:
    low = job("low", 0, 2, "a", 2, priority=-1, running=True)
    other = job("other", 0, 20, "b", 20, running=True)
    decided = plan([low, other, job("new", 1, 2, "a", 2)], Amount(100, 100), {"a": quota})
    assert decided.preempt == {"low": "new"}, "what others give up would not help"


def test_a_large_job_takes_no_more_from_a_team_than_leaves_both_as_much() -> None:
    small = [job(f"a{n}", n, team="a", running=True) for n in range(4)]
    assert sorted(plan([*small, job("b", 9, 2, "b")], Amount(4, UNBOUNDED), {}).preempt) == ["a2", "a3"]
    assert plan([*small, job("b", 9, 3, "b")], Amount(4, UNBOUNDED), {}).preempt == {}


def test_a_job_runs_that_takes_all_there_is() -> None:
    jobs = [job("a", 0, 3, "t", ranks=3), job("b", 1, 2, "t", ranks=1)]
    assert plan(jobs, Amount(5, 4), {"t": Team(jobs=2, budget=5, ranks=4)}).start == ("a", "b")


def test_ranks_count_as_bytes_do() -> None:
    decided = plan([job("a", 0, ranks=3), job("b", 1, ranks=2)], Amount(100, 4), {})
    assert decided.start == ("a",)
    assert decided.waiting[0].reason == "it needs 2 ranks, and 1 of 4 are free"


def test_teams_come_to_equal_shares() -> None:
    """One team had everything, and two others come."""
    first = settled([job(f"a{n}", n, team="a") for n in range(5)], Amount(5, UNBOUNDED), {})
    others = [job(f"{team}{n}", 10 + n, team=team) for n in range(5) for team in "bc"]
    assert running(settled([*first, *others], Amount(5, UNBOUNDED), {})) != []
    count = {
        team: sum(n.startswith(team) for n in running(settled([*first, *others], Amount(5, UNBOUNDED), {})))
        for team in "abc"
    }
    assert sorted(count.values()) == [1, 2, 2]


def test_a_weight_gives_a_team_a_larger_share() -> None:
    jobs = [job(f"{team}{n}", n, team=team) for n in range(9) for team in "ab"]
    now = running(settled(jobs, Amount(9, UNBOUNDED), {"b": Team(weight=2)}))
    assert (sum(n[0] == "a" for n in now), sum(n[0] == "b" for n in now)) == (3, 6)


def test_what_made_room_is_waited_for_and_nobody_else_has_to_make_room() -> None:
    teams: dict[str, Team] = {}
    jobs = [*settled([job(f"a{n}", n, team="a") for n in range(5)], Amount(5, UNBOUNDED), teams), job("b", 9, team="b")]
    first = plan(jobs, Amount(5, UNBOUNDED), teams)
    assert first.preempt == {"a4": "a job of another team"}
    jobs = done(jobs, first, hold=True)
    second = plan(jobs, Amount(5, UNBOUNDED), teams)
    assert (second.preempt, second.start) == ({}, ())
    assert second.waiting[0].reason == "it starts when a job of another team has finished the current work"
    jobs = [replace(each, held=Amount()) for each in jobs]
    assert plan(jobs, Amount(5, UNBOUNDED), teams).start == ("b",)


def test_what_a_paused_job_holds_is_not_free() -> None:
    paused = job("paused", 0, 4, waiting=False, held=Amount(3))
    decided = plan([paused, job("b", 1, 3)], Amount(5, UNBOUNDED), {})
    assert decided.start == ()
    assert decided.waiting[0].reason == "its budget is 3 B, and 2 B of 5 B are free"


TEAMS = {"a": Team(jobs=3, weight=2), "b": Team(budget=9), "c": Team(ranks=4), "d": Team()}
CAPACITY = Amount(12, 6)
JOBS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(1, 6), st.integers(0, 3), st.integers(0, 2), st.booleans()),
    max_size=14,
)


def made(drawn: Sequence[tuple[str, int, int, int, bool]]) -> list[Contender]:
    return [
        job(f"{team}{n}", n, need, team, ranks, priority=priority)
        for n, (team, need, ranks, priority, _) in enumerate(drawn)
    ]


def taken(jobs: Sequence[Contender], team: str | None = None) -> Amount:
    return sum((each.need for each in jobs if each.running and team in (None, each.team)), Amount())


@given(JOBS, st.integers(0, 20))
@settings(max_examples=12)
def test_no_plan_ever_goes_beyond_capacity_or_quota(
    drawn: list[tuple[str, int, int, int, bool]], at_first: int
) -> None:
    """Jobs come in two lots, and each plan is carried out while those that made room still hold all they had."""
    jobs = made(drawn)
    now: list[Contender] = []
    for coming in (jobs[:at_first], jobs[at_first:]):
        now = [*now, *coming]
        for _ in range(3 * len(jobs) + 3):
            decided = plan(now, CAPACITY, TEAMS)
            assert set(decided.start).isdisjoint(decided.preempt)
            assert [w.position for w in decided.waiting] == list(range(1, len(decided.waiting) + 1))
            assert all(w.reason for w in decided.waiting)
            held = sum((each.held for each in now if not each.running and each.name not in decided.start), Amount())
            now = done(now, decided, hold=True)
            assert {w.job for w in decided.waiting} == {each.name for each in now if each.waiting}
            used = taken(now) + (held if decided.start else Amount())
            assert used.bytes <= CAPACITY.bytes
            assert used.ranks <= CAPACITY.ranks
            assert taken(now, "a").jobs <= 3
            assert taken(now, "b").bytes <= 9
            assert taken(now, "c").ranks <= 4
            if not decided.start and not decided.preempt:
                now = [replace(each, held=Amount()) for each in now]


@given(JOBS)
def test_plans_come_to_an_end_and_every_job_to_its_turn(drawn: list[tuple[str, int, int, int, bool]]) -> None:
    now = made(drawn)
    ended = 0
    while now:
        now = settled(now, CAPACITY, TEAMS)
        assert plan(now, CAPACITY, TEAMS).preempt == {}
        going = [each for each in now if each.running]
        assert going, "somebody runs"
        now.remove(going[0])
        ended += 1
    assert ended == len(drawn)


@given(JOBS)
def test_within_a_team_the_order_is_kept(drawn: list[tuple[str, int, int, int, bool]]) -> None:
    now = settled(made(drawn), CAPACITY, TEAMS)
    for team in "abcd":
        ranks = [each.rank for each in now if each.team == team and each.running]
        waiting = [each for each in now if each.team == team and each.waiting]
        first = min(waiting, key=lambda each: each.rank, default=None)
        assert first is None or all(rank < first.rank for rank in ranks)
        order = [w.job for w in plan(now, CAPACITY, TEAMS).waiting]
        assert [n for n in order if n.startswith(team)] == [w.name for w in sorted(waiting, key=lambda w: w.rank)]
