"""Reports of workers: told in batches, never lost, and never late for those who wait."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from essp_common import topics
from essp_common.bus.memory import MemoryBus
from essp_common.bus.port import Record
from essp_common.cache.memory import MemoryCache
from essp_common.errors import Unavailable
from essp_common.pb.v1.messages_pb2 import TRAIN, VALIDATION, ClipRef, Progress, Purpose
from essp_engine.worker.loop import Worker, WorkerOptions
from essp_engine.worker.reports import CLIPS, RECORDS, WINDOW_S, Reports
from tests.harness.waiting import LONGEST_S


class FailingBus(MemoryBus):
    """Takes messages, and does not say that they are durable while it is `away`."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False
        self.ensure_topics({topics.PROGRESS: 1, "t": 1})
        self._told = self.subscribe([topics.PROGRESS], None)

    def flush(self, timeout_s: float = 30.0) -> None:
        if self.away:
            raise Unavailable("the bus is away", 0.0)
        super().flush(timeout_s)

    def told(self, timeout_s: float = 0.0) -> list[Progress]:
        return [Progress.FromString(record.value) for record in self._told.poll(100, timeout_s)]


@pytest.fixture
def bus() -> FailingBus:
    return FailingBus()


def clip(index: int, purpose: Purpose = TRAIN, epoch: int = 0, attempt: int = 0) -> ClipRef:
    return ClipRef(job="j", purpose=purpose, epoch=epoch, index=index, attempt=attempt)


def test_what_is_alike_is_told_in_one_message(bus: FailingBus) -> None:
    reports = Reports(bus, "w1")
    reports.made(clip(3), 7, 100, 0.5)
    reports.made(clip(1, attempt=2), 7, 50, 0.25)
    reports.made(clip(1), 7, 10, 0.125, "flow")
    reports.made(clip(1, VALIDATION), 7, 20, 0.0)
    reports.made(clip(1, epoch=1), 7, 30, 0.0)
    reports.made(clip(4), 8, 40, 0.0)
    reports.flush()
    told = bus.told()
    assert {(p.job, p.worker) for p in told} == {("j", "w1")}
    columns = [(p.fence, p.made.purpose, p.made.epoch, p.made.stream, list(p.made.indices)) for p in told]
    assert columns == [
        (7, TRAIN, 0, "", [3, 1]),
        (7, TRAIN, 0, "flow", [1]),
        (7, VALIDATION, 0, "", [1]),
        (7, TRAIN, 1, "", [1]),
        (8, TRAIN, 0, "", [4]),
    ]
    first = told[0].made
    assert (list(first.attempts), list(first.bytes), first.seconds) == ([0, 2], [100, 50], 0.75)
    assert not told[1].made.attempts, "zeros are left out"
    reports.flush()
    assert bus.told() == []


def test_what_comes_after_a_report_waits_until_it_is_durable(bus: FailingBus) -> None:
    reports, seen = Reports(bus, "w1"), []
    reports.made(clip(0), 1, 1, 0.0)
    reports.then(lambda: seen.append("acked"))
    reports.finished(lambda: seen.append("done"))
    bus.away = True
    with pytest.raises(Unavailable):
        reports.flush()
    assert seen == []
    bus.away = False
    bus.told()
    reports.flush()
    assert [list(progress.made.indices) for progress in bus.told()] == [[0]]
    assert seen == ["acked", "done"]
    reports.flush()
    assert seen == ["acked", "done"]


def test_a_clip_that_is_made_again_and_again_during_an_outage_is_told_once(bus: FailingBus) -> None:
    """A broker that takes some topics and refuses others may do so for days: what is kept must not grow."""
    reports = Reports(bus, "w1")
    bus.away = True
    for _ in range(3):
        reports.made(clip(0), 1, 100, 0.5)
        reports.made(clip(0), 1, 50, 0.25, "flow")
        with pytest.raises(Unavailable):
            reports.flush()
    bus.told()
    bus.away = False
    reports.flush()
    told = [(p.made.stream, list(p.made.indices), list(p.made.bytes), p.made.seconds) for p in bus.told()]
    assert told == [("", [0], [100], 0.5), ("flow", [0], [50], 0.25)]


