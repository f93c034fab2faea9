"""The ledger when bytes are lost or are in the way of others: what is made again, and what gives way."""

from __future__ import annotations

import pytest

from essp_common.pb.v1.messages_pb2 import LOST, TRAINER, Failed, Progress, Trained
from essp_common.planning.plan import PlannedClip
from essp_common.planning.position import Position
from essp_master.ledger.instructions import FailJob, Instruction, IssueUnit, ReleaseClip
from essp_master.ledger.outstanding import Entry, Outstanding
from essp_master.ledger.parts import ClipParts
from tests.harness.ledger_checks import check_at_rest
from tests.harness.ledger_terms import CLIP_BYTES, FEATURES, STREAM_BYTES, terms
from tests.harness.ledger_world import World

BOTH = CLIP_BYTES + STREAM_BYTES


@pytest.mark.parametrize("reader", ["trainer.rgb", "extractor"])
def test_bytes_that_are_missed_before_they_were_reported_are_made_again(reader: str) -> None:
    world = World(terms(clips=1, unit_clips=1))
    world.decode()
    (report,) = world.events
    world.events.clear()
    world.flush_cache()
    if reader == "extractor":
        world.extract()
    else:
        world.take(reader)
    place = world.issued[0]
    world.deliver()
    assert world.issued[1:].count(place) == 1
    world.hear(report)
    world.run()
    check_at_rest(world)
    assert world.ledger.counts.lost >= 1


def test_lost_bytes_are_made_again() -> None:
    world = World(terms(clips=4))
    world.make_all()
    world.flush_cache()
    world.run()
    check_at_rest(world)
    assert world.ledger.counts.lost > 0
    assert world.ledger.counts.reissued > 0


def test_bytes_that_are_lost_forever_fail_the_job() -> None:
    world = World(terms(clips=1, videos=2, consumers={"trainer.rgb": "rgb"}))
    while world.end is None:
        while world.seeds:
            world.decode()
        while world.events and world.end is None:
            world.deliver()
        world.flush_cache()
        world.take("trainer.rgb")
    assert isinstance(world.end, FailJob)
    assert "noeviction" in world.end.reason


def test_a_consumer_that_fell_back_gets_its_clips_again_though_the_budget_is_full() -> None:
    world = World(terms(clips=30, budget=4 * BOTH, unit_clips=1))
    world.checkpoint("trainer.flow")
    for _ in range(60):
        world.make_all()
        if len(world.consumers["trainer.rgb"].trained) < 15:
            world.take("trainer.rgb")
        if len(world.consumers["trainer.flow"].trained) < 12:
            world.take("trainer.flow")
    assert world.ledger.credits.outstanding_bytes > 0
    world.crash("trainer.flow")
    world.run()
    check_at_rest(world)
    assert world.ledger.counts.lost >= 12
    assert world.most_used <= 4 * BOTH


def test_a_consumer_whose_checkpoint_is_damaged_is_given_what_took_the_place_of_bad_clips() -> None:
    """It does not know which attempt it had trained. Some of these clips are there still, for the other consumer."""
    world = World(terms(clips=12, videos=6, replacements=1, dead_ratio=1.0), bad=[0, 1, 2])
    for _ in range(12):
        world.make_all()
        world.take("trainer.rgb")
        if len(world.consumers["trainer.flow"].trained) < 4:
            world.take("trainer.flow")
    world.make_all()
    fallen = world.consumers["trainer.rgb"]
    lost = [(0, index) for index in range(fallen.position.index)]
    assert 0 < world.ledger.counts.replaced < len(lost)
    assert list(world.ledger.phases[0].skipped)
    fallen.position, fallen.trained, fallen.unacked = Position(0, 0), [], []
    for number, index in lost:
        clip = world.terms.plan_of(number).clip(index, 0)
        failed = Failed(clip=world._ref(number, clip), stage=TRAINER, kind=LOST, consumer="trainer.rgb", stream="rgb")
        world.hear(Progress(failed=failed))
    world.run()
    check_at_rest(world)


