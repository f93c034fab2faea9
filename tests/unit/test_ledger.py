"""The ledger: what it issues, what it counts, and what can never happen to it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from essp_common.layout import Position
from essp_common.pb.v1.messages_pb2 import CheckpointReady, ClipRef, Failed, Finished, Made, Progress, Trained
from essp_common.plan import PlannedClip
from services.master.indices import IndexSet
from services.master.instructions import CompleteJob, FailJob, Instruction, IssueUnit, ReleaseClip
from services.master.outstanding import Entry, Outstanding
from services.master.parts import ClipParts
from tests.unit.ledger_world import CLIP_BYTES, CONSUMERS, FEATURES, STREAM_BYTES, World, terms

BOTH = CLIP_BYTES + STREAM_BYTES


def every(world: World) -> list[tuple[int, int]]:
    return [(n, i) for n, plan in enumerate(world.terms.passes) for i in range(plan.clips)]


def check_at_rest(world: World) -> None:
    """Everything is accounted for, and nothing is left."""
    ledger = world.ledger
    for name, consumer in world.consumers.items():
        start = (consumer.position.pass_index, 0)
        assert start[0] >= len(world.terms.passes) - 1
        begun = world.terms.start.get(name, Position(0, 0))
        wanted = [p for p in every(world) if p >= (begun.pass_index, begun.clips)]
        skipped = {(n, i) for n, account in enumerate(ledger.passes) for i in account.skipped}
        assert sorted(set(consumer.trained) | skipped & set(wanted)) == wanted, name
        assert len(set(consumer.trained)) == len(consumer.trained), "trained once"
        assert consumer.trained == sorted(consumer.trained), "in order"
        assert ledger.consumption[name].total == len(every(world))
    assert ledger.outstanding == 0
    assert ledger.credits.outstanding_bytes == 0
    assert [a.closed for a in ledger.passes] == [plan.clips for plan in world.terms.passes]


def check_account(world: World) -> None:
    """What holds at any moment, read off the ledger's state."""
    ledger, state = world.ledger, world.ledger.state()
    credits = ledger.credits
    assert sum(sum(o.sizes) for o in state.outstanding) == credits.outstanding_bytes <= credits.budget_bytes
    left = {(o.place.pass_index, o.place.index): o.left for o in state.outstanding}
    assert len(left) == len(state.outstanding)
    counted = {(o.place.pass_index, o.place.index) for o in state.outstanding if not o.again}
    issued = IndexSet.of(state.order.issued)
    lanes = {lane.consumer for lane in state.lanes}
    unfinished = [0] * len(ledger.passes)
    for number, index in every(world):
        before = (number, index) < (state.order.pass_index, state.order.begin)
        if not before and not (number == state.order.pass_index and index in issued):
            assert (number, index) not in left, "outstanding, and not issued"
            continue
        waiting = {name for name, c in ledger.consumption.items() if not c.has(number, index)}
        served = set(world.terms.parts.names(left.get((number, index), 0)))
        assert waiting - served <= lanes, "everyone has it, is served or will be in a lane"
        unfinished[number] += bool(waiting) or (number, index) in counted
    assert [a.issued - a.closed for a in ledger.passes] == unfinished, "each clip is counted once"


def test_a_job_runs_to_its_end_in_order() -> None:
    world = World(terms(epochs=2))
    world.run()
    check_at_rest(world)
    assert world.issued == every(world)
    assert world.finished_passes == [0, 1, 2, 3]
    counts = world.ledger.counts
    clips = len(every(world))
    assert (counts.issued, counts.decoded, counts.extracted) == (clips, clips, clips)
    assert (counts.delivered, counts.lost, counts.reissued, counts.duplicates) == (2 * clips, 0, 0, 0)
    assert world.cache == {}


def test_seeds_are_issued_as_far_as_the_budget_goes() -> None:
    world = World(terms(clips=6, budget=3 * BOTH, unit_clips=1))
    assert len(world.issued) == 3
    assert world.ledger.out_of_credit
    assert world.ledger.credits.outstanding_bytes == 3 * BOTH


