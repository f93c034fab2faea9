"""The ledger when bytes are lost or run out: what is made again, and what is preempted."""

from __future__ import annotations

import pytest

from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import EXTRACTOR, LOST, TRAIN, TRAINER, ClipRef, Failed, Progress, Trained
from essp_engine.planning.planned_clip import PlannedClip
from essp_engine.seeding.clip_parts import ClipParts
from essp_engine.seeding.instructions import FailJob, Instruction, IssueUnits, ReleaseClip
from essp_master.ledger.outstanding import Entry, Outstanding
from tests.harness.ledger_checks import check_at_rest
from tests.harness.ledger_config import CLIP_BYTES, FEATURES, STREAM_BYTES, ledger_config
from tests.harness.ledger_simulation import LedgerSimulation

BOTH = CLIP_BYTES + STREAM_BYTES


@pytest.mark.parametrize("reader", ["trainer.rgb", "extractor"])
def test_bytes_that_are_lost_before_they_were_reported_are_made_again(reader: str) -> None:
    sim = LedgerSimulation(ledger_config(clips=1, unit_clips=1))
    sim.decode()
    (report,) = sim.events
    sim.events.clear()
    sim.flush_cache()
    if reader == "extractor":
        sim.extract()
    else:
        sim.take(reader)
    place = sim.issued[0]
    sim.deliver()
    assert sim.issued[1:].count(place) == 1
    sim.receive(report)
    sim.run()
    check_at_rest(sim)
    assert sim.ledger.counts.lost >= 1


def awaited(sim: LedgerSimulation, consumer: str, place: Position) -> list[Position]:
    """What is issued again when a consumer asks for a clip that has not come."""
    plan, before = sim.config.phases[place.phase_index], len(sim.issued)
    clip = ClipRef(purpose=plan.purpose, epoch=plan.epoch, index=place.index)
    stream = sim.consumers[consumer].stream
    failed = Failed(clip=clip, stage=TRAINER, kind=LOST, stream=stream, consumer=consumer, awaited=True)
    for _ in range(2):  # it asks until it comes; of the second time the answer is on its way
        sim.receive(Progress(failed=failed))
    return sim.issued[before:]


@pytest.mark.parametrize("consumer", ["trainer.rgb", "trainer.flow"])
def test_a_clip_whose_bytes_vanish_twice_is_made_again_although_the_second_loss_counted_as_the_first(
    consumer: str,
) -> None:
    """The reader learns from the message that the clip was made again, and finds its bytes gone before the ledger has
    heard that they were there: the ledger takes that for a late word of the first loss. The reader of a batch has the
    clips before it in hand, so a stalled job has those made again, for ever."""
    sim = LedgerSimulation(ledger_config(clips=1, videos=2, consumers={consumer: consumer.partition(".")[2]}))
    place = sim.issued[0]
    for seed in (0, -1):
        sim.decode(seed)
        if sim.extractions:
            sim.extract()
        reports, sim.events = sim.events, []
        sim.flush_cache()
        sim.take(consumer)
        sim.deliver()
        assert awaited(sim, consumer, place) == []
    assert sim.issued.count(place) == 2
    for report in reports:
        sim.receive(report)
    assert awaited(sim, consumer, place) == [place]
    sim.run()
    check_at_rest(sim)


def test_clips_of_another_release_are_made_again_however_often_they_come() -> None:
    """An extractor of a new release finds the clips of a decoder of an old one, until that has left."""
    sim = LedgerSimulation(ledger_config(clips=1, videos=2, consumers={"trainer.flow": "flow"}))
    before = len(sim.issued)
    for _ in range(20):
        sim.decode(-1)
        seed, _ = sim.extractions.pop()
        plan = sim.config.phases[seed.phase_index]
        clip = ClipRef(purpose=plan.purpose, epoch=plan.epoch, index=seed.clip.index)
        failed = Failed(clip=clip, stage=EXTRACTOR, kind=LOST, stream="flow", awaited=True)
        sim.deliver()
        sim.receive(Progress(failed=failed))
    assert sim.issued[before:] == [Position(seed.phase_index, seed.clip.index)] * 20
    assert sim.ledger.counts.lost == 0
    failed.clip.attempt = 7
    sim.receive(Progress(failed=failed))
    assert len(sim.issued) == before + 20, "of an attempt that is not this one"
    sim.run()
    check_at_rest(sim)


def test_what_is_on_its_way_is_not_made_again_for_who_waits_for_it() -> None:
    sim = LedgerSimulation(ledger_config(clips=30, budget=4 * BOTH, unit_clips=1))
    issued = len(sim.issued)
    for index in (0, 3, 4, 29):
        assert awaited(sim, "trainer.flow", Position(0, index)) == []
    sim.decode()
    sim.deliver()
    assert awaited(sim, "trainer.flow", sim.issued[0]) == [], "its stream is not made"
    assert awaited(sim, "trainer.rgb", sim.issued[0]) == [sim.issued[0]]
    assert awaited(sim, "trainer.rgb", Position(1, 10**6)) == []
    assert awaited(sim, "trainer.rgb", Position(0, 29)) == []
    sim.run()
    check_at_rest(sim)
    assert len(sim.issued) == sum(phase.clips for phase in sim.config.phases) + 1
    assert issued == 4


