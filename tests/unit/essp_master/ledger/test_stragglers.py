"""Consumers that lag: they are left behind, lose nothing, and join the others again."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from essp_common.pb.v1.messages_pb2 import TRAIN, Progress, Trained
from essp_common.planning.position import Position
from tests.harness.ledger_checks import check_account, check_at_rest
from tests.harness.ledger_config import CLIP_BYTES, STREAM_BYTES, ledger_config
from tests.harness.ledger_world import World

BOTH = CLIP_BYTES + STREAM_BYTES
ROOM = 12
THREE = {"trainer.rgb": "rgb", "trainer.flow": "flow", "trainer.other": "rgb"}


def lagging(clips: int = 60, share: int = ROOM // 2, bad: tuple[int, ...] = (), **more: Any) -> World:
    return World(ledger_config(clips=clips, budget=ROOM * BOTH, unit_clips=2, catch_up=share * BOTH, **more), bad)


def work(world: World, steps: int, without: str = "") -> None:
    for _ in range(steps):
        world.work({without})
        check_account(world)


def test_a_consumer_that_stands_still_does_not_hold_back_the_other() -> None:
    world = lagging(clips=150)
    work(world, 200, without="trainer.flow")
    assert world.done("trainer.rgb")
    assert world.consumers["trainer.flow"].trained == []
    assert world.ledger.counts.released > 0
    world.run()
    check_at_rest(world)
    assert world.most_used <= ROOM * BOTH
    assert world.ledger.counts.redecoded <= 158, "each of them once at most"


def test_without_catch_up_queues_it_does() -> None:
    world = lagging(share=0)
    work(world, 200, without="trainer.flow")
    assert 0 < len(world.consumers["trainer.rgb"].trained) < 60
    assert world.ledger.counts.released == 0
    world.run()
    check_at_rest(world)


def test_a_consumer_whose_lag_is_small_is_not_left_behind() -> None:
    world = lagging()
    work(world, 400)
    check_at_rest(world)
    assert world.ledger.counts.released == 0
    assert world.ledger.counts.redecoded == 0


def test_both_progress_while_one_is_ten_times_slower() -> None:
    world = lagging(clips=120)
    fast, slow = world.consumers["trainer.rgb"], world.consumers["trainer.flow"]
    seen = []
    for _ in range(20):
        work(world, 9, without="trainer.flow")
        work(world, 1)
        seen.append((len(fast.trained), len(slow.trained)))
    assert len(fast.trained) > 80, "the slow one does not hold it back"
    assert all(b[1] > a[1] for a, b in pairwise(seen)), "the slow one never stands still"
    world.run()
    check_at_rest(world)


def test_a_straggler_that_speeds_up_catches_up_and_shares_again() -> None:
    world = lagging(clips=250)
    work(world, 60, without="trainer.flow")
    assert len(world.ledger.state().catch_up_queues) == 1
    fast, slow = world.consumers["trainer.rgb"], world.consumers["trainer.flow"]
    while len(slow.trained) < len(fast.trained) - 3:
        work(world, 1, without="trainer.rgb")
    work(world, 100)
    assert world.ledger.state().catch_up_queues == []
    before = world.ledger.counts.redecoded
    work(world, 50)
    assert world.ledger.counts.redecoded == before


def test_a_straggler_that_overtakes_the_other_makes_that_one_the_straggler() -> None:
    world = lagging(clips=150)
    work(world, 60, without="trainer.flow")
    work(world, 250, without="trainer.rgb")
    assert world.done("trainer.flow")
    assert [queue.consumer for queue in world.ledger.state().catch_up_queues] == ["trainer.rgb"]
    world.run()
    check_at_rest(world)


def test_three_consumers_each_keep_their_own_pace() -> None:
    world = lagging(clips=80, share=ROOM // 4, consumers=THREE)
    for step in range(250):
        slow = {"trainer.other"} if step % 4 else set()
        world.work(slow | ({"trainer.flow"} if step % 12 else set()))
        check_account(world)
    assert world.done("trainer.rgb")
    world.run()
    check_at_rest(world)


def test_a_straggler_gets_the_same_replacement_of_a_clip() -> None:
    world = lagging(videos=8, bad=(0, 3))
    work(world, 200, without="trainer.flow")
    world.run()
    check_at_rest(world)
    fast, slow = world.consumers["trainer.rgb"], world.consumers["trainer.flow"]
    assert any(clip.attempt for clip in fast.clips.values())
    assert slow.clips == fast.clips


def test_a_clip_that_was_released_after_its_consumer_had_taken_it_counts_once() -> None:
    world = lagging()
    work(world, 200, without="trainer.flow")
    outstanding = {Position.of(o.position) for o in world.ledger.state().outstanding}
    owed = next(i for i in range(60) if (0, i) not in outstanding)
    before = world.ledger.consumption["trainer.flow"].total, world.ledger.closed
    for _ in range(2):
        trained = Trained(purpose=TRAIN, epoch=0, consumer="trainer.flow", indices=[owed])
        world.do(world.handle(Progress(trained=trained)))
        check_account(world)
    assert (world.ledger.consumption["trainer.flow"].total, world.ledger.closed) == (before[0] + 1, before[1] + 1)


def test_a_consumer_that_starts_far_behind_does_not_hold_back_the_other() -> None:
    world = lagging(start={"trainer.rgb": Position(1, 2)})
    work(world, 200, without="trainer.flow")
    assert world.done("trainer.rgb")
    world.run()
    check_at_rest(world)