def test_the_furthest_clip_gives_way_and_does_not_block_once_it_is_done_after_all() -> None:
    world = World(terms(clips=8, budget=2 * CLIP_BYTES, unit_clips=1, consumers={"trainer.rgb": "rgb"}))
    world.actual = lambda clip, part: CLIP_BYTES  # type: ignore[method-assign, assignment]
    world.make_all()
    world.take("trainer.rgb")
    world.make_all()
    assert world.issued == [(0, 0), (0, 1), (0, 2)]
    world.take("trainer.rgb")
    held = world.events.pop()  # clip 1 is trained, and the master has not heard of it
    world.crash("trainer.rgb")  # it begins anew: clip 0 is gone
    world.take("trainer.rgb")
    world.deliver()
    assert world.issued[-1] == (0, 0), "clip 2 gave way to it"
    assert world.ledger.credits.outstanding_bytes == 2 * CLIP_BYTES
    world.events.append(held)
    world.deliver()
    world.events.append(
        Progress(trained=Trained(purpose=1, epoch=0, consumer="trainer.rgb", indices=[2]))
    )  # so was clip 2
    world.deliver()
    assert world.issued[-1] == (0, 3), "nothing is owed any more, so there is room for something new"
    world.run()
    assert world.ledger.outstanding == 0


def test_clips_give_way_to_those_before_them_only() -> None:
    parts = ClipParts(FEATURES, {"trainer.rgb": "rgb"})
    outstanding = Outstanding(parts, [[CLIP_BYTES]], 2 * CLIP_BYTES)
    clips = [PlannedClip(index, 0, 0, 0, 0, 5, 1) for index in range(8)]
    assert outstanding.issue(0, clips[3:5], parts.everyone)
    for index in (3, 4):
        outstanding.made(present(outstanding.get((0, index))), 0, CLIP_BYTES)
    out: list[Instruction] = []
    outstanding.issue_again(outstanding.reopen((0, 7), clips[7]), parts.everyone)
    assert not outstanding.next_again(out)
    assert out == []
    outstanding.issue_again(outstanding.reopen((0, 1), clips[1]), parts.everyone)
    assert outstanding.next_again(out)
    names = ("trainer.rgb",)
    assert out == [ReleaseClip(0, clips[4], names), IssueUnit(0, (clips[1],), names)]


def test_what_waits_to_be_made_again_gives_way_too() -> None:
    parts = ClipParts(FEATURES, {"trainer.flow": "flow"})
    outstanding = Outstanding(parts, [[CLIP_BYTES, STREAM_BYTES]], 2 * BOTH)
    clips = [PlannedClip(index, 0, 0, 0, 0, 5, 1) for index in range(8)]
    assert outstanding.issue(0, clips[3:5], parts.everyone)
    for entry in outstanding.unmade():
        outstanding.issue_again(entry, parts.everyone)
    outstanding.issue_again(outstanding.reopen((0, 1), clips[1]), parts.everyone)
    out: list[Instruction] = []
    while outstanding.next_again(out):
        pass
    names = ("trainer.flow",)
    assert out == [ReleaseClip(0, clips[4], names), IssueUnit(0, (clips[1],), names), IssueUnit(0, (clips[3],), names)]
    assert outstanding.credits.outstanding_bytes == 2 * BOTH
    again = present(outstanding.get((0, 1)))
    outstanding.close(again)
    out.clear()
    assert outstanding.next_again(out)
    assert out == [IssueUnit(0, (clips[4],), names)]
    assert outstanding.credits.outstanding_bytes == 2 * BOTH, "the clip's own frames count again"


def present(entry: Entry | None) -> Entry:
    assert entry is not None
    return entry


def test_a_clip_that_waits_to_be_made_again_is_made_for_who_falls_back_too() -> None:
    world = World(terms(clips=1, unit_clips=1))
    world.make_all()
    world.take("trainer.rgb")
    world.deliver()
    world.flush_cache()
    world.crash("trainer.rgb")
    world.ledger.pause()
    world.take("trainer.flow")
    world.deliver()  # it has to be made again for flow, later
    world.take("trainer.rgb")
    world.deliver()  # and now for rgb
    world.do(world.ledger.resume())
    world.run()
    check_at_rest(world)