def test_actual_bytes_make_room_for_more() -> None:
    world = World(terms(clips=6, budget=3 * BOTH, unit_clips=1))
    index = world.seeds[0].clip.index
    out = world.ledger.handle(Progress(made=Made(purpose=1, indices=[index], bytes=[0])))
    assert out == [], "100 bytes are not enough for a clip"
    out = world.ledger.handle(Progress(made=Made(purpose=1, indices=[1, 2], bytes=[0, CLIP_BYTES])))
    assert [type(i) for i in out] == [IssueUnit]


def test_what_was_read_before_it_was_reported_counts_as_made_once() -> None:
    """Workers report in batches, and a consumer may be done with a clip before the batch is out."""
    world = World(terms())
    reports = []
    while world.seeds or world.extractions or world.events:
        if world.seeds:
            world.decode()
        if world.extractions:
            world.extract()
        reports += [event for event in world.events if event.HasField("made")]
        world.events = [event for event in world.events if not event.HasField("made")]
        for name in world.consumers:
            world.take(name)
        while any(event.HasField("trained") for event in world.events):
            world.deliver()
    assert reports
    for report in reports:
        assert world.ledger.handle(report) == []
        assert world.ledger.news == []
    check_at_rest(world)
    counts, clips = world.ledger.counts, len(every(world))
    assert (counts.decoded, counts.extracted, counts.delivered) == (clips, clips, 2 * clips)


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


def test_a_slow_consumer_holds_back_the_issue() -> None:
    world = World(terms(clips=30, budget=5 * BOTH, unit_clips=1))
    for _ in range(300):
        while world.seeds or world.extractions or world.events:
            for work in (world.decode if world.seeds else None, world.extract if world.extractions else None):
                if work:
                    work()
            while world.events:
                world.deliver()
        world.take("trainer.rgb")  # as fast as it can; the other one never
    assert not world.done("trainer.rgb")
    assert world.most_used <= 5 * BOTH
    world.run()
    check_at_rest(world)
    assert world.most_used <= 5 * BOTH


def test_all_passes_follow_without_a_barrier() -> None:
    world = World(terms(epochs=2, clips=6))
    assert world.issued == every(world), "a large budget holds them all"


def test_a_unit_is_never_larger_than_asked_for() -> None:
    world = World(terms(clips=8, videos=2, kind="uniform", unit_clips=1))
    units = [i for i in world.ledger.start() if isinstance(i, IssueUnit)]
    assert units == []
    assert len(world.issued) == 8 + 4


def test_locality_brings_clips_of_a_video_together_and_changes_nothing_else() -> None:
    plain, local = World(terms(clips=24)), World(terms(clips=24, locality=12))
    assert {(s.number, s.clip) for s in plain.seeds} == {(s.number, s.clip) for s in local.seeds}
    videos = [seed.clip.video for seed in local.seeds if seed.number == 0][:12]
    assert sum(a != b for a, b in pairwise(videos)) == len(set(videos)) - 1
    local.run()
    check_at_rest(local)


def test_a_bad_video_is_replaced_by_another_of_its_class() -> None:
    world = World(terms(clips=20, videos=8), bad=[0])
    world.run()
    check_at_rest(world)
    counts = world.ledger.counts
    assert counts.replaced > 0
    assert counts.failed >= counts.replaced
    assert not world.ledger.passes[0].skipped
    assert world.ledger.passes[1].skipped == {0, 1}, "evaluation replaces nothing: the two clips of video 0"


def test_what_nothing_can_replace_is_skipped() -> None:
    world = World(terms(clips=5, videos=4, replacements=1), bad=[0, 1, 2, 3])
    world.run()
    check_at_rest(world)
    assert world.ledger.counts.skipped == len(every(world))
    assert all(not consumer.trained for consumer in world.consumers.values())


def test_a_stream_that_cannot_be_made_is_skipped_for_its_consumers_only() -> None:
    world = World(terms(clips=12, videos=4), bad_streams=[1])
    world.run()
    check_at_rest(world)
    assert world.consumers["trainer.rgb"].trained == every(world)
    assert len(world.consumers["trainer.flow"].trained) < len(every(world))
    assert world.cache == {}


