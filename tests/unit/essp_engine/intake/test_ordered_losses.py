"""An intake asks again for bytes that are lost or damaged, and outages of cache and bus cost it nothing."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from essp_common import topics
from essp_common.bus.memory import MemorySubscription
from essp_common.cache.port import Buffer, FrameCache, clip_key, stream_key
from essp_common.errors import BadFrames, CacheMiss, OtherRelease, Unavailable
from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import (
    LOST,
    TRAIN,
    TRAINER,
    VALIDATION,
)
from essp_engine.intake.ordered import Delivery, OrderedIntake
from tests.harness.lossy_bus import LossyBus
from tests.harness.waiting import LONGEST_S
from tests.unit.essp_engine.intake.ordered_bench import CONSUMER, FLOW, JOB, OrderedBench, places, plan, take_all


def go_back(intake: OrderedIntake) -> None:
    """Have everything that is not committed delivered again, as Kafka does where messages were lost for good."""
    subscription = intake._subscription
    assert isinstance(subscription, MemorySubscription)
    with subscription._bus.lock:
        slots = list(subscription.slots)
        subscription.take([])
        subscription.take(slots)


def test_lost_bytes_are_reported_and_waited_for(bench: OrderedBench) -> None:
    phases = [plan(TRAIN, 0, 2)]
    key = bench.feature(phases[0], 0)
    bench.feature(phases[0], 1)
    bench.cache.purge(key)
    with bench.intake(phases) as intake:
        assert take_all(intake) == []
        (report,) = bench.progress()
        assert (report.job, report.worker, report.fence) == (JOB, "w1", 3)
        assert (report.failed.kind, report.failed.stage, report.failed.stream) == (LOST, TRAINER, "flow10")
        assert report.failed.clip.index == 0
        assert take_all(intake) == [], "index 1 waits for its turn"
        bench.feature(phases[0], 0)
        assert places(take_all(intake)) == [(0, 0), (0, 1), (0, "end")]


def test_bytes_of_another_release_are_asked_for_as_what_has_not_come(bench: OrderedBench) -> None:
    """As often as a worker of that release makes them, which must not count as losses."""
    older = True

    def read(cache: FrameCache, key: str, size_bytes: int) -> Buffer:
        if older:
            raise OtherRelease(key)
        return cache.get(key)

    phases = [plan(TRAIN, 0, 1)]
    with bench.intake(phases, replace(FLOW, read=read)) as intake:
        for _ in range(12):
            bench.feature(phases[0], 0)
            assert take_all(intake) == []
        older = False
        bench.feature(phases[0], 0)
        assert places(take_all(intake)) == [(0, 0), (0, "end")]
    reports = [p.failed for p in bench.progress() if p.HasField("failed")]
    assert [(report.kind, report.awaited) for report in reports] == [(LOST, True)] * 12


def test_clips_are_fetched_together_and_what_was_missed_ahead_of_its_turn_is_asked_for_again() -> None:
    """The reads of three clips wait for each other; another clip's bytes come after it was asked for ahead."""
    bench = OrderedBench(fetches=3)
    phases = [plan(TRAIN, 0, 5)]
    for index in range(5):
        bench.feature(phases[0], index)
    late = stream_key(clip_key(JOB, TRAIN, 0, 1, 0), "flow10")
    together, missed = threading.Barrier(3), threading.Event()
    meeting = [stream_key(clip_key(JOB, TRAIN, 0, index, 0), "flow10") for index in (0, 2, 4)]

    def read(cache: FrameCache, key: str, size_bytes: int) -> Buffer:
        if key in meeting:
            together.wait(LONGEST_S)
        if key == late and not missed.is_set():
            missed.set()
            raise CacheMiss("not yet")
        return cache.get(key)

    with bench.intake(phases, replace(FLOW, read=read)) as intake:
        first = intake.take(1)
        assert isinstance(first, Delivery)
        assert missed.wait(LONGEST_S)
        assert places([first, *take_all(intake)]) == [*((0, index) for index in range(5)), (0, "end")]
    assert [p for p in bench.progress() if p.HasField("failed")] == []
    bench.bus.close()


