"""Whatever happens to a job, and in whatever order, it comes to its end: random jobs, each named by its seed."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.harness.ledger_checks import check_account, check_at_rest
from tests.harness.ledger_config import CLIP_BYTES, CONSUMERS, STREAM_BYTES, ledger_config
from tests.harness.ledger_simulation import LedgerSimulation

BOTH = CLIP_BYTES + STREAM_BYTES


def random_simulation(chance: random.Random, epochs: int = 1, lead: int = 0) -> LedgerSimulation:
    """A job of two or three trainers, one of whose videos is damaged."""
    consumers = CONSUMERS | ({"trainer.other": "rgb"} if chance.random() < 0.5 else {})
    room = chance.choice([4, 8, 12])
    locality = chance.choice([0, 0, 3])
    share = room // 2 // (len(consumers) - 1) if chance.random() < 0.7 else 0
    config = ledger_config(
        epochs,
        clips=chance.choice([8, 20, 40]),
        consumers=consumers,
        budget=room * BOTH,
        unit_clips=2,
        locality=locality,
        kind=chance.choice(["class_balanced", "pooled"]) if locality else "class_balanced",
        catch_up=share * BOTH if share >= max(2, locality) and not lead else 0,
        lead=lead,
    )
    return LedgerSimulation(config, bad=[0])


def step(sim: LedgerSimulation, chance: random.Random) -> None:
    """One thing that can happen."""
    name = chance.choice(sorted(sim.consumers))

    def work() -> None:
        for _ in range(20):
            sim.work({name})

    events: list[Callable[[], object]] = [
        *[lambda: sim.take(name)] * 3,
        lambda: sim.checkpoint(name),
        lambda: sim.do(sim.ledger.stalled()),
    ]
    if chance.random() < 0.05:
        events += [sim.ledger.pause, lambda: sim.do(sim.ledger.resume())]
    if chance.random() < 0.25:
        events += [lambda: sim.crash(name), sim.flush_cache]
    if chance.random() < 0.3:
        events += [work] * 3
    if sim.seeds:
        events += [lambda: sim.decode(chance.randrange(len(sim.seeds)))] * 4
    if sim.extractions:
        events += [lambda: sim.extract(chance.randrange(len(sim.extractions)))] * 4
    if sim.events:
        events += [lambda: sim.deliver(chance.randrange(len(sim.events)))] * 8
    chance.choice(events)()


@pytest.mark.parametrize("seed", [*range(10), 332, 827])  # those two once stood still for ever
def test_a_job_comes_to_its_end(seed: int) -> None:
    chance = random.Random(seed)
    live_through(random_simulation(chance), chance)


@pytest.mark.parametrize("seed", range(10))
def test_a_job_whose_trainers_keep_within_a_pass_comes_to_its_end(seed: int) -> None:
    chance = random.Random(seed)
    live_through(random_simulation(chance, epochs=4, lead=1 + seed % 2), chance)


def live_through(sim: LedgerSimulation, chance: random.Random) -> None:
    """So many random events, and then the rest of the job."""
    for _ in range(200):
        step(sim, chance)
        check_account(sim)
    sim.do(sim.ledger.resume())
    sim.run()
    assert sim.end is None
    check_at_rest(sim)