def test_too_many_failures_fail_the_job_with_the_reason() -> None:
    world = World(terms(clips=100, videos=10, dead_ratio=0.2, budget=4 * BOTH, unit_clips=1), bad=range(5))
    world.run()
    assert isinstance(world.end, FailJob)
    assert "limits.dead_ratio (20%)" in world.end.reason
    assert "damaged" in world.end.reason
    assert len(world.issued) < 60, "it does not go on for long"
    assert world.ledger.handle(Progress(trained=Trained())) == []


def test_few_failures_in_few_clips_say_nothing_yet() -> None:
    world = World(terms(clips=100, videos=10, dead_ratio=0.2, budget=BOTH, unit_clips=1), bad=[0])
    index = 0
    while world.seeds and world.end is None:
        if world.seeds[0].clip.video == 0:
            index += 1
        world.decode()
        while world.extractions:
            world.extract()
        while world.events:
            world.deliver()
        while any(world.take(name) for name in world.consumers):
            pass
        while world.events:
            world.deliver()
    assert index > 1
    assert world.end is None, "1 in 10 is less than 20 %"


def test_lost_bytes_are_made_again() -> None:
    world = World(terms(clips=4))
    while world.seeds:
        world.decode()
    while world.extractions:
        world.extract()
    while world.events:
        world.deliver()
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
        while world.seeds or world.extractions or world.events:
            if world.seeds:
                world.decode()
            if world.extractions:
                world.extract()
            if world.events:
                world.deliver()
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
        ready_all(world)
        world.take("trainer.rgb")
        if len(world.consumers["trainer.flow"].trained) < 4:
            world.take("trainer.flow")
    ready_all(world)
    fallen = world.consumers["trainer.rgb"]
    lost = [(0, index) for index in range(fallen.position.clips)]
    assert 0 < world.ledger.counts.replaced < len(lost)
    assert list(world.ledger.passes[0].skipped)
    fallen.position, fallen.trained, fallen.unacked = Position(0, 0), [], []
    for number, index in lost:
        clip = world.terms.plan_of(number).clip(index, 0)
        failed = Failed(
            clip=world._ref(number, clip), stage="trainer", kind="lost", consumer="trainer.rgb", stream="rgb"
        )
        world.hear(Progress(failed=failed))
    world.run()
    check_at_rest(world)


def ready_all(world: World) -> None:
    """Make everything that was issued, and account for it."""
    while world.seeds or world.extractions or world.events:
        if world.seeds:
            world.decode()
        if world.extractions:
            world.extract()
        if world.events:
            world.deliver()


def test_the_furthest_clip_gives_way_and_does_not_block_once_it_is_done_after_all() -> None:
    world = World(terms(clips=8, budget=2 * CLIP_BYTES, unit_clips=1, consumers={"trainer.rgb": "rgb"}))
    world.actual = lambda clip, part: CLIP_BYTES  # type: ignore[method-assign, assignment]
    ready_all(world)
    world.take("trainer.rgb")
    ready_all(world)
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


def test_consumers_start_where_their_checkpoints_are() -> None:
    start = {"trainer.rgb": Position(0, 4), "trainer.flow": Position(1, 2)}
    world = World(terms(clips=6, start=start))
    wanted = {(s.number, s.clip.index): s.consumers for s in world.seeds}
    assert wanted[(0, 4)] == ("trainer.rgb",)
    assert wanted[(1, 1)] == ("trainer.rgb",)
    assert wanted[(1, 2)] == ("trainer.rgb", "trainer.flow")
    assert min(wanted) == (0, 4)
    world.run()
    check_at_rest(world)


def test_trainers_that_went_on_while_the_master_was_away_tell_it_so() -> None:
    world = World(terms(clips=6))
    ahead = World(terms(clips=6))
    ahead.run()
    world.consumers = ahead.consumers  # a new ledger, which knows checkpoints only
    world.run()
    assert world.ledger.outstanding == 0
    assert world.ledger.consumption["trainer.rgb"].total == len(every(world))