def test_bytes_that_are_found_damaged_when_read_are_made_again(bench: OrderedBench) -> None:
    phases = [plan(TRAIN, 0, 3)]
    for index in range(3):
        bench.feature(phases[0], index)
    damaged = [stream_key(clip_key(JOB, TRAIN, 0, 1, 0), "flow10")]

    def read(cache: FrameCache, key: str, size_bytes: int) -> Buffer:
        if key in damaged:
            raise BadFrames("checksum")
        return cache.get(key)

    with bench.intake(phases, replace(FLOW, read=read)) as intake:
        assert places(take_all(intake)) == [(0, 0)]
        (failed,) = (p.failed for p in bench.progress() if p.HasField("failed"))
        assert (failed.kind, failed.clip.index, failed.reason) == (LOST, 1, f"{damaged[0]}: checksum")
        assert bench.cache.usage().keys == 2, "the damaged bytes are given up"
        damaged.clear()
        bench.feature(phases[0], 1)
        assert places(take_all(intake)) == [(0, 1), (0, 2), (0, "end")]


def test_released_but_not_committed_is_delivered_again_and_found_missing(bench: OrderedBench) -> None:
    """What a consumer that dies before its checkpoint relies on. It waits for all of them together, not one by one."""
    phases = [plan(TRAIN, 0, 9)]
    for index in range(9):
        bench.feature(phases[0], index)
    with bench.intake(phases) as intake:
        released = [t for t in take_all(intake) if isinstance(t, Delivery) and t.clip.index != 3]
        intake.release(released)
        assert bench.cache.usage().keys == 1
        assert bench.backlog() == 9
    missing = [t.clip.index for t in released]
    with bench.intake(phases) as intake:
        assert take_all(intake) == []
        assert [p.failed.clip.index for p in bench.progress() if p.HasField("failed")] == missing
        for index in missing:
            bench.feature(phases[0], index)
        taken = [t for t in take_all(intake) if isinstance(t, Delivery)]
        assert [t.clip.index for t in taken] == list(range(9))
        intake.commit(t.record.bare for t in taken)
        assert bench.backlog() == 0


def test_a_release_is_not_over_before_the_master_will_hear_of_it() -> None:
    bench, phases = OrderedBench(), [plan(TRAIN, 0, 1)]
    bench.bus = bus = LossyBus()
    bus.ensure_topics({t: topics.partitions(t) for t in (*topics.FIXED, topics.features("flow"))})
    bench.feature(phases[0], 0)
    with bench.intake(phases) as intake:
        taken = [t for t in take_all(intake) if isinstance(t, Delivery)]
        bus.loses = 1
        with pytest.raises(Unavailable):
            intake.release(taken)
        intake.release(taken)
        assert [list(p.trained.indices) for p in bench.progress()] == [[0]]
    bus.close()


@pytest.mark.parametrize("state", ["waiting", "taken", "released"])
def test_what_comes_again_while_it_is_in_hand_is_not_committed(bench: OrderedBench, state: str) -> None:
    """A consumer that dies before its checkpoint would not get it any more."""
    phases = [plan(TRAIN, 0, 3)]
    for index in (1, 2) if state == "waiting" else (0, 1):
        bench.feature(phases[0], index)
    with bench.intake(phases) as intake:
        taken = [t for t in take_all(intake) if isinstance(t, Delivery)]
        if state == "released":
            intake.release(taken)
        reports, keys = len(bench.progress()), bench.cache.usage().keys
        for _ in range(2):
            go_back(intake)
            assert take_all(intake) == []
            assert (bench.backlog(), len(bench.progress()), bench.cache.usage().keys) == (2, reports, keys)
        for index in range(3):
            bench.feature(phases[0], index)
        taken += [t for t in take_all(intake) if isinstance(t, Delivery)]
        assert [t.clip.index for t in taken] == [0, 1, 2]
        intake.finish(taken)
        assert bench.backlog() == 0


def test_what_comes_again_after_it_was_committed_is_done_again(bench: OrderedBench) -> None:
    """The bus could not count it: a record before it was in hand, or its own was still to come again."""
    phases = [plan(TRAIN, 0, 65)]
    for index in range(65):
        bench.feature(phases[0], index)
    with bench.intake(phases) as intake:
        first, *others, last = [t for t in take_all(intake) if isinstance(t, Delivery)]
        assert first.record.partition == last.record.partition
        intake.release([first, *others, last])
        intake.commit([last.record])
        go_back(intake)
        intake.commit(t.record for t in others)
        assert take_all(intake) == []
        assert bench.backlog() == 2
        intake.commit([first.record.bare])
        assert bench.backlog() == 0


