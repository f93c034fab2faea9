"""The ledger when bytes are lost or run out: what is made again, and what is preempted."""

from __future__ import annotations

import pytest

from essp_common.pb.v1.messages_pb2 import LOST, TRAIN, TRAINER, Failed, Progress, Trained
from essp_common.planning.plan import PlannedClip
from essp_common.planning.position import Position
from essp_master.ledger.instructions import FailJob, Instruction, IssueUnit, ReleaseClip
from essp_master.ledger.outstanding import Entry, Outstanding
from essp_master.ledger.parts import ClipParts
from tests.harness.ledger_checks import check_at_rest
from tests.harness.ledger_config import CLIP_BYTES, FEATURES, STREAM_BYTES, ledger_config
from tests.harness.ledger_world import World

BOTH = CLIP_BYTES + STREAM_BYTES


@pytest.mark.parametrize("reader", ["trainer.rgb", "extractor"])
def test_bytes_that_are_lost_before_they_were_reported_are_made_again(reader: str) -> None:
    world = World(ledger_config(clips=1, unit_clips=1))
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
    world.receive(report)
    world.run()
    check_at_rest(world)
    assert world.ledger.counts.lost >= 1


def test_lost_bytes_are_made_again() -> None:
    world = World(ledger_config(clips=4))
    world.make_all()
    world.flush_cache()
    world.run()
    check_at_rest(world)
    assert world.ledger.counts.lost > 0
    assert world.ledger.counts.reissued > 0


def test_bytes_that_are_lost_forever_fail_the_job() -> None:
    world = World(ledger_config(clips=1, videos=2, consumers={"trainer.rgb": "rgb"}))
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
    world = World(ledger_config(clips=30, budget=4 * BOTH, unit_clips=1))
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


def test_a_consumer_whose_checkpoint_is_damaged_gets_the_replacements_of_bad_clips() -> None:
    """It does not know which attempts it had trained. Some clips are still outstanding for the other consumer."""
    world = World(ledger_config(clips=12, videos=6, replacements=1, dead_ratio=1.0), bad=[0, 1, 2])
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
        clip = world.config.plan_of(number).clip(index, 0)
        failed = Failed(clip=world._ref(number, clip), stage=TRAINER, kind=LOST, consumer="trainer.rgb", stream="rgb")
        world.receive(Progress(failed=failed))
    world.run()
    check_at_rest(world)


def test_the_furthest_clip_is_preempted_and_holds_up_nothing_once_it_is_done_after_all() -> None:
    world = World(ledger_config(clips=8, budget=2 * CLIP_BYTES, unit_clips=1, consumers={"trainer.rgb": "rgb"}))
    world.actual = lambda clip, part: CLIP_BYTES  # type: ignore[method-assign]
    world.make_all()
    world.take("trainer.rgb")
    world.make_all()
    assert world.issued == [(0, 0), (0, 1), (0, 2)]
    world.take("trainer.rgb")
    held = world.events.pop()  # clip 1 is trained, and the master does not know
    world.crash("trainer.rgb")  # it begins anew: clip 0 is gone
    world.take("trainer.rgb")
    world.deliver()
    assert world.issued[-1] == (0, 0), "it preempted clip 2"
    assert world.ledger.credits.outstanding_bytes == 2 * CLIP_BYTES
    world.events.append(held)
    world.deliver()
    world.events.append(
        Progress(trained=Trained(purpose=TRAIN, epoch=0, consumer="trainer.rgb", indices=[2]))
    )  # so is clip 2
    world.deliver()
    assert world.issued[-1] == (0, 3), "nothing waits to be made again, so there is room for a new clip"
    world.run()
    assert world.ledger.outstanding == 0


def test_a_clip_preempts_only_clips_beyond_it() -> None:
    parts = ClipParts(FEATURES, {"trainer.rgb": "rgb"})
    outstanding = Outstanding(parts, [[CLIP_BYTES]], 2 * CLIP_BYTES)
    clips = [PlannedClip(index, 0, 0, 0, 0, 5, 1) for index in range(8)]
    assert outstanding.issue(0, clips[3:5], parts.everyone)
    for index in (3, 4):
        outstanding.made(present(outstanding.get((0, index))), 0, CLIP_BYTES)
    out: list[Instruction] = []
    outstanding.request(outstanding.reopen(0, clips[7]), parts.everyone)
    assert not outstanding.reissue_next(out)
    assert out == []
    outstanding.request(outstanding.reopen(0, clips[1]), parts.everyone)
    assert outstanding.reissue_next(out)
    names = ("trainer.rgb",)
    assert out == [ReleaseClip(0, clips[4], names), IssueUnit(0, (clips[1],), names)]


def test_a_clip_in_line_is_preempted_too() -> None:
    parts = ClipParts(FEATURES, {"trainer.flow": "flow"})
    outstanding = Outstanding(parts, [[CLIP_BYTES, STREAM_BYTES]], 2 * BOTH)
    clips = [PlannedClip(index, 0, 0, 0, 0, 5, 1) for index in range(8)]
    assert outstanding.issue(0, clips[3:5], parts.everyone)
    for entry in outstanding.unmade():
        outstanding.request(entry, parts.everyone)
    outstanding.request(outstanding.reopen(0, clips[1]), parts.everyone)
    out: list[Instruction] = []
    while outstanding.reissue_next(out):
        pass
    names = ("trainer.flow",)
    assert out == [ReleaseClip(0, clips[4], names), IssueUnit(0, (clips[1],), names), IssueUnit(0, (clips[3],), names)]
    assert outstanding.credits.outstanding_bytes == 2 * BOTH
    again = present(outstanding.get((0, 1)))
    outstanding.close(again)
    out.clear()
    assert outstanding.reissue_next(out)
    assert out == [IssueUnit(0, (clips[4],), names)]
    assert outstanding.credits.outstanding_bytes == 2 * BOTH, "the clip's own frames count again"


def present(entry: Entry | None) -> Entry:
    assert entry is not None
    return entry


def test_a_clip_in_line_is_also_made_for_a_consumer_that_falls_back() -> None:
    world = World(ledger_config(clips=1, unit_clips=1))
    world.make_all()
    world.take("trainer.rgb")
    world.deliver()
    world.flush_cache()
    world.crash("trainer.rgb")
    world.ledger.pause()
    world.take("trainer.flow")
    world.deliver()  # it is in line for flow
    world.take("trainer.rgb")
    world.deliver()  # and for rgb, too
    world.do(world.ledger.resume())
    world.run()
    check_at_rest(world)
