"""Trainers that stop early: they get nothing more of the epochs, the others everything, and the job ends."""

from __future__ import annotations

import random

import pytest

from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import Progress, StoppedEarly
from tests.harness.ledger_checks import check_account, check_at_rest
from tests.harness.ledger_config import CLIP_BYTES, CONSUMERS, STREAM_BYTES, ledger_config
from tests.harness.ledger_simulation import LedgerSimulation, Seed
from tests.lanes import often

BOTH = CLIP_BYTES + STREAM_BYTES
RGB, FLOW = CONSUMERS


def job(epochs: int = 4, budget: int = 6 * BOTH, catch_up: int = 0) -> LedgerSimulation:
    """Two trainers, and a test after the epochs."""
    return LedgerSimulation(ledger_config(epochs, clips=8, budget=budget, unit_clips=2, catch_up=catch_up, test=True))


def work_until(sim: LedgerSimulation, position: Position, *names: str) -> None:
    """Let all work until these trainers have done everything before a position, and no more."""
    for _ in range(10_000):
        sim.make_all()
        late = [name for name in names if sim.next_of(name) < position]
        if not late:
            return
        for name in late:
            sim.take(name)
    raise AssertionError("they do not get there")


def begin_of(sim: LedgerSimulation, epoch: int) -> Position:
    return Position(2 * epoch, 0)


def of_epochs_after(sim: LedgerSimulation, position: Position, seeds: list[Seed]) -> list[Seed]:
    return [seed for seed in seeds if position <= Position(seed.phase_index, seed.clip.index) < sim.config.rest]


def test_the_others_go_on_alone() -> None:
    sim = job()
    stop = begin_of(sim, 1)
    work_until(sim, stop, RGB, FLOW)
    sim.stop(RGB)
    sim.make_all()
    sim.seeds.clear()
    while sim.take(FLOW):
        sim.make_some()
        assert all(seed.consumers == (FLOW,) for seed in of_epochs_after(sim, stop, sim.seeds))
    sim.run()
    check_at_rest(sim)
    assert [p for p in sim.consumers[RGB].trained if stop <= p < sim.config.rest] == []
    assert sim.finished_phases == list(range(len(sim.config.phases))), "the other trainer has done them all"


@pytest.mark.parametrize("catch_up", [0, 2 * BOTH])
def test_once_all_have_stopped_nothing_more_is_issued_for_training(catch_up: int) -> None:
    sim = job(catch_up=catch_up)
    stop = begin_of(sim, 2)
    work_until(sim, stop, RGB, FLOW)
    for name in CONSUMERS:
        sim.stop(name)
    while sim.events:
        sim.deliver()
    issued = len(sim.issued)
    sim.run()
    check_at_rest(sim)
    assert {p.phase_index for p in sim.issued[issued:]} == {sim.config.rest.phase_index}, "the test alone"
    assert all(0 <= number < stop.phase_index or number == 8 for number in sim.finished_phases)
    assert sim.used == 0


def test_without_a_phase_after_the_epochs_the_job_is_over() -> None:
    sim = LedgerSimulation(ledger_config(epochs=3, budget=6 * BOTH, unit_clips=2))
    work_until(sim, begin_of(sim, 1), RGB, FLOW)
    for name in CONSUMERS:
        sim.stop(name)
    sim.run()
    check_at_rest(sim)
    assert sim.used == 0, "what was in the making for them is freed though nobody takes it any more"


def test_what_is_made_for_one_that_has_gone_is_freed() -> None:
    """A trainer that has nothing left to do ends, and acks nothing that still comes for it."""
    sim = LedgerSimulation(ledger_config(epochs=3, budget=5 * BOTH, clips=12, unit_clips=2))
    work_until(sim, begin_of(sim, 1), RGB, FLOW)
    while not sim.seeds:
        for name in CONSUMERS:
            sim.take(name)
        while sim.events:
            sim.deliver()
    assert sim.used, "and some is made, and waits for them"
    for name in CONSUMERS:
        sim.stop(name, ends=True)
    sim.make_all()
    assert sim.ledger.outstanding == sim.ledger.credits.outstanding_bytes == sim.used == 0
    assert sim.ledger.closed == sum(phase.clips for phase in sim.config.phases)


def test_a_trainer_that_has_stopped_calls_nobody_slow() -> None:
    """It counts as done with all epochs, and is far ahead of the other one for that alone."""
    sim = job(catch_up=2 * BOTH)
    work_until(sim, begin_of(sim, 1), RGB, FLOW)
    sim.stop(RGB)
    sim.run()
    check_at_rest(sim)
    assert sim.ledger.counts.redecoded == sim.ledger.counts.released == 0