def test_a_clip_that_does_not_come_for_long_is_asked_for(bench: OrderedBench) -> None:
    """So is what is missing among those that have come; not what may be still to come, nor what is another rank's."""
    phases, now_s = [plan(TRAIN, 0, 20), plan(VALIDATION, 0, 20)], 0.0

    def asked() -> list[int]:
        reports = [p for p in bench.progress() if p.failed.awaited]
        assert all((p.failed.kind, p.failed.consumer, p.fence) == (LOST, CONSUMER, 3) for p in reports)
        return [p.failed.clip.index for p in reports]

    bench.feature(phases[1], 19)
    for index in (0, 1, 6, 8, 11):
        bench.feature(phases[0], index)
    with bench.intake(phases, replace(FLOW, world_size=2), clock=lambda: now_s) as intake:
        assert places(take_all(intake)) == [(0, 0)]
        now_s = 29.0
        assert (take_all(intake), asked()) == ([], [])
        now_s = 30.0
        assert (take_all(intake), asked()) == ([], [2, 4])
        assert (take_all(intake), asked()) == ([], [2, 4]), "not all the time"
        now_s = 60.0
        assert (take_all(intake), asked()) == ([], [2, 4, 2, 4])
        bench.feature(phases[0], 2)
        assert places(take_all(intake)) == [(0, 2)]
        now_s = 89.0
        assert (take_all(intake), asked()) == ([], [2, 4, 2, 4]), "the next one has its own time"
        now_s = 90.0
        assert (take_all(intake), asked()) == ([], [2, 4, 2, 4, 4])


def test_a_consumer_that_waits_says_again_what_it_has_released(bench: OrderedBench) -> None:
    """The report may be lost, and the clip occupies what the next one needs; not what it has in hand."""
    phases, now_s = [plan(TRAIN, 0, 2), plan(VALIDATION, 0, 300)], 0.0
    bench.feature(phases[0], 0)
    bench.feature(phases[0], 1, attempt=2)
    bench.feature(phases[1], 0, skipped="damaged")
    bench.feature(phases[1], 1)
    with bench.intake(phases, clock=lambda: now_s) as intake:
        *released, _ = taken = [t for t in take_all(intake) if isinstance(t, Delivery)]
        intake.release(released)
        [first] = [p.trained for p in bench.progress()]
        assert not first.again
        now_s = 30.0
        assert take_all(intake) == []
        [again] = [p.trained for p in bench.progress() if p.trained.again]
        assert (again.purpose, list(again.indices), list(again.attempts)) == (TRAIN, [0, 1], [0, 2])
        for index in range(2, 299):
            bench.feature(phases[1], index)
        intake.release([*taken[3:], *(t for t in take_all(intake) if isinstance(t, Delivery))])
        now_s = 60.0
        assert take_all(intake) == []
        last = [p.trained for p in bench.progress() if p.trained.again][-1]
        assert list(last.indices) == [*range(43, 299)], "as many as may be asked for"


def test_no_more_clips_are_asked_for_at_once_than_are_made_meanwhile(bench: OrderedBench) -> None:
    """The first one of a window of many may be in the video that takes longest."""
    phases, now_s = [plan(TRAIN, 0, 2000)], 0.0
    bench.feature(phases[0], 1999)
    with bench.intake(phases, clock=lambda: now_s) as intake:
        intake.take(0)
        now_s = 30.0
        intake.take(0)
    assert [each.failed.clip.index for each in bench.progress()] == [*range(256)]


def test_an_outage_of_the_cache_costs_nothing(bench: OrderedBench, monkeypatch: pytest.MonkeyPatch) -> None:
    phases = [plan(TRAIN, 0, 1)]
    bench.feature(phases[0], 0)

    def down(key: str) -> bytes:
        raise Unavailable(f"no cache for {key}")

    with bench.intake(phases) as intake:
        with monkeypatch.context() as patch:
            patch.setattr(bench.cache, "get", down)
            with pytest.raises(Unavailable):
                intake.take(0)
        assert places(take_all(intake)) == [(0, 0), (0, "end")]


@pytest.mark.parametrize("broken", ["ack", "flush"])
def test_an_outage_while_a_message_is_dropped_costs_none_that_came_with_it(
    bench: OrderedBench, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    phases = [plan(TRAIN, 0, 3)]

    def down(*_: object) -> None:
        raise Unavailable("no server")

    for index in (0, 1, 2):
        bench.feature(phases[0], index)
    with bench.intake(phases, start=Position(0, 1)) as intake:
        with monkeypatch.context() as patch:
            patch.setattr(bench.cache if broken == "ack" else bench.bus, broken, down)
            with pytest.raises(Unavailable):
                intake.take(0)
        taken = take_all(intake)
        assert places(taken) == [(0, 1), (0, 2), (0, "end")]
        intake.finish([t for t in taken if isinstance(t, Delivery)])
        assert intake.take(0) is None
    assert (bench.cache.usage().keys, bench.backlog()) == (0, 0)
    assert {i for p in bench.progress() for i in p.trained.indices} == {0, 1, 2}
