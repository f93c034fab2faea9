"""Trainers that are further than the ledger knows, or further back: nobody waits for what one has, or has not."""

from __future__ import annotations

import pytest

from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import CheckpointReady, LedgerState, Progress
from essp_engine.seeding.instructions import ReleaseClip
from essp_master.ledger.ledger import Ledger
from tests.harness.ledger_checks import check_account, check_at_rest
from tests.harness.ledger_config import CLIP_BYTES, CONSUMERS, STREAM_BYTES, ledger_config
from tests.harness.ledger_simulation import LedgerSimulation

BOTH = CLIP_BYTES + STREAM_BYTES
RGB, FLOW = CONSUMERS
END = Position(2, 0)


def job(room: int = 3, start: Position = Position(0, 0), batch: int = 1) -> LedgerSimulation:  # noqa: B008
    """Two trainers, and a budget that a few clips fill."""
    config = ledger_config(clips=12, budget=room * BOTH, unit_clips=1, start={FLOW: start})
    return LedgerSimulation(config, batch=batch)


def checkpoint(trainer: str, position: Position) -> Progress:
    return Progress(checkpoint=CheckpointReady(trainer=trainer, position=position.message()))


def test_a_trainer_that_was_done_in_the_run_before_occupies_nothing() -> None:
    sim = job()
    sim.stop_and_start(late={FLOW: END})
    told = sim.events.pop()
    sim.make_all()
    assert sim.ledger.credits.outstanding_bytes
    sim.receive(told)
    assert sim.ledger.finals == {"flow"}
    assert all(seed.consumers == (RGB,) for seed in sim.seeds), "nothing is made for it any more"
    sim.run()
    check_at_rest(sim)
    assert not sim.cache, "what was made for it is freed"


def test_a_trainer_that_saves_further_on_is_done_with_what_its_checkpoint_holds() -> None:
    sim = job()
    sim.stop_and_start(late={FLOW: Position(0, 8)})
    sim.do(sim.ledger.account(checkpoint("flow", Position(0, 8))))
    [told] = sim.ledger.phase_events
    assert told == (0, "trained_before", FLOW, list(range(8)))
    assert sim.ledger.account(checkpoint("flow", Position(0, 8))) == []
    assert not sim.ledger.phase_events, "said again, it changes nothing"
    sim.run()
    check_at_rest(sim)


def test_messages_that_are_lost_of_what_a_trainer_has_when_it_resumes_hold_nobody_up() -> None:
    sim = job(room=4, batch=4)
    sim.stop_and_start(late={FLOW: Position(1, 4)})
    told = sim.events.pop()
    assert told.checkpoint.resumed
    sim.loses = lambda consumer: consumer == FLOW
    while sim.make_some() or sim.take(RGB):
        pass
    sim.loses = lambda consumer: False
    assert sim.next_of(RGB) < Position(1, 0), "there is no room for its next batch"
    sim.receive(told)
    sim.run()
    check_at_rest(sim)


def test_what_is_in_the_making_is_freed_once_it_is_made() -> None:
    sim = job()
    sim.stop_and_start(late={FLOW: END})
    out = sim.ledger.account(sim.events.pop())
    assert not any(isinstance(instruction, ReleaseClip) for instruction in out)
    sim.do(out)
    sim.make_all()
    assert {names for names in sim.cache.values() if FLOW in names} == set()


def test_an_early_stop_says_that_all_before_it_is_trained() -> None:
    sim = job()
    sim.consumers[FLOW].stopped = Position(1, 0)
    sim.stop_and_start(late={FLOW: Position(1, 0)})
    assert sim.ledger.has_stopped("flow")
    assert sim.ledger.consumption[FLOW].position() == END, "nothing follows all epochs"
    sim.run()
    check_at_rest(sim)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_trainer_that_goes_on_before_the_start_gets_what_it_asks_for(restarts: bool) -> None:
    sim = job(start=Position(0, 8))
    sim.run()
    assert sim.consumers[FLOW].trained[0] == Position(0, 8)
    sim.crash(FLOW, older=Position(0, 2))
    while sim.events:
        sim.deliver()
    if restarts:
        sim.ledger = Ledger(sim.config, LedgerState.FromString(sim.ledger.state().SerializeToString()))
    sim.run()
    check_at_rest(sim)
    assert sim.consumers[FLOW].trained[0] == Position(0, 2)


def test_a_trainer_that_falls_back_gets_in_its_turn_what_was_not_issued_yet() -> None:
    sim = job()
    sim.stop_and_start(late={FLOW: Position(1, 4)})
    sim.receive(checkpoint("flow", Position(1, 4)))
    sim.crash(FLOW, older=Position(0, 6))
    while sim.events:
        sim.deliver()
        check_account(sim)
    assert sim.ledger.consumption[FLOW].position() == Position(0, 6)
    sim.run()
    check_at_rest(sim)


def test_a_checkpoint_of_a_trainer_or_place_that_is_not_changes_nothing_else() -> None:
    sim = job()
    sim.receive(checkpoint("nobody", END))
    sim.receive(Progress(checkpoint=CheckpointReady(trainer="flow")))
    assert sim.ledger.consumption[FLOW].total == 0
    sim.receive(checkpoint("flow", Position(99, 7)))
    check_account(sim)
    assert sim.ledger.consumption[FLOW].position() == END