def test_nothing_is_issued_while_paused() -> None:
    world = World(terms(clips=6, budget=2 * BOTH, unit_clips=1))
    world.ledger.pause()
    for _ in range(3):
        while world.seeds:
            world.decode()
        while world.extractions:
            world.extract()
        while world.events:
            world.deliver()
        for name in world.consumers:
            world.take(name)
    while world.events:
        world.deliver()
    assert len(world.issued) == 2
    assert world.ledger.stalled() == []
    world.do(world.ledger.resume())
    world.run()
    check_at_rest(world)


def test_the_watchdog_issues_again_what_nobody_made() -> None:
    world = World(terms(clips=3, videos=2))
    lost = len(world.seeds)
    world.seeds.clear()
    world.do(world.ledger.stalled())
    assert len(world.seeds) == lost
    assert world.ledger.counts.reissued == lost
    world.run()
    check_at_rest(world)


def test_a_final_checkpoint_is_noted_and_the_last_stage_completes_the_job() -> None:
    world = World(terms())
    checkpoint = CheckpointReady(trainer="rgb", final=True)
    assert world.ledger.handle(Progress(checkpoint=checkpoint)) == []
    assert world.ledger.finals == {"rgb"}
    assert world.ledger.handle(Progress(finished=Finished(stage="predictor"))) == []
    done = world.ledger.handle(Progress(finished=Finished(stage="aggregator", uri="file:///m", metrics={"top1": 1.0})))
    assert done == [CompleteJob("file:///m", {"top1": 1.0})]
    assert world.ledger.ended


@pytest.mark.parametrize("stage", ["trainer", "aggregator", "predictor"])
def test_a_stage_that_gives_up_fails_the_job(stage: str) -> None:
    world = World(terms())
    out = world.ledger.handle(Progress(failed=Failed(stage=stage, reason="loss is not finite", kind="error")))
    assert out == [FailJob(f"{stage}: loss is not finite")]


def test_messages_about_what_is_not_there_change_nothing() -> None:
    world = World(terms(clips=6, budget=2 * BOTH, unit_clips=1))
    before = world.ledger.credits.outstanding_bytes
    strange = [
        Progress(),
        Progress(made=Made(purpose=1, epoch=99, indices=[0], bytes=[9])),
        Progress(made=Made(purpose=1, epoch=0, indices=[5], bytes=[9])),
        Progress(made=Made(purpose=1, epoch=0, indices=[0], attempts=[3], bytes=[9])),
        Progress(trained=Trained(purpose=1, epoch=0, consumer="trainer.other", indices=[0])),
        Progress(trained=Trained(purpose=1, epoch=0, consumer="trainer.rgb", indices=[5, 10**12])),
        Progress(failed=Failed(clip=ClipRef(purpose=1, epoch=0, index=5), stage="decoder", kind="damaged")),
        Progress(failed=Failed(clip=ClipRef(purpose=1, index=5), stage="trainer", kind="lost", consumer="trainer.rgb")),
        Progress(failed=Failed(clip=ClipRef(purpose=1, index=0), stage="trainer", kind="lost", consumer="nobody")),
    ]
    for event in strange:
        assert world.ledger.handle(event) == []
    assert world.ledger.credits.outstanding_bytes == before
    world.run()
    check_at_rest(world)


def _is_report(event: Progress) -> bool:
    """Of a worker, about what the watchdog has made again. What a consumer says is durable before it goes on."""
    return not event.HasField("trained") and event.failed.stage != "trainer"