def test_a_clip_that_counts_as_trained_is_made_for_who_waits_for_it() -> None:
    """Whatever has become of the word that it fell back; also where others have it yet to train."""
    for others_have_trained in (False, True):
        sim = LedgerSimulation(ledger_config(clips=4))
        sim.make_all()
        for _ in range(2):
            sim.take("trainer.flow")
            if others_have_trained:
                sim.take("trainer.rgb")
        sim.make_all()
        assert awaited(sim, "trainer.flow", Position(0, 1)) == [Position(0, 1)]
        assert awaited(sim, "trainer.flow", Position(0, 2)) == [Position(0, 2)]
        sim.run()
        check_at_rest(sim)


def test_the_replacement_of_a_bad_clip_is_made_again_for_who_waits_for_it() -> None:
    """It cannot know which attempt has come to be."""
    config = ledger_config(clips=1, unit_clips=1)
    sim = LedgerSimulation(config, bad={config.plan_of(0).clip(0, 0).video})
    sim.make_all()
    assert sim.ledger.counts.replaced > 0
    assert awaited(sim, "trainer.rgb", Position(0, 0)) == [Position(0, 0)]
    assert sim.seeds[-1].clip.attempt > 0
    sim.run()
    check_at_rest(sim)


def test_who_asks_again_and_again_does_not_fail_the_job() -> None:
    """The messages may be where the consumer cannot read them for now."""
    sim = LedgerSimulation(ledger_config(clips=1, unit_clips=1))
    for _ in range(20):
        sim.make_all()
        assert awaited(sim, "trainer.rgb", Position(0, 0)) == [Position(0, 0)]
    assert (sim.end, sim.ledger.counts.lost) == (None, 0)
    sim.run()
    check_at_rest(sim)


def test_lost_bytes_are_made_again() -> None:
    sim = LedgerSimulation(ledger_config(clips=4))
    sim.make_all()
    sim.flush_cache()
    sim.run()
    check_at_rest(sim)
    assert sim.ledger.counts.lost > 0
    assert sim.ledger.counts.reissued > 0


def test_bytes_that_are_lost_forever_fail_the_job() -> None:
    sim = LedgerSimulation(ledger_config(clips=1, videos=2, consumers={"trainer.rgb": "rgb"}))
    while sim.end is None:
        while sim.seeds:
            sim.decode()
        while sim.events and sim.end is None:
            sim.deliver()
        sim.flush_cache()
        sim.take("trainer.rgb")
    assert isinstance(sim.end, FailJob)
    assert "noeviction" in sim.end.reason


def test_a_consumer_that_fell_back_gets_its_clips_again_though_the_budget_is_full() -> None:
    sim = LedgerSimulation(ledger_config(clips=30, budget=4 * BOTH, unit_clips=1))
    sim.checkpoint("trainer.flow")
    for _ in range(60):
        sim.make_all()
        if len(sim.consumers["trainer.rgb"].trained) < 15:
            sim.take("trainer.rgb")
        if len(sim.consumers["trainer.flow"].trained) < 12:
            sim.take("trainer.flow")
    assert sim.ledger.credits.outstanding_bytes > 0
    sim.crash("trainer.flow")
    sim.run()
    check_at_rest(sim)
    assert sim.ledger.counts.lost >= 12
    assert sim.most_used <= 4 * BOTH


def test_a_consumer_whose_checkpoint_is_damaged_gets_the_replacements_of_bad_clips() -> None:
    """It does not know which attempts it had trained. Some clips are still outstanding for the other consumer."""
    sim = LedgerSimulation(ledger_config(clips=12, videos=6, replacements=1, dead_ratio=1.0), bad=[0, 1, 2])
    for _ in range(12):
        sim.make_all()
        sim.take("trainer.rgb")
        if len(sim.consumers["trainer.flow"].trained) < 4:
            sim.take("trainer.flow")
    sim.make_all()
    fallen = sim.consumers["trainer.rgb"]
    lost = [(0, index) for index in range(fallen.position.index)]
    assert 0 < sim.ledger.counts.replaced < len(lost)
    assert list(sim.ledger.phases[0].skipped)
    fallen.position, fallen.trained, fallen.unacked = Position(0, 0), [], []
    for number, index in lost:
        clip = sim.config.plan_of(number).clip(index, 0)
        failed = Failed(clip=sim._ref(number, clip), stage=TRAINER, kind=LOST, consumer="trainer.rgb", stream="rgb")
        sim.receive(Progress(failed=failed))
    sim.run()
    check_at_rest(sim)


