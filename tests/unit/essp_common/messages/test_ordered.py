"""Clips come in the order of their index, once each, whatever the bus and the cache do to them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from essp_common import topics
from essp_common.bus.memory import MemoryBus, MemorySubscription
from essp_common.cache.memory import MemoryCache
from essp_common.cache.port import Buffer, FrameCache, clip_key, stream_key
from essp_common.errors import BadFrames, CacheMiss, Unavailable
from essp_common.messages.ordered import Delivery, IntakeOptions, OrderedIntake, PhaseEnd, largest_share
from essp_common.pb.v1.messages_pb2 import (
    LOST,
    TRAIN,
    TRAINER,
    VALIDATION,
    ClipReady,
    ClipRef,
    FeatureReady,
    PhasePlan,
    Progress,
    Purpose,
    Recipe,
    StreamRequest,
)
from essp_common.planning.position import Position
from tests.harness.lossy_bus import LossyBus

JOB = "job-1"
CONSUMER = "trainer.flow"
FLOW = IntakeOptions(job=JOB, consumer=CONSUMER, stream="flow10", feature="flow", worker="w1", fence=3)
RGB = IntakeOptions(job=JOB, consumer="trainer.rgb", stream="rgb", feature="rgb")
BEGINNING = Position(0, 0)


def plan(purpose: Purpose, epoch: int, clips: int) -> PhasePlan:
    return PhasePlan(purpose=purpose, epoch=epoch, clips=clips)


class OrderedBench:
    """A bus, a cache, and the upstream half of the pipeline."""

    def __init__(self, fetches: int = 0) -> None:
        self.fetches = fetches
        self.bus = MemoryBus()
        self.cache = MemoryCache.from_url("memory://?bytes=1MiB")
        self.bus.ensure_topics({t: topics.partitions(t) for t in (*topics.FIXED, topics.features("flow"))})

    def feature(
        self,
        phase_plan: PhasePlan,
        index: int,
        attempt: int = 0,
        skipped: str = "",
        job: str = JOB,
        stream: str = "flow10",
        fence: int = 0,
    ) -> str:
        """An extractor's effects: bytes into the cache, then the message."""
        clip = ClipRef(job=job, purpose=phase_plan.purpose, epoch=phase_plan.epoch, index=index, attempt=attempt)
        key = "" if skipped else stream_key(clip_key(job, clip.purpose, clip.epoch, index, attempt), stream)
        if key:
            self.cache.put(key, f"{clip.purpose}.{clip.epoch}.{index}.{attempt}".encode(), [CONSUMER], 60)
        message = FeatureReady(clip=clip, stream=stream, key=key, skipped=skipped, fence=fence)
        self.send(topics.features("flow"), index, message.SerializeToString())
        return key

    def send(self, topic: str, index: int, value: bytes) -> None:
        self.bus.publish(topic, str(index).encode(), value, partition=index % topics.DATA_PARTITIONS)

    @contextmanager
    def intake(
        self,
        phases: list[PhasePlan],
        options: IntakeOptions = FLOW,
        start: Position = BEGINNING,
        clock: Callable[[], float] = time.monotonic,
    ) -> Iterator[OrderedIntake]:
        options = replace(options, fetches=self.fetches)
        intake = OrderedIntake(self.bus, self.cache, options, phases, start, clock)
        try:
            yield intake
        finally:
            intake.close()

    def progress(self) -> list[Progress]:
        reader = self.bus.subscribe([topics.PROGRESS], group=None)
        return [Progress.FromString(record.value) for record in reader.poll(100_000, 0)]

    def backlog(self, options: IntakeOptions = FLOW) -> int:
        return self.bus.backlog(topics.features("flow"), options.group)


@pytest.fixture(params=[0, 3], ids=["one by one", "fetched ahead"])
def bench(request: pytest.FixtureRequest) -> Iterator[OrderedBench]:
    bench = OrderedBench(request.param)
    yield bench
    bench.bus.close()


def take_all(intake: OrderedIntake) -> list[Delivery | PhaseEnd]:
    """Everything that can be taken now."""
    found = []
    while (taken := intake.take(0)) is not None:
        found.append(taken)
    return found