def test_a_straggler_that_stops_is_owed_nothing_but_the_test() -> None:
    sim = job(catch_up=2 * BOTH)
    stop = begin_of(sim, 1)
    work_until(sim, stop, FLOW)
    work_until(sim, Position(7, 3), RGB)
    assert sim.ledger.state().catch_up_queues, "it was left behind"
    sim.stop(FLOW)
    sim.run()
    check_at_rest(sim)
    assert [p for p in sim.consumers[FLOW].trained if stop <= p < sim.config.rest] == []


def test_the_queue_of_a_straggler_that_stops_goes_on_after_the_epochs() -> None:
    sim = job(catch_up=2 * BOTH)
    work_until(sim, begin_of(sim, 1), FLOW)
    work_until(sim, Position(7, 3), RGB)
    sim.stop(FLOW)
    while not sim.events[0].HasField("stopped"):
        sim.deliver()
    sim.ledger.account(sim.events[0])
    [queue] = sim.ledger.state().catch_up_queues
    assert queue.consumer == FLOW
    assert Position(queue.order.phase_index, queue.order.begin) == sim.config.rest


def test_a_straggler_is_waited_for_when_the_one_ahead_of_it_stops() -> None:
    """The order of issue does not run on to the test, which would leave the straggler to its queue until the end."""
    sim = job(epochs=8, catch_up=2 * BOTH)
    work_until(sim, begin_of(sim, 1), FLOW)
    work_until(sim, Position(7, 3), RGB)
    assert [queue.consumer for queue in sim.ledger.state().catch_up_queues] == [FLOW]
    sim.stop(RGB)
    sim.make_all()
    assert sim.ledger.state().order.phase_index < sim.config.rest.phase_index
    sim.run()
    check_at_rest(sim)


def test_it_may_say_so_again_and_again() -> None:
    sim = job()
    work_until(sim, begin_of(sim, 1), RGB, FLOW)
    sim.stop(RGB)
    sim.make_all()
    before = sim.ledger.state()
    trainer = RGB.partition(".")[2]
    for position in (begin_of(sim, 1), begin_of(sim, 2)):
        assert sim.handle(Progress(stopped=StoppedEarly(trainer=trainer, position=position.message()))) == []
    assert sim.ledger.state() == before


@pytest.mark.parametrize("event", [
    StoppedEarly(trainer="nobody", position=Position(0, 0).message()),
    StoppedEarly(trainer="rgb", position=Position(8, 0).message()),
    StoppedEarly(trainer="rgb", position=Position(99, 0).message()),
])  # fmt: skip
def test_nonsense_changes_nothing(event: StoppedEarly) -> None:
    sim = job()
    before = sim.ledger.state()
    assert sim.handle(Progress(stopped=event)) == []
    assert sim.ledger.state() == before


@pytest.mark.parametrize("seed", often(range(40), 3))
def test_whoever_stops_and_whenever_the_job_comes_to_its_end(seed: int) -> None:
    chance = random.Random(seed)
    consumers = CONSUMERS | ({"trainer.other": "rgb"} if chance.random() < 0.5 else {})
    room = chance.choice([4, 8, 12])
    share = room // 2 // (len(consumers) - 1)
    config = ledger_config(
        epochs=3,
        clips=chance.choice([5, 8, 20]),
        consumers=consumers,
        budget=room * BOTH,
        unit_clips=2,
        locality=chance.choice([0, 0, 2]),
        catch_up=share * BOTH if share >= 2 and chance.random() < 0.6 else 0,
        test=chance.random() < 0.7,
    )
    sim = LedgerSimulation(config, bad=[0])
    for _ in range(250):
        name = chance.choice(sorted(sim.consumers))
        match chance.randrange(24):
            case 0 if chance.random() < 0.3:
                sim.stop(name)
            case 1:
                sim.checkpoint(name)
            case 2 if chance.random() < 0.3:
                sim.crash(name)
            case 3 if chance.random() < 0.3:
                sim.save_state()
            case 4 if chance.random() < 0.2:
                sim.restart_master()
            case 5 if chance.random() < 0.1:
                sim.stop_and_start()
            case 6 if chance.random() < 0.1:
                sim.flush_cache()
            case 7:
                sim.do(sim.ledger.stalled())
            case 8 | 9 | 10 if sim.seeds:
                sim.decode(chance.randrange(len(sim.seeds)))
            case 11 | 12 if sim.extractions:
                sim.extract(chance.randrange(len(sim.extractions)))
            case 13 | 14 | 15 if sim.events:
                sim.deliver(chance.randrange(len(sim.events)))
            case 16 | 17:
                for _ in range(10):
                    sim.work({name})
            case _:
                sim.take(name)
        check_account(sim)
    sim.run()
    check_account(sim)
    check_at_rest(sim)
