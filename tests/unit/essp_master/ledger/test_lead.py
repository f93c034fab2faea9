"""How far a consumer gets ahead of the slowest one where all keep in step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp_common.job.position import Position
from tests.harness.ledger_checks import check_at_rest
from tests.harness.ledger_config import CONSUMERS, ledger_config
from tests.harness.ledger_simulation import LedgerSimulation

FAST, SLOW = CONSUMERS
PASS = 6 + 8
"""Clips of a pass: 6 of training, and 2 of each of 4 videos."""


def ahead(sim: LedgerSimulation) -> int:
    """By how many clips the fastest consumer really is ahead of the slowest one."""
    before = [sum(phase.clips for phase in sim.config.phases[:number]) for number in range(len(sim.config.phases) + 1)]
    reached = [before[c.position.phase_index] + c.position.index for c in sim.consumers.values()]
    return max(reached) - min(reached)


def run_alone(sim: LedgerSimulation, name: str) -> None:
    """Let one consumer train all that it can get."""
    moved = True
    while moved:
        sim.make_all()
        moved = sim.take(name)


def test_however_large_the_budget_a_trainer_is_at_most_a_pass_ahead() -> None:
    sim = LedgerSimulation(ledger_config(epochs=14, budget=10**6, lead=1))
    run_alone(sim, FAST)
    assert ahead(sim) == PASS
    assert sim.ledger.holds_back
    assert (sim.ledger.untrained(FAST), sim.ledger.untrained(SLOW)) == (0, PASS)
    for _ in range(3):
        assert sim.take(SLOW)
    run_alone(sim, FAST)
    assert ahead(sim) == PASS
    run_alone(sim, SLOW)
    sim.run()
    check_at_rest(sim)
    assert not sim.ledger.holds_back


@pytest.mark.parametrize("lead", [1, 2, 13])
def test_the_bound_is_counted_in_passes(lead: int) -> None:
    sim = LedgerSimulation(ledger_config(epochs=14, budget=10**6, lead=lead))
    run_alone(sim, FAST)
    assert ahead(sim) == lead * PASS


def test_one_trainer_alone_has_nobody_to_wait_for() -> None:
    sim = LedgerSimulation(ledger_config(epochs=3, budget=10**6, consumers={FAST: "rgb"}, lead=1))
    assert sim.ledger.untrained(FAST) == 3 * PASS
    assert not sim.ledger.holds_back


def test_a_trainer_that_began_further_ahead_waits_until_the_others_are_near() -> None:
    start = {FAST: Position(8, 2)}
    sim = LedgerSimulation(ledger_config(epochs=6, budget=10**6, start=start, lead=1))
    run_alone(sim, FAST)
    assert sim.consumers[FAST].position == start[FAST]
    sim.run()
    check_at_rest(sim)


@given(data=st.data())
def test_no_order_of_work_breaks_the_bound_or_stands_still(data: st.DataObject) -> None:
    """Consumers take clips in batches: the slowest one has to get a whole batch, whatever the locality."""
    clips, lead = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 2))
    consumers = CONSUMERS | ({"trainer.other": "rgb"} if data.draw(st.booleans()) else {})
    kind = data.draw(st.sampled_from(["class_balanced", "uniform", "pooled"]))
    config = ledger_config(
        data.draw(st.integers(1, 5)),
        clips,
        videos=data.draw(st.integers(2, 5)),
        consumers=consumers,
        budget=10**6,
        locality=data.draw(st.sampled_from([3, 30] if kind == "pooled" else [0, 3, 30])),
        kind=kind,
        lead=lead,
    )
    sim = LedgerSimulation(config)
    while not all(sim.done(name) for name in consumers):
        sim.make_all()
        ready = [name for name in consumers if whole_batch_ready(sim, name, clips)]
        assert ready, "somebody can go on"
        name = data.draw(st.sampled_from(ready))
        for _ in range(batch_of(sim, name, clips)):
            assert sim.take(name)
        assert ahead(sim) <= config.lead_clips
    sim.make_all()
    check_at_rest(sim)


def batch_of(sim: LedgerSimulation, name: str, clips: int) -> int:
    """Clips of the next batch: as many as the longest training phase has, but none of the next phase."""
    phase_index, index = sim.consumers[name].position
    phases = sim.config.phases
    if phase_index < len(phases) and index >= phases[phase_index].clips:
        phase_index, index = phase_index + 1, 0
    return min(clips, phases[phase_index].clips - index) if phase_index < len(phases) else 0


def whole_batch_ready(sim: LedgerSimulation, name: str, clips: int) -> bool:
    """Whether all clips of the next batch have arrived."""
    consumer, wanted = sim.consumers[name], batch_of(sim, name, clips)
    start = sim._next(consumer)
    if start is None or not wanted:
        return False
    return all(Position(start.phase_index, start.index + n) in consumer.waiting for n in range(wanted))