def go_back(intake: OrderedIntake) -> None:
    """Have everything that is not committed delivered again, as Kafka does where messages were lost for good."""
    subscription = intake._subscription
    assert isinstance(subscription, MemorySubscription)
    with subscription._bus.lock:
        slots = list(subscription.slots)
        subscription.take([])
        subscription.take(slots)


def places(taken: list[Delivery | PhaseEnd]) -> list[tuple[int, int | str]]:
    return [(t.phase_index, t.clip.index if isinstance(t, Delivery) else "end") for t in taken]


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, int]], set[tuple[int, int]], Position, int]:
    sizes = draw(st.lists(st.integers(0, 9), min_size=1, max_size=3))
    clips = [(p, i) for p, size in enumerate(sizes) for i in range(size)]
    twice = draw(st.lists(st.sampled_from(clips), max_size=6)) if clips else []
    order = draw(st.permutations(clips + twice))
    skipped = set(draw(st.lists(st.sampled_from(clips), max_size=3))) if clips else set()
    start_phase = draw(st.integers(0, len(sizes) - 1))
    start = Position(start_phase, draw(st.integers(0, sizes[start_phase])))
    return sizes, order, skipped, start, draw(st.sampled_from([1, 2, 3, 64]))


@given(deliveries(), st.sampled_from([0, 1, 5]))
@settings(max_examples=60)
def test_every_clip_from_the_start_on_comes_once_in_order(
    case: tuple[list[int], list[tuple[int, int]], set[tuple[int, int]], Position, int], fetches: int
) -> None:
    sizes, order, skipped, start, world_size = case
    bench = OrderedBench(fetches)
    phases = [plan(TRAIN, epoch, size) for epoch, size in enumerate(sizes)]
    for p, i in order:
        bench.feature(phases[p], i, skipped="gone" if (p, i) in skipped else "")
    together: list[tuple[int, int | str]] = []
    for rank in range(world_size):
        options = IntakeOptions(JOB, CONSUMER, "flow10", "flow", rank=rank, world_size=world_size)
        with bench.intake(phases, options, start) as intake:
            taken = take_all(intake)
            assert intake.finished
            mine = [(p, i) for p, size in enumerate(sizes) for i in range(size) if i % 64 % world_size == rank]
            clips = [place for place in places(taken) if place[1] != "end"]
            assert clips == [place for place in mine if place >= start]
            assert [p for p, i in places(taken) if i == "end"] == list(range(start.phase_index, len(sizes)))
            for t in taken:
                if isinstance(t, Delivery):
                    assert bool(t.skipped) == ((t.phase_index, t.clip.index) in skipped)
                    assert bytes(t.value) == (b"" if t.skipped else f"1.{t.phase_index}.{t.clip.index}.0".encode())
            intake.finish([t for t in taken if isinstance(t, Delivery)])
            together += clips
    reported = [(p.trained.epoch, i) for p in bench.progress() for i in p.trained.indices]
    first = start
    assert sorted(r for r in reported if r >= first) == sorted(place for place in together if place not in skipped)
    before = {place for place in order if place < first and place not in skipped}
    assert {r for r in reported if r < first} == before, "done long ago, and the master asks: it has to be told"
    assert bench.cache.usage().keys == 0
    assert bench.backlog() == 0
    bench.bus.close()


def test_the_end_of_a_pass_comes_before_the_next_one(bench: OrderedBench) -> None:
    phases = [plan(TRAIN, 0, 2), plan(VALIDATION, 0, 0), plan(TRAIN, 1, 1)]
    bench.feature(phases[2], 0)
    bench.feature(phases[0], 1)
    with bench.intake(phases) as intake:
        assert take_all(intake) == []
        assert intake.waiting == 2
        bench.feature(phases[0], 0)
        assert places(take_all(intake)) == [(0, 0), (0, 1), (0, "end"), (1, "end"), (2, 0), (2, "end")]
        assert intake.finished


def test_a_clip_says_where_its_consumer_stands(bench: OrderedBench) -> None:
    phases = [plan(TRAIN, 0, 3)]
    bench.feature(phases[0], 2)
    with bench.intake(phases, start=Position(0, 2)) as intake:
        taken = intake.take(0)
        assert isinstance(taken, Delivery)
        assert taken.position == Position(0, 3)


