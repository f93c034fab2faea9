"""Whatever happens to a job, and in whatever order, it comes to its end: random jobs, each named by its seed."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.harness.ledger_checks import check_account, check_at_rest
from tests.harness.ledger_config import CLIP_BYTES, CONSUMERS, STREAM_BYTES, ledger_config
from tests.harness.ledger_world import World

BOTH = CLIP_BYTES + STREAM_BYTES


def random_world(chance: random.Random) -> World:
    """A job of two or three trainers, one of whose videos is damaged."""
    consumers = CONSUMERS | ({"trainer.other": "rgb"} if chance.random() < 0.5 else {})
    room = chance.choice([4, 8, 12])
    locality = chance.choice([0, 0, 3])
    share = room // 2 // (len(consumers) - 1) if chance.random() < 0.7 else 0
    config = ledger_config(
        clips=chance.choice([8, 20, 40]),
        consumers=consumers,
        budget=room * BOTH,
        unit_clips=2,
        locality=locality,
        catch_up=share * BOTH if share >= max(2, locality) else 0,
    )
    return World(config, bad=[0])


def step(world: World, chance: random.Random) -> None:
    """One thing that can happen."""
    name = chance.choice(sorted(world.consumers))
    events: list[Callable[[], object]] = [
        *[lambda: world.take(name)] * 3,
        lambda: world.checkpoint(name),
        lambda: world.do(world.ledger.stalled()),
    ]
    if chance.random() < 0.05:
        events += [world.ledger.pause, lambda: world.do(world.ledger.resume())]
    if chance.random() < 0.25:
        events += [lambda: world.crash(name), world.flush_cache]
    if chance.random() < 0.3:
        events += [lambda: [world.work({name}) for _ in range(20)]] * 3
    if world.seeds:
        events += [lambda: world.decode(chance.randrange(len(world.seeds)))] * 4
    if world.extractions:
        events += [lambda: world.extract(chance.randrange(len(world.extractions)))] * 4
    if world.events:
        events += [lambda: world.deliver(chance.randrange(len(world.events)))] * 8
    chance.choice(events)()


@pytest.mark.parametrize("seed", [*range(10), 332, 827])  # those two once stood still for ever
def test_a_job_comes_to_its_end(seed: int) -> None:
    chance = random.Random(seed)
    world = random_world(chance)
    for _ in range(200):
        step(world, chance)
        check_account(world)
    world.do(world.ledger.resume())
    world.run()
    assert world.end is None
    check_at_rest(world)