def test_an_effect_that_fails_is_tried_again_and_those_after_it_wait(bus: FailingBus) -> None:
    reports, seen, failures = Reports(bus, "w1"), [], [Unavailable("the cache is away", 0.0)]

    def ack() -> None:
        if failures:
            raise failures.pop()
        seen.append("acked")

    reports.made(clip(0), 1, 1, 0.0)
    reports.finished(lambda: seen.append("first"))
    reports.then(ack)
    reports.finished(lambda: seen.append("second"))
    with pytest.raises(Unavailable):
        reports.flush()
    assert seen == ["first"]
    reports.flush()
    assert seen == ["first", "acked", "second"]
    assert len(bus.told()) == 1


def test_it_is_time_at_the_end_of_a_record_of_many_clips(bus: FailingBus) -> None:
    reports = Reports(bus, "w1", clock=lambda: 0.0)
    for number in range(CLIPS):
        assert not reports.due
        reports.made(clip(number), 1, 1, 0.0)
    assert reports.due


def test_it_is_time_after_a_while_or_for_many_records(bus: FailingBus) -> None:
    now_s = 0.0
    reports = Reports(bus, "w1", clock=lambda: now_s)

    def due() -> bool:
        return reports.due

    assert not due()
    reports.made(clip(0), 1, 1, 0.0)
    now_s = WINDOW_S / 2
    reports.made(clip(1), 1, 1, 0.0)
    assert not due()
    now_s = WINDOW_S
    assert due(), "the first has waited for long enough"
    reports.flush()
    assert not due()
    for _ in range(RECORDS):
        assert not due()
        reports.finished(lambda: None)
    assert due()
    bus.away = True
    reports.made(clip(2), 1, 1, 0.0)
    with pytest.raises(Unavailable):
        reports.flush()
    assert due()


class Making:
    """A stage that makes a clip of each record; which one, the record says."""

    def __init__(self, reports: Reports, handle: Callable[[bytes], None]) -> None:
        self._reports = reports
        self._handle = handle

    def setup(self) -> None: ...

    def handle(self, record: Record) -> None:
        self._handle(record.value)
        self._reports.made(clip(int(record.value)), 1, 1, 0.0)

    def reject(self, record: Record, error: Exception, attempts: int) -> None:
        raise error

    def close(self) -> None: ...


class Running:
    """A worker of one lane, whose clock stands still: it reports when it has to, never because time has passed."""

    def __init__(self, bus: FailingBus, handle: Callable[[bytes], None]) -> None:
        reports = Reports(bus, "w1", clock=lambda: 0.0)
        options = WorkerOptions(poll_timeout_s=0.01)
        subscription = bus.subscribe(["t"], "g")
        self.worker = Worker("test", subscription, MemoryCache(), lambda: Making(reports, handle), reports, options)
        self.thread = threading.Thread(target=self.worker.run)
        self.thread.start()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.worker.drain()
        self.thread.join(LONGEST_S)
        assert not self.thread.is_alive()


def test_a_worker_with_nothing_else_in_hand_reports_at_once(bus: FailingBus) -> None:
    with Running(bus, lambda value: None):
        for number in range(3):
            bus.publish("t", b"", b"%d" % number)
            (progress,) = bus.told(LONGEST_S)
            assert progress.made.indices == [number]


def test_a_record_is_not_done_before_it_is_reported(bus: FailingBus) -> None:
    reached, go = threading.Event(), threading.Event()

    def handle(value: bytes) -> None:
        if value == b"2":
            reached.set()
            assert go.wait(LONGEST_S)

    for number in range(3):
        bus.publish("t", b"", b"%d" % number)
    with Running(bus, handle):
        assert reached.wait(LONGEST_S)
        told = [index for progress in bus.told() for index in progress.made.indices]
        assert bus.backlog("t", "g") == 3 - len(told), "what is not told is delivered again if it dies now"
        go.set()
    told += [index for progress in bus.told() for index in progress.made.indices]
    assert told == [0, 1, 2]
    assert bus.backlog("t", "g") == 0


def test_what_cannot_be_reported_when_a_worker_leaves_is_delivered_again(bus: FailingBus) -> None:
    handled = threading.Event()
    with Running(bus, lambda value: handled.set()):
        bus.away = True
        bus.publish("t", b"", b"0")
        assert handled.wait(LONGEST_S)
    assert bus.backlog("t", "g") == 1