def test_a_message_for_what_was_taken_before_is_acked_and_dropped(bench: OrderedBench) -> None:
    phases = [plan(TRAIN, 0, 2)]
    bench.feature(phases[0], 0)
    with bench.intake(phases) as intake:
        intake.finish([t for t in take_all(intake) if isinstance(t, Delivery)])
        bench.feature(phases[0], 0)  # made again, for somebody else
        assert bench.cache.usage().keys == 1
        assert take_all(intake) == []
        assert bench.cache.usage().keys == 0
        assert bench.backlog() == 0
        assert [list(p.trained.indices) for p in bench.progress()] == [[0], [0]], "the master is told again"


def test_a_message_for_what_is_in_hand_is_no_report(bench: OrderedBench) -> None:
    phases = [plan(TRAIN, 0, 1)]
    bench.feature(phases[0], 0)
    with bench.intake(phases) as intake:
        taken = [t for t in take_all(intake) if isinstance(t, Delivery)]
        bench.feature(phases[0], 0)
        assert take_all(intake) == []
        assert bench.progress() == []
        intake.finish(taken)
        assert [list(p.trained.indices) for p in bench.progress()] == [[0]]


def test_messages_of_other_jobs_streams_and_passes_are_left_alone_or_dropped(bench: OrderedBench) -> None:
    phases = [plan(TRAIN, 0, 1)]
    bench.feature(phases[0], 0, job="another")
    bench.feature(phases[0], 0, stream="flow5")
    bench.feature(plan(TRAIN, 7, 1), 0)  # a phase this job does not have
    bench.feature(phases[0], 1)  # it has one clip
    bench.send(topics.features("flow"), 0, b"\xff\xff not protobuf")
    with bench.intake(phases) as intake:
        assert take_all(intake) == []
        assert intake.waiting == 0
        assert bench.cache.usage().keys == 2, "the bytes of others are theirs to free"
        assert bench.backlog() == 0


@pytest.mark.parametrize(("told", "reported"), [(2, 2), (0, 3)])
def test_the_master_learns_which_runs_bytes_are_missed(bench: OrderedBench, told: int, reported: int) -> None:
    """Those of an earlier run may be gone: it is told the fence of the seed or, if that is not known, of this run."""
    phases = [plan(TRAIN, 0, 1)]
    bench.cache.purge(bench.feature(phases[0], 0, fence=told))
    with bench.intake(phases) as intake:
        assert intake.take(0) is None
    assert [(p.failed.kind, p.fence) for p in bench.progress()] == [(LOST, reported)]


def test_of_two_messages_for_a_clip_that_of_this_run_is_what_the_master_hears_of(bench: OrderedBench) -> None:
    """Both are delivered again to a consumer whose state is older: it has trained with the first one and died."""
    phases = [plan(TRAIN, 0, 1)]
    for fence in (2, 3):
        key = bench.feature(phases[0], 0, fence=fence)
    bench.cache.purge(key)
    with bench.intake(phases) as intake:
        assert intake.take(0) is None
        assert [(p.failed.kind, p.fence) for p in bench.progress()] == [(LOST, 3)]
        bench.feature(phases[0], 0, fence=3)
        assert places(take_all(intake)) == [(0, 0), (0, "end")]


def test_of_two_attempts_that_of_this_run_is_taken_though_the_run_before_needed_more(bench: OrderedBench) -> None:
    """A video could not be decoded, was replaced, and is sound again. The bytes of both are gone."""
    phases = [plan(TRAIN, 0, 1)]
    for attempt, fence in ((1, 2), (0, 3)):
        bench.cache.purge(bench.feature(phases[0], 0, attempt=attempt, fence=fence))
    with bench.intake(phases) as intake:
        assert intake.take(0) is None
        assert [(p.failed.clip.attempt, p.fence) for p in bench.progress()] == [(0, 3)]
        bench.feature(phases[0], 0, fence=3)
        assert places(take_all(intake)) == [(0, 0), (0, "end")]


