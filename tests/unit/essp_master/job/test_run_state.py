"""The states of a run: the documented table, the table in code and the job agree."""

from __future__ import annotations

import re
from itertools import product

import pytest

from essp_common.job.status import JobState
from essp_common.pb.v1.messages_pb2 import TRAIN, Made, Progress
from essp_common.wiring import Adapters
from essp_master.job import run_state
from essp_master.job.run_state import TRANSITIONS, RunEvent, RunState, after
from tests.harness.fleet import Fleet
from tests.harness.masters import master_named

WRITES = RunState.ACTIVE, RunState.ENDING, RunState.CLOSED, RunState.ENDED


def test_the_documented_table_is_the_one_in_code() -> None:
    rows = re.findall(r"^    ([A-Z_]+) +([a-z_]+) +([A-Z_]+)$", run_state.__doc__ or "", re.MULTILINE)
    assert rows == [(state.name, event.value, to.name) for (state, event), to in TRANSITIONS.items()]


def test_every_state_is_in_the_table_and_can_be_reached() -> None:
    assert {state for state, _ in TRANSITIONS} == set(RunState)
    assert set(TRANSITIONS.values()) | {RunState.ACTIVE} == set(RunState)
    assert {event for _, event in TRANSITIONS} == set(RunEvent)


def test_a_history_that_is_lost_or_of_another_master_is_written_no_more() -> None:
    for (state, _), to in TRANSITIONS.items():
        if state in (RunState.UNRECORDED, RunState.FENCED):
            assert to is state
    assert [state for state in RunState if state.writes_history] == list(WRITES)


def test_a_transition_that_the_table_does_not_have_raises() -> None:
    for state, event in set(product(RunState, RunEvent)) - TRANSITIONS.keys():
        with pytest.raises(KeyError):
            after(state, event)


def test_a_job_goes_where_the_table_says(adapters: Adapters, fleet: Fleet) -> None:
    master = master_named("m1", adapters)
    master.start(fleet.job)
    job = master._jobs["small"]
    with pytest.raises(KeyError):
        job.hand_on()
    assert (job.run_state, job.state) == (RunState.ACTIVE, JobState.RUNNING), "it keeps its history until it ends"
    master.stop("small")
    assert (job.run_state, job.state) == (RunState.ENDED, JobState.STOPPED)
    job.hand_on()
    handed_on = job.run_state
    with pytest.raises(KeyError):
        job.lose_history()
    job.take_back()
    assert (handed_on, job.run_state) == (RunState.HANDED_ON, RunState.ENDED)
    job.lose_history()
    job.take_back()
    assert (job.run_state, job.state) == (RunState.UNRECORDED, JobState.STOPPED)
    assert job.yield_to(2, 0.0) is None, "a job that has ended is not taken over"


def test_a_job_that_another_master_takes_leaves_its_history_to_it(adapters: Adapters, fleet: Fleet) -> None:
    master = master_named("m1", adapters)
    master.start(fleet.job)
    master.change("small", {"epochs": 3})
    job = master._jobs["small"]
    assert job.run_state.makes_way
    assert job.yield_to(2, 0.0) is not None
    assert (job.run_state, job.state, job.extension) == (RunState.FENCED, JobState.STOPPED, None)


@pytest.mark.parametrize("taken", [True, False])
def test_what_is_made_late_is_swept_only_of_an_own_job(adapters: Adapters, fleet: Fleet, taken: bool) -> None:
    """Of a job that another master has taken, it is that one's."""
    master = master_named("m1", adapters)
    master.start(fleet.job)
    job = master._jobs["small"]
    if taken:
        assert job.yield_to(2, 0.0) is not None
    else:
        master.stop("small")
        job.leftovers = False
    job.handle(Progress(fence=1, made=Made(purpose=TRAIN, indices=[0], bytes=[1])), 0.0)
    assert job.leftovers is not taken