class LedgerMachine(RuleBasedStateMachine):
    """Everything that can happen, in any order; at the end everybody works until the job is over."""

    world: World

    @initialize(
        clips=st.integers(1, 9),
        epochs=st.integers(1, 2),
        videos=st.integers(2, 5),
        room=st.integers(4, 12),
        locality=st.sampled_from([0, 0, 3]),
        kind=st.sampled_from(["class_balanced", "uniform"]),
        bad=st.sets(st.integers(0, 4), max_size=2),
        bad_streams=st.sets(st.integers(0, 4), max_size=1),
        start=st.tuples(st.integers(0, 1), st.integers(0, 3)),
        third=st.booleans(),
        lag=st.booleans(),
    )
    def begin(
        self,
        clips: int,
        epochs: int,
        videos: int,
        room: int,
        locality: int,
        kind: str,
        bad: set[int],
        bad_streams: set[int],
        start: tuple[int, int],
        third: bool,
        lag: bool,
    ) -> None:
        first = {"trainer.flow": Position(start[0], min(start[1], clips if start[0] == 0 else 2 * videos))}
        consumers = CONSUMERS | ({"trainer.other": "rgb"} if third else {})
        lane = room // 2 // (len(consumers) - 1) * BOTH
        made = terms(epochs, clips, videos, consumers, start=first, budget=room * BOTH, locality=locality, unit_clips=2,
                     kind=kind, lane=lane if lag and lane >= max(locality, 2) * BOTH else 0)  # fmt: skip
        self.world = World(made, bad, bad_streams)
        self.flushes = 0

    def _pick(self, data: Any, bag: list[Any]) -> int:
        return data.draw(st.integers(0, len(bag) - 1))

    @precondition(lambda self: self.world.seeds)
    @rule(data=st.data(), keep=st.sampled_from([False, False, False, True]))
    def decode(self, data: Any, keep: bool) -> None:
        self.world.decode(self._pick(data, self.world.seeds), keep)

    @precondition(lambda self: self.world.extractions)
    @rule(data=st.data())
    def extract(self, data: Any) -> None:
        self.world.extract(self._pick(data, self.world.extractions))

    @precondition(lambda self: self.world.events)
    @rule(data=st.data(), twice=st.sampled_from([False, False, False, True]))
    def deliver(self, data: Any, twice: bool) -> None:
        self.world.deliver(self._pick(data, self.world.events), twice)

    @rule()
    def gather(self) -> None:
        self.world.gather()

    @rule(data=st.data(), times=st.integers(1, 4))
    def take(self, data: Any, times: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.world.consumers)))
        for _ in range(times):
            self.world.take(name)

    @rule(slow=st.sampled_from(sorted(CONSUMERS)), steps=st.integers(1, 20))
    def everybody_works_but_one(self, slow: str, steps: int) -> None:
        for _ in range(steps):
            self.world.work(without={slow})

    @rule(data=st.data())
    def checkpoint(self, data: Any) -> None:
        self.world.checkpoint(data.draw(st.sampled_from(sorted(self.world.consumers))))

    @rule(data=st.data())
    def crash(self, data: Any) -> None:
        self.world.crash(data.draw(st.sampled_from(sorted(self.world.consumers))))

    @precondition(lambda self: self.world.seeds)
    @rule(data=st.data())
    def lose_a_seed(self, data: Any) -> None:
        del self.world.seeds[self._pick(data, self.world.seeds)]

    @precondition(lambda self: self.flushes < 2)
    @rule()
    def flush(self) -> None:
        self.flushes += 1
        self.world.flush_cache()

    @rule()
    def stall(self) -> None:
        self.world.do(self.world.ledger.stalled())

    @precondition(lambda self: any(_is_report(e) for e in self.world.events))
    @rule(data=st.data())
    def lose_a_report(self, data: Any) -> None:
        reports = [e for e in self.world.events if _is_report(e)]
        self.world.events.remove(reports[self._pick(data, reports)])

    @rule()
    def save_the_state(self) -> None:
        self.world.save_state()

    @rule()
    def restart_the_master(self) -> None:
        self.world.restart_master()

    @rule()
    def stop_and_start(self) -> None:
        self.world.stop_and_start()

    @rule(work=st.booleans())
    def pause_or_resume(self, work: bool) -> None:
        if work:
            self.world.do(self.world.ledger.resume())
        else:
            self.world.ledger.pause()

    @invariant()
    def the_account_holds(self) -> None:
        if hasattr(self, "world"):
            check_account(self.world)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.do(self.world.ledger.resume())
        self.world.run()
        assert self.world.end is None
        check_at_rest(self.world)


LedgerMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, suppress_health_check=list(HealthCheck)
)
TestAnyOrder = LedgerMachine.TestCase
