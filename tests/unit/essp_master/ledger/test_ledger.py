"""The ledger: what it issues, what it counts, and what never happens."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from essp_common.failures import stage_named
from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import (
    AGGREGATOR,
    DAMAGED,
    DECODER,
    ERROR,
    LOST,
    PREDICTOR,
    TRAIN,
    TRAINER,
    CheckpointReady,
    ClipRef,
    Failed,
    Finished,
    Made,
    Progress,
    Trained,
)
from essp_engine.seeding.instructions import CompleteJob, FailJob, IssueUnits
from tests.harness.ledger_checks import check_at_rest, every
from tests.harness.ledger_config import CLIP_BYTES, STREAM_BYTES, ledger_config
from tests.harness.ledger_simulation import LedgerSimulation

BOTH = CLIP_BYTES + STREAM_BYTES


def test_a_job_runs_to_its_end_in_order() -> None:
    sim = LedgerSimulation(ledger_config(epochs=2))
    sim.run()
    check_at_rest(sim)
    assert sim.issued == every(sim)
    assert sim.finished_phases == [0, 1, 2, 3]
    counts = sim.ledger.counts
    clips = len(every(sim))
    assert (counts.issued, counts.decoded, counts.extracted) == (clips, clips, clips)
    assert (counts.delivered, counts.lost, counts.reissued, counts.duplicates) == (2 * clips, 0, 0, 0)
    assert sim.cache == {}


def test_seeds_are_issued_as_far_as_the_budget_goes() -> None:
    sim = LedgerSimulation(ledger_config(clips=6, budget=3 * BOTH, unit_clips=1))
    assert len(sim.issued) == 3
    assert sim.ledger.out_of_credit
    assert sim.ledger.credits.outstanding_bytes == 3 * BOTH


def test_actual_bytes_make_room_for_more() -> None:
    sim = LedgerSimulation(ledger_config(clips=6, budget=3 * BOTH, unit_clips=1))
    index = sim.seeds[0].clip.index
    out = sim.handle(Progress(made=Made(purpose=TRAIN, indices=[index], bytes=[0])))
    assert out == [], "100 bytes are not enough for a clip"
    out = sim.handle(Progress(made=Made(purpose=TRAIN, indices=[1, 2], bytes=[0, CLIP_BYTES])))
    assert [type(i) for i in out] == [IssueUnits]


def test_the_backlog_is_what_each_pool_can_make_by_now() -> None:
    sim = LedgerSimulation(ledger_config(clips=6, videos=1, consumers={"trainer.flow": "flow"}, budget=6 * BOTH))
    found = [sim.ledger.backlog()]
    for work in (sim.decode, sim.deliver, sim.decode, sim.deliver, sim.extract, sim.deliver):
        work()
        found.append(sim.ledger.backlog())
    made = [(0, 0), (0, 0), (1, 0), (1, 0), (2, 0), (2, 0), (2, 1)]
    assert found == [{"decoder": 6 - clips, "flow": clips - flows} for clips, flows in made]


def test_what_was_read_before_it_was_reported_counts_as_made_once() -> None:
    """Workers report in batches, and a consumer may be done with a clip before the batch is out."""
    sim = LedgerSimulation(ledger_config())
    reports = []
    while sim.seeds or sim.extractions or sim.events:
        if sim.seeds:
            sim.decode()
        if sim.extractions:
            sim.extract()
        reports += [event for event in sim.events if event.HasField("made")]
        sim.events = [event for event in sim.events if not event.HasField("made")]
        for name in sim.consumers:
            sim.take(name)
        while any(event.HasField("trained") for event in sim.events):
            sim.deliver()
    assert reports
    for report in reports:
        assert sim.handle(report) == []
        assert sim.ledger.phase_events == []
    check_at_rest(sim)
    counts, clips = sim.ledger.counts, len(every(sim))
    assert (counts.decoded, counts.extracted, counts.delivered) == (clips, clips, 2 * clips)


def test_a_slow_consumer_holds_back_the_issue() -> None:
    sim = LedgerSimulation(ledger_config(clips=30, budget=5 * BOTH, unit_clips=1))
    for _ in range(300):
        sim.make_all()
        sim.take("trainer.rgb")  # as fast as it can; the other one never
    assert not sim.done("trainer.rgb")
    assert sim.most_used <= 5 * BOTH
    sim.run()
    check_at_rest(sim)
    assert sim.most_used <= 5 * BOTH


def test_phases_follow_one_another_without_a_barrier() -> None:
    sim = LedgerSimulation(ledger_config(epochs=2, clips=6))
    assert sim.issued == every(sim), "the budget holds them all"


def test_a_unit_is_never_larger_than_asked_for() -> None:
    sim = LedgerSimulation(ledger_config(clips=8, videos=2, kind="uniform", unit_clips=1))
    units = [i for i in sim.ledger.start() if isinstance(i, IssueUnits)]
    assert units == []
    assert len(sim.issued) == 8 + 4


def test_locality_brings_clips_of_a_video_together_and_changes_nothing_else() -> None:
    plain, local = LedgerSimulation(ledger_config(clips=24)), LedgerSimulation(ledger_config(clips=24, locality=12))
    assert {(s.phase_index, s.clip) for s in plain.seeds} == {(s.phase_index, s.clip) for s in local.seeds}
    videos = [seed.clip.video for seed in local.seeds if seed.phase_index == 0][:12]
    assert sum(a != b for a, b in pairwise(videos)) == len(set(videos)) - 1
    local.run()
    check_at_rest(local)


def test_a_bad_video_is_replaced_by_another_of_its_class() -> None:
    sim = LedgerSimulation(ledger_config(clips=20, videos=8), bad=[0])
    sim.run()
    check_at_rest(sim)
    counts = sim.ledger.counts
    assert counts.replaced > 0
    assert counts.failed >= counts.replaced
    assert not sim.ledger.phases[0].skipped
    assert set(sim.ledger.phases[1].skipped) == {0, 1}, "evaluation replaces nothing: the two clips of video 0"


def test_what_nothing_can_replace_is_skipped() -> None:
    sim = LedgerSimulation(ledger_config(clips=5, videos=4, replacements=1), bad=[0, 1, 2, 3])
    sim.run()
    check_at_rest(sim)
    assert sim.ledger.counts.skipped == len(every(sim))
    assert all(not consumer.trained for consumer in sim.consumers.values())


def test_a_stream_that_cannot_be_made_is_skipped_for_its_consumers_only() -> None:
    sim = LedgerSimulation(ledger_config(clips=12, videos=4), bad_streams=[1])
    sim.run()
    check_at_rest(sim)
    assert sim.consumers["trainer.rgb"].trained == every(sim)
    assert len(sim.consumers["trainer.flow"].trained) < len(every(sim))
    assert sim.cache == {}


def test_too_many_failures_fail_the_job_with_the_reason() -> None:
    sim = LedgerSimulation(
        ledger_config(clips=100, videos=10, dead_ratio=0.2, budget=4 * BOTH, unit_clips=1), bad=range(5)
    )
    sim.run()
    assert isinstance(sim.end, FailJob)
    assert "limits.dead_ratio (20 %)" in sim.end.reason
    assert "damaged" in sim.end.reason
    assert len(sim.issued) < 60, "it ends soon"
    assert sim.handle(Progress(trained=Trained())) == []


def test_where_none_may_fail_the_first_failure_ends_the_job() -> None:
    sim = LedgerSimulation(ledger_config(clips=100, videos=10, dead_ratio=0.0, budget=BOTH, unit_clips=1), bad=[0])
    sim.run()
    assert isinstance(sim.end, FailJob)
    assert sim.ledger.counts.failed == 1


def test_few_failures_in_few_clips_say_nothing_yet() -> None:
    sim = LedgerSimulation(ledger_config(clips=100, videos=10, dead_ratio=0.2, budget=BOTH, unit_clips=1), bad=[0])
    index = 0
    while sim.seeds and sim.end is None:
        if sim.seeds[0].clip.video == 0:
            index += 1
        sim.decode()
        while sim.extractions:
            sim.extract()
        while sim.events:
            sim.deliver()
        while any(sim.take(name) for name in sim.consumers):
            pass
        while sim.events:
            sim.deliver()
    assert index > 1
    assert sim.end is None, "1 in 10 is less than 20 %"


def test_consumers_start_where_their_checkpoints_are() -> None:
    start = {"trainer.rgb": Position(0, 4), "trainer.flow": Position(1, 2)}
    sim = LedgerSimulation(ledger_config(clips=6, start=start))
    wanted = {(s.phase_index, s.clip.index): s.consumers for s in sim.seeds}
    assert wanted[(0, 4)] == ("trainer.rgb",)
    assert wanted[(1, 1)] == ("trainer.rgb",)
    assert wanted[(1, 2)] == ("trainer.rgb", "trainer.flow")
    assert min(wanted) == (0, 4)
    sim.run()
    check_at_rest(sim)


def test_a_new_ledger_learns_what_trainers_did_while_the_master_was_away() -> None:
    sim = LedgerSimulation(ledger_config(clips=6))
    ahead = LedgerSimulation(ledger_config(clips=6))
    ahead.run()
    sim.consumers = ahead.consumers  # a new ledger, which knows checkpoints only
    for consumer in sim.consumers.values():
        consumer.left = False
    sim.run()
    assert sim.ledger.outstanding == 0
    assert sim.ledger.consumption["trainer.rgb"].total == len(every(sim))


def test_nothing_is_issued_while_paused() -> None:
    sim = LedgerSimulation(ledger_config(clips=6, budget=2 * BOTH, unit_clips=1))
    sim.ledger.pause()
    for _ in range(3):
        sim.make_all()
        for name in sim.consumers:
            sim.take(name)
    while sim.events:
        sim.deliver()
    assert len(sim.issued) == 2
    assert sim.ledger.stalled() == []
    sim.do(sim.ledger.resume())
    sim.run()
    check_at_rest(sim)


def test_the_watchdog_issues_again_what_no_worker_made() -> None:
    sim = LedgerSimulation(ledger_config(clips=3, videos=2))
    lost = len(sim.seeds)
    sim.seeds.clear()
    sim.do(sim.ledger.stalled())
    assert len(sim.seeds) == lost
    assert sim.ledger.counts.reissued == lost
    sim.run()
    check_at_rest(sim)


def test_what_is_known_already_does_not_hide_the_rest_of_a_report() -> None:
    sim = LedgerSimulation(ledger_config(clips=4, consumers={"trainer.rgb": "rgb"}))
    validation = sum(seed.phase_index == 1 for seed in sim.seeds)
    sim.seeds.clear()
    sim.do(sim.ledger.stalled())
    for indices in ([0], [0, 1, 0, 2, 3]):
        sim.handle(Progress(made=Made(purpose=TRAIN, indices=indices, bytes=[CLIP_BYTES] * len(indices))))
    assert sim.ledger.backlog() == {"decoder": validation}
    trained = []
    for indices in ([1], [1, 0, 1, 2, 3]):
        sim.handle(Progress(trained=Trained(purpose=TRAIN, consumer="trainer.rgb", indices=indices)))
        trained += [(event.kind, event.indices) for event in sim.ledger.phase_events]
    assert trained == [("trained", [1]), ("trained", [0, 2, 3])]
    counts = sim.ledger.counts
    assert sim.ledger.consumption["trainer.rgb"].done(0) == sim.ledger.phases[0].closed == 4
    assert (counts.decoded, counts.delivered, counts.duplicates) == (4, 4, 4)


def test_a_report_may_hold_clips_that_were_issued_anew_among_others() -> None:
    sim = LedgerSimulation(ledger_config(clips=4, consumers={"trainer.rgb": "rgb"}))
    sim.handle(Progress(made=Made(purpose=TRAIN, indices=range(4), bytes=[CLIP_BYTES] * 4)))
    anew = Failed(
        stage=TRAINER, kind=LOST, consumer="trainer.rgb", clip=ClipRef(purpose=TRAIN, index=2), reason="evicted"
    )
    sim.handle(Progress(failed=anew))
    sim.handle(Progress(made=Made(purpose=TRAIN, indices=[2], bytes=[CLIP_BYTES])))
    sim.handle(Progress(trained=Trained(purpose=TRAIN, consumer="trainer.rgb", indices=range(4))))
    assert [(event.kind, sorted(event.indices)) for event in sim.ledger.phase_events] == [("trained", [0, 1, 2, 3])]
    assert sim.ledger.consumption["trainer.rgb"].done(0) == sim.ledger.phases[0].closed == 4


def test_the_watchdog_leaves_alone_what_waits_for_its_consumers() -> None:
    sim = LedgerSimulation(ledger_config(clips=4, consumers={"trainer.rgb": "rgb"}, unit_clips=1))
    lost = [Position(seed.phase_index, seed.clip.index) for seed in sim.seeds[2:]]
    for _ in range(2):
        sim.decode()
        sim.deliver()
    sim.seeds.clear()
    sim.do(sim.ledger.stalled())
    assert sorted(Position(seed.phase_index, seed.clip.index) for seed in sim.seeds) == sorted(lost)
    sim.run()
    check_at_rest(sim)


def test_a_consumer_gets_what_its_batch_lacks_once_it_asks() -> None:
    """The bus has lost the message of a clip. It is done with none of those before it: it holds them."""
    sim = LedgerSimulation(ledger_config(clips=4, consumers={"trainer.rgb": "rgb"}), batch=4)
    sim.make_all()
    sim.lose_message("trainer.rgb", Position(0, 2))
    while sim.take("trainer.rgb"):
        pass
    assert sim.next_of("trainer.rgb") == (0, 2)
    sim.do(sim.ledger.stalled())
    assert sim.seeds == [], "all is made"
    sim.ask("trainer.rgb")
    sim.deliver()
    assert [(seed.phase_index, seed.clip.index) for seed in sim.seeds] == [(0, 2)]
    sim.run()
    check_at_rest(sim)


def test_a_final_checkpoint_is_noted_and_the_last_stage_completes_the_job() -> None:
    sim = LedgerSimulation(ledger_config())
    checkpoint = CheckpointReady(trainer="rgb", final=True)
    assert sim.handle(Progress(checkpoint=checkpoint)) == []
    assert sim.ledger.finals == {"rgb"}
    assert sim.handle(Progress(finished=Finished(stage=PREDICTOR))) == []
    done = sim.handle(Progress(finished=Finished(stage=AGGREGATOR, uri="file:///m", metrics={"top1": 1.0})))
    assert done == [CompleteJob("file:///m", {"top1": 1.0})]
    assert sim.ledger.ended


def test_without_a_last_stage_a_job_is_complete_when_every_clip_is_closed() -> None:
    sim = LedgerSimulation(replace(ledger_config(epochs=2, clips=6), last_stage=None), bad=[0])
    sim.run()
    check_at_rest(sim)
    assert sim.end == CompleteJob("", {})
    assert sim.ledger.closed == len(every(sim))
    assert sim.ledger.ended


@pytest.mark.parametrize("stage", ["trainer", "aggregator", "predictor", "consumer"])
def test_a_stage_that_gives_up_fails_the_job(stage: str) -> None:
    sim = LedgerSimulation(ledger_config())
    out = sim.handle(Progress(failed=Failed(stage=stage_named(stage), reason="loss is not finite", kind=ERROR)))
    assert out == [FailJob(f"{stage}: loss is not finite")]


def test_messages_about_what_is_not_there_change_nothing() -> None:
    sim = LedgerSimulation(ledger_config(clips=6, budget=2 * BOTH, unit_clips=1))
    before = sim.ledger.credits.outstanding_bytes
    strange = [
        Progress(),
        Progress(made=Made(purpose=TRAIN, epoch=99, indices=[0], bytes=[9])),
        Progress(made=Made(purpose=TRAIN, epoch=0, indices=[5], bytes=[9])),
        Progress(made=Made(purpose=TRAIN, epoch=0, indices=[0], attempts=[3], bytes=[9])),
        Progress(trained=Trained(purpose=TRAIN, epoch=0, consumer="trainer.other", indices=[0])),
        Progress(trained=Trained(purpose=TRAIN, epoch=0, consumer="trainer.rgb", indices=[5, 10**12])),
        Progress(failed=Failed(clip=ClipRef(purpose=TRAIN, epoch=0, index=5), stage=DECODER, kind=DAMAGED)),
        Progress(failed=Failed(clip=ClipRef(purpose=TRAIN, index=5), stage=TRAINER, kind=LOST, consumer="trainer.rgb")),
        Progress(failed=Failed(clip=ClipRef(purpose=TRAIN, index=0), stage=TRAINER, kind=LOST, consumer="nobody")),
    ]
    for event in strange:
        assert sim.handle(event) == []
    assert sim.ledger.credits.outstanding_bytes == before
    sim.run()
    check_at_rest(sim)