def test_the_furthest_clip_is_preempted_and_holds_up_nothing_once_it_is_done_after_all() -> None:
    sim = LedgerSimulation(
        ledger_config(clips=8, budget=2 * CLIP_BYTES, unit_clips=1, consumers={"trainer.rgb": "rgb"})
    )
    sim.actual = lambda clip, part: CLIP_BYTES  # type: ignore[method-assign]
    sim.make_all()
    sim.take("trainer.rgb")
    sim.make_all()
    assert sim.issued == [(0, 0), (0, 1), (0, 2)]
    sim.take("trainer.rgb")
    held = sim.events.pop()  # clip 1 is trained, and the master does not know
    sim.crash("trainer.rgb")  # it begins anew: clip 0 is gone
    sim.take("trainer.rgb")
    sim.deliver()
    assert sim.issued[-1] == (0, 0), "it preempted clip 2"
    assert sim.ledger.credits.outstanding_bytes == 2 * CLIP_BYTES
    sim.events.append(held)
    sim.deliver()
    sim.events.append(
        Progress(trained=Trained(purpose=TRAIN, epoch=0, consumer="trainer.rgb", indices=[2]))
    )  # so is clip 2
    sim.deliver()
    assert sim.issued[-1] == (0, 3), "nothing waits to be made again, so there is room for a new clip"
    sim.run()
    assert sim.ledger.outstanding == 0


def test_a_preempted_clip_that_a_consumer_has_in_hand_does_not_hold_up_the_rest_of_its_batch() -> None:
    """It has read the clip, so it never asks for it: it waits for the next one, which is not issued."""
    config = ledger_config(clips=9, budget=4 * CLIP_BYTES, unit_clips=1, consumers={"trainer.rgb": "rgb"})
    sim = LedgerSimulation(config, batch=3)
    sim.actual = lambda clip, part: CLIP_BYTES  # type: ignore[method-assign]
    sim.make_all()
    for _ in range(3):
        sim.take("trainer.rgb")
    sim.deliver()
    while sim.seeds:
        sim.decode()
        sim.deliver(len(sim.events) - 1)
    while sim.take("trainer.rgb"):
        pass
    assert (sim.issued[-1], sim.next_of("trainer.rgb")) == ((0, 4), (0, 5)), "two of three are in hand"
    clip = ClipRef(purpose=TRAIN, index=0)
    again = Failed(clip=clip, stage=TRAINER, kind=LOST, consumer="trainer.rgb", stream="rgb", reason="said twice")
    sim.receive(Progress(failed=again))
    assert sim.issued[-1] == (0, 0), "it preempted a clip of the batch"
    sim.run()
    check_at_rest(sim)


def test_a_clip_preempts_only_clips_beyond_it() -> None:
    parts = ClipParts(FEATURES, {"trainer.rgb": "rgb"})
    outstanding = Outstanding(parts, [[CLIP_BYTES]], 2 * CLIP_BYTES)
    clips = [PlannedClip(index, 0, 0, 0, 0, 5, 1) for index in range(8)]
    outstanding.issue(0, clips[3:5], parts.everyone)
    for index in (3, 4):
        outstanding.made(present(outstanding.get((0, index))), 0, CLIP_BYTES)
    out: list[Instruction] = []
    outstanding.request(outstanding.reopen(0, clips[7]), parts.everyone)
    assert not outstanding.reissue(out)
    assert out == []
    outstanding.request(outstanding.reopen(0, clips[1]), parts.everyone)
    assert outstanding.reissue(out)
    names = ("trainer.rgb",)
    assert out == [ReleaseClip(0, clips[4], names), IssueUnits(0, ((clips[1],),), names)]


def test_a_clip_in_line_is_preempted_too() -> None:
    parts = ClipParts(FEATURES, {"trainer.flow": "flow"})
    outstanding = Outstanding(parts, [[CLIP_BYTES, STREAM_BYTES]], 2 * BOTH)
    clips = [PlannedClip(index, 0, 0, 0, 0, 5, 1) for index in range(8)]
    outstanding.issue(0, clips[3:5], parts.everyone)
    for entry in outstanding.unmade():
        outstanding.request(entry, parts.everyone)
    outstanding.request(outstanding.reopen(0, clips[1]), parts.everyone)
    out: list[Instruction] = []
    assert outstanding.reissue(out) == 2
    names = ("trainer.flow",)
    assert out == [
        ReleaseClip(0, clips[4], names),
        IssueUnits(0, ((clips[1],),), names),
        IssueUnits(0, ((clips[3],),), names),
    ]
    assert outstanding.credits.outstanding_bytes == 2 * BOTH
    again = present(outstanding.get((0, 1)))
    outstanding.close(again)
    out.clear()
    assert outstanding.reissue(out)
    assert out == [IssueUnits(0, ((clips[4],),), names)]
    assert outstanding.credits.outstanding_bytes == 2 * BOTH, "the clip's own frames count again"


def present(entry: Entry | None) -> Entry:
    assert entry is not None
    return entry


def test_a_clip_in_line_is_also_made_for_a_consumer_that_falls_back() -> None:
    sim = LedgerSimulation(ledger_config(clips=1, unit_clips=1))
    sim.make_all()
    sim.take("trainer.rgb")
    sim.deliver()
    sim.flush_cache()
    sim.crash("trainer.rgb")
    sim.ledger.pause()
    sim.take("trainer.flow")
    sim.deliver()  # it is in line for flow
    sim.take("trainer.rgb")
    sim.deliver()  # and for rgb, too
    sim.do(sim.ledger.resume())
    sim.run()
    check_at_rest(sim)