@pytest.mark.parametrize("fence", [2, 3])
def test_a_skip_counts_more_than_what_was_made_before_it(bench: OrderedBench, fence: int) -> None:
    """In this run or in an earlier one. The bytes may be gone, and the master would not make them again."""
    phases = [plan(TRAIN, 0, 1)]
    bench.cache.purge(bench.feature(phases[0], 0, fence=fence))
    bench.feature(phases[0], 0, skipped="gone", fence=3)
    with bench.intake(phases, replace(FLOW, since=3)) as intake:
        taken, _ = take_all(intake)
        assert isinstance(taken, Delivery)
        assert taken.skipped == "gone"
        intake.finish([taken])
    assert (bench.backlog(), bench.progress()) == (0, [])


@pytest.mark.parametrize(("since", "skipped"), [(3, False), (2, True), (0, True)])
def test_a_skip_of_an_earlier_run_says_nothing_of_this_one(bench: OrderedBench, since: int, skipped: bool) -> None:
    """The video may have been repaired. One of an earlier master of this run counts."""
    phases = [plan(TRAIN, 0, 1)]
    bench.feature(phases[0], 0, skipped="damaged", fence=2)
    with bench.intake(phases, replace(FLOW, since=since)) as intake:
        taken = take_all(intake)
        assert bool(taken) == skipped
        bench.feature(phases[0], 0, fence=3)
        taken += take_all(intake)
        assert places(taken) == [(0, 0), (0, "end")]
        intake.finish([t for t in taken if isinstance(t, Delivery)])
    assert bench.backlog() == 0


@pytest.mark.parametrize(("since", "taken"), [(3, False), (2, True), (0, True)])
def test_what_an_earlier_run_made_is_not_taken(bench: OrderedBench, since: int, taken: bool) -> None:
    """The job may have been started again with another catalog. What an earlier master of this run had made counts."""
    phases = [plan(TRAIN, 0, 1)]
    bench.feature(phases[0], 0, fence=2)
    with bench.intake(phases, replace(FLOW, since=since)) as intake:
        found = take_all(intake)
        assert bool(found) == taken
        bench.feature(phases[0], 0, fence=3)
        found += take_all(intake)
        assert places(found) == [(0, 0), (0, "end")]
        intake.finish([each for each in found if isinstance(each, Delivery)])
        take_all(intake)
    assert bench.backlog() == bench.cache.usage().keys == 0


def test_a_message_that_takes_the_place_of_another_one_keeps_its_bytes(bench: OrderedBench) -> None:
    phases = [plan(TRAIN, 0, 1)]
    for fence in (2, 3):
        bench.feature(phases[0], 0, fence=fence)
    with bench.intake(phases) as intake:
        taken, _ = take_all(intake)
        assert isinstance(taken, Delivery)
        assert bytes(taken.value) == b"1.0.0.0"
        intake.finish([taken])
    assert (bench.cache.usage().keys, bench.backlog()) == (0, 0)


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
            together.wait(60)
        if key == late and not missed.is_set():
            missed.set()
            raise CacheMiss("not yet")
        return cache.get(key)

    with bench.intake(phases, replace(FLOW, read=read)) as intake:
        first = intake.take(1)
        assert isinstance(first, Delivery)
        assert missed.wait(60)
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


def test_damaged_bytes_are_made_again_and_taken_again(bench: OrderedBench) -> None:
    phases = [plan(TRAIN, 0, 2)]
    for index in range(2):
        bench.feature(phases[0], index)
    with bench.intake(phases) as intake:
        damaged = intake.take(0)
        assert isinstance(damaged, Delivery)
        intake.request_rebuild(damaged, "checksum")
        assert [(p.failed.kind, p.failed.reason) for p in bench.progress()] == [(LOST, "checksum")]
        assert take_all(intake) == []
        bench.feature(phases[0], 0)
        assert places(take_all(intake)) == [(0, 0), (0, 1), (0, "end")]


@pytest.mark.parametrize("late", [0, 1])
def test_of_two_attempts_the_later_one_counts_in_either_order(bench: OrderedBench, late: int) -> None:
    phases = [plan(TRAIN, 0, 2)]
    for attempt in (late, 1 - late):
        bench.feature(phases[0], 1, attempt=attempt)
    with bench.intake(phases) as intake:
        assert take_all(intake) == []
        assert bench.cache.usage().keys == 1, "the bytes of the other attempt are freed"
        bench.feature(phases[0], 0)
        taken = [t for t in take_all(intake) if isinstance(t, Delivery)]
        assert [t.clip.attempt for t in taken] == [0, 1]
        intake.finish(taken)
        assert bench.cache.usage().keys == 0
        assert bench.backlog() == 0


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


