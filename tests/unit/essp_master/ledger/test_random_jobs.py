"""Whatever happens to a job, and in whatever order, it comes to its end: random jobs, each named by its seed."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from essp_common.planning.position import Position
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
    if chance.random() < 0.1:
        events += [lambda: sim.ask(name)]
        if there := sorted(sim.consumers[name].waiting):
            events += [lambda: sim.lose_message(name, chance.choice(there))]
    if sim.events:
        events += [lambda: sim.deliver(chance.randrange(len(sim.events)))] * 8
    chance.choice(events)()


# In 16 and 84 a catch-up queue takes over a clip that was to be made again. The last two once stood still for ever.
@pytest.mark.parametrize("seed", [*range(10), 16, 84, 332, 827])
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


# In the last two, clips were preempted that a trainer had in hand.
@pytest.mark.parametrize("seed", [*range(10), 178, 268])
def test_a_job_whose_trainers_train_in_batches_comes_to_its_end(seed: int) -> None:
    chance = random.Random(seed)
    live_through(simulation_in_batches(chance), chance)


def simulation_in_batches(chance: random.Random) -> LedgerSimulation:
    """Two or three trainers, some of which go on from a checkpoint; often the budget has only just room for them."""
    consumers = CONSUMERS | ({"trainer.other": "rgb"} if chance.random() < 0.6 else {})
    batch, locality = chance.choice([1, 2, 3, 4]), chance.choice([0, 0, 3])
    at_once = batch + max(locality, 1) - 1
    room = chance.choice([at_once, at_once + 1, 2 * at_once, 3 * at_once, 8 * at_once])
    share = room // 2 // (len(consumers) - 1)
    lead, epochs, clips = chance.choice([0, 0, 0, 1]), chance.choice([1, 2]), chance.choice([8, 12, 20])
    start = {}
    if chance.random() < 0.5:
        batches = clips // batch
        start = {n: Position(0, batch * chance.randrange(batches)) for n in consumers if chance.random() < 0.5}
    config = ledger_config(
        epochs,
        clips,
        consumers=consumers,
        start=start,
        budget=room * BOTH,
        unit_clips=locality or min(2, room - at_once + 1),
        locality=locality,
        kind=chance.choice(["class_balanced", "pooled"]) if locality else "class_balanced",
        catch_up=share * BOTH if share >= at_once + batch and not lead else 0,
        lead=lead,
    )
    return LedgerSimulation(config, bad=[0], batch=batch)


@pytest.mark.parametrize("seed", range(40))
def test_loops_that_come_and_go_get_each_clip_once_from_where_they_begin(seed: int) -> None:
    chance = random.Random(seed)
    sim = simulation_with_loops(chance)
    loops = sorted(sim.config.loops)
    for _ in range(250):
        if chance.random() < 0.06:
            come_or_go(sim, chance, chance.choice(loops))
        elif chance.random() < 0.02:
            sim.save_state()
        elif chance.random() < 0.02:
            sim.restart_master()
            for name in loops:
                sim.give_sign_of_life(name)
        else:
            step(sim, chance)
        check_account(sim)
        if sim.end is not None:
            break
    for name in loops:
        if sim.consumers[name].absent and sim.end is None:
            sim.join(name, chance.choice([None, Position(0, chance.randrange(8))]))
    sim.do(sim.ledger.resume())
    sim.run()
    check_at_rest(sim)


@pytest.mark.parametrize("seed", range(40))
def test_a_loop_gets_its_clips_while_all_others_take_none(seed: int) -> None:
    chance = random.Random(seed)
    sim = simulation_with_loops(chance)
    loops = sorted(sim.config.loops)
    for _ in range(150):
        if chance.random() < 0.06:
            come_or_go(sim, chance, chance.choice(loops))
        else:
            step(sim, chance)
    sim.do(sim.ledger.resume())
    name = chance.choice(loops)
    if sim.end is None and sim.consumers[name].absent:
        sim.join(name, Position(0, chance.randrange(8)))
    others = set(sim.consumers) - {name}
    for _ in range(1_000):
        if sim.done(name) or sim.end is not None:
            break
        for _ in range(10):
            sim.work(others)
        sim.do(sim.ledger.stalled())
        sim.ask(name)
        check_account(sim)
    assert sim.done(name)


def simulation_with_loops(chance: random.Random) -> LedgerSimulation:
    """Two or three loops, with or without a trainer beside them."""
    trainers = {"trainer.rgb": "rgb"} if chance.random() < 0.5 else {}
    loops = dict(
        list({"consumer.a": "rgb", "consumer.b": "flow", "consumer.c": "rgb"}.items())[: 3 - chance.randrange(2)]
    )
    share, locality, batch = chance.choice([2, 3]), chance.choice([0, 0, 2, 4]), chance.choice([1, 1, 2])
    room = 2 * share * (len(trainers) + len(loops))
    config = ledger_config(
        2,
        clips=chance.choice([8, 20]),
        consumers=trainers | loops,
        budget=room * BOTH,
        unit_clips=locality or share + 1 - batch,
        locality=locality,
        kind=chance.choice(["class_balanced", "pooled"]) if locality else "class_balanced",
        catch_up=share * BOTH,
        catch_up_window=chance.choice([1, 2][: share + 1 - batch]) if locality else 0,
        loops=loops,
    )
    return LedgerSimulation(config, bad=[0], batch=batch)


def come_or_go(sim: LedgerSimulation, chance: random.Random, name: str) -> None:
    """A loop comes, leaves, or is killed and comes again where its state says."""
    consumer = sim.consumers[name]
    if not consumer.absent and chance.random() < 0.5:
        sim.leave(name)
        return
    phase_index = chance.randrange(len(sim.config.phases))
    anywhere = Position(phase_index, chance.randrange(sim.config.phases[phase_index].clips))
    start = sim.join(name, chance.choice([None, anywhere, consumer.position, Position(0, 0)]))
    assert start == sim.consumers[name].position
