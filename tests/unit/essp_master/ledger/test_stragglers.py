"""Consumers that lag: they are left behind, lose nothing, and join the others again."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import TRAIN, Progress, Trained
from essp_master.ledger.outstanding import outstanding_clips
from tests.harness.ledger_checks import check_account, check_at_rest
from tests.harness.ledger_config import CLIP_BYTES, STREAM_BYTES, ledger_config
from tests.harness.ledger_simulation import LedgerSimulation

BOTH = CLIP_BYTES + STREAM_BYTES
ROOM = 12
THREE = {"trainer.rgb": "rgb", "trainer.flow": "flow", "trainer.other": "rgb"}


def lagging(clips: int = 60, share: int = ROOM // 2, bad: tuple[int, ...] = (), **more: Any) -> LedgerSimulation:
    return LedgerSimulation(
        ledger_config(clips=clips, budget=ROOM * BOTH, unit_clips=2, catch_up=share * BOTH, **more), bad
    )


def work(sim: LedgerSimulation, steps: int, without: str = "") -> None:
    for _ in range(steps):
        sim.work({without})
        check_account(sim)


def test_a_consumer_that_stands_still_does_not_hold_back_the_other() -> None:
    sim = lagging(clips=150)
    work(sim, 200, without="trainer.flow")
    assert sim.done("trainer.rgb")
    assert sim.consumers["trainer.flow"].trained == []
    assert sim.ledger.counts.released > 0
    sim.run()
    check_at_rest(sim)
    assert sim.most_used <= ROOM * BOTH
    assert sim.ledger.counts.redecoded <= 158, "each of them once at most"


def test_without_catch_up_queues_it_does() -> None:
    sim = lagging(share=0)
    work(sim, 200, without="trainer.flow")
    assert 0 < len(sim.consumers["trainer.rgb"].trained) < 60
    assert sim.ledger.counts.released == 0
    sim.run()
    check_at_rest(sim)


def test_a_consumer_whose_lag_is_small_is_not_left_behind() -> None:
    sim = lagging()
    work(sim, 400)
    check_at_rest(sim)
    assert sim.ledger.counts.released == 0
    assert sim.ledger.counts.redecoded == 0


def test_both_progress_while_one_is_ten_times_slower() -> None:
    sim = lagging(clips=120)
    fast, slow = sim.consumers["trainer.rgb"], sim.consumers["trainer.flow"]
    seen = []
    for _ in range(20):
        work(sim, 9, without="trainer.flow")
        work(sim, 1)
        seen.append((len(fast.trained), len(slow.trained)))
    assert len(fast.trained) > 80, "the slow one does not hold it back"
    assert all(b[1] > a[1] for a, b in pairwise(seen)), "the slow one never stands still"
    sim.run()
    check_at_rest(sim)


def test_a_straggler_that_speeds_up_catches_up_and_shares_again() -> None:
    sim = lagging(clips=250)
    work(sim, 60, without="trainer.flow")
    assert len(sim.ledger.state().catch_up_queues) == 1
    fast, slow = sim.consumers["trainer.rgb"], sim.consumers["trainer.flow"]
    while len(slow.trained) < len(fast.trained) - 3:
        work(sim, 1, without="trainer.rgb")
    work(sim, 100)
    assert sim.ledger.state().catch_up_queues == []
    before = sim.ledger.counts.redecoded
    work(sim, 50)
    assert sim.ledger.counts.redecoded == before


def test_a_straggler_that_overtakes_the_other_makes_that_one_the_straggler() -> None:
    sim = lagging(clips=150)
    work(sim, 60, without="trainer.flow")
    work(sim, 250, without="trainer.rgb")
    assert sim.done("trainer.flow")
    assert [queue.consumer for queue in sim.ledger.state().catch_up_queues] == ["trainer.rgb"]
    sim.run()
    check_at_rest(sim)


def test_three_consumers_each_keep_their_own_pace() -> None:
    sim = lagging(clips=80, share=ROOM // 4, consumers=THREE)
    for step in range(250):
        slow = {"trainer.other"} if step % 4 else set()
        sim.work(slow | ({"trainer.flow"} if step % 12 else set()))
        check_account(sim)
    assert sim.done("trainer.rgb")
    sim.run()
    check_at_rest(sim)


def test_a_straggler_gets_the_same_replacement_of_a_clip() -> None:
    sim = lagging(videos=8, bad=(0, 3))
    work(sim, 200, without="trainer.flow")
    sim.run()
    check_at_rest(sim)
    fast, slow = sim.consumers["trainer.rgb"], sim.consumers["trainer.flow"]
    assert any(clip.attempt for clip in fast.clips.values())
    assert slow.clips == fast.clips


def test_a_clip_that_was_released_after_its_consumer_had_taken_it_counts_once() -> None:
    sim = lagging()
    work(sim, 200, without="trainer.flow")
    outstanding = {Position.of(o.position) for o in outstanding_clips(sim.ledger.state())}
    owed = next(i for i in range(60) if (0, i) not in outstanding)
    before = sim.ledger.consumption["trainer.flow"].total, sim.ledger.closed
    for _ in range(2):
        trained = Trained(purpose=TRAIN, epoch=0, consumer="trainer.flow", indices=[owed])
        sim.do(sim.handle(Progress(trained=trained)))
        check_account(sim)
    assert (sim.ledger.consumption["trainer.flow"].total, sim.ledger.closed) == (before[0] + 1, before[1] + 1)


def test_a_consumer_that_starts_far_behind_does_not_hold_back_the_other() -> None:
    sim = lagging(start={"trainer.rgb": Position(1, 2)})
    work(sim, 200, without="trainer.flow")
    assert sim.done("trainer.rgb")
    sim.run()
    check_at_rest(sim)