@pytest.mark.parametrize("taken_before", [False, True])
def test_a_message_of_the_next_run_is_left_to_its_intake(bench: OrderedBench, taken_before: bool) -> None:
    """While a trainer saves, the next run may have begun: it begins where the master knew of a checkpoint."""
    phases, runs = [plan(TRAIN, 0, 2)], {5: 5}
    if taken_before:
        bench.feature(phases[0], 0, fence=3)
    with bench.intake(phases, replace(FLOW, since=3, run_of=runs.get)) as intake:
        done = [t for t in take_all(intake) if isinstance(t, Delivery)]
        intake.finish(done)
        reports = len(bench.progress())
        bench.feature(phases[0], 0, fence=5)
        assert take_all(intake) == []
        assert (len(bench.progress()), bench.cache.usage().keys) == (reports, 1), "it is not called trained in this run"
    assert bench.backlog() == 1
    with bench.intake(phases, replace(FLOW, fence=5, since=5, run_of=runs.get)) as intake:
        assert places(take_all(intake)) == [(0, 0)]


def test_a_message_of_another_master_waits_until_it_is_known_that_it_is_of_this_run(bench: OrderedBench) -> None:
    phases, runs = [plan(TRAIN, 0, 2)], dict[int, int]()
    for index, fence in ((0, 4), (1, 3)):
        bench.feature(phases[0], index, fence=fence)
    with bench.intake(phases, replace(FLOW, since=2, run_of=runs.get)) as intake:
        assert take_all(intake) == []
        runs[4] = 2
        assert places(take_all(intake)) == [(0, 0), (0, 1), (0, "end")]


def test_rgb_takes_the_clips_themselves(bench: OrderedBench) -> None:
    clip = ClipRef(job=JOB, purpose=TRAIN, epoch=0, index=0)
    key = clip_key(JOB, TRAIN, 0, 0, 0)
    bench.cache.put(key, b"frames", ["trainer.rgb", "extractor.flow"], 60)
    bench.send(topics.CLIPS, 0, ClipReady(clip=clip, key=key, bytes=6).SerializeToString())
    with bench.intake([plan(TRAIN, 0, 1)], RGB) as intake:
        taken = [t for t in take_all(intake) if isinstance(t, Delivery)]
        assert [bytes(t.value) for t in taken] == [b"frames"]
        intake.finish(taken)
    assert bench.cache.usage().keys == 1, "the extractor has not acked yet"


def test_what_is_made_for_others_is_left_to_them(bench: OrderedBench) -> None:
    clip = ClipRef(job=JOB, purpose=TRAIN, epoch=0, index=0)
    feature = FeatureReady(clip=clip, stream="flow10", key="k", consumers=["trainer.other"])
    bench.send(topics.features("flow"), 0, feature.SerializeToString())
    recipe = Recipe(streams=[StreamRequest(stream="rgb", feature="rgb", consumers=["trainer.other"])])
    bench.send(topics.CLIPS, 0, ClipReady(clip=clip, key="k", recipe=recipe).SerializeToString())
    for options in (FLOW, RGB):
        with bench.intake([plan(TRAIN, 0, 1)], options) as intake:
            assert intake.take(0) is None
            assert intake.waiting == 0
    assert bench.progress() == [], "nothing of it is missed"
    assert bench.backlog() == 0


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


@pytest.mark.parametrize(("clips", "ranks"), [(8, 1), (8, 4), (3, 3), (4, 3), (70, 3), (128, 7), (130, 9), (1, 64)])
def test_no_rank_takes_more_of_consecutive_clips_than_the_largest_share(clips: int, ranks: int) -> None:
    options = [IntakeOptions("j", "c", "s", "rgb", rank=rank, world_size=ranks) for rank in range(ranks)]
    shares = [
        sum(each.owns(index) for index in range(begin, begin + clips)) for begin in range(2 * 64) for each in options
    ]
    assert largest_share(clips, ranks) == max(shares)
