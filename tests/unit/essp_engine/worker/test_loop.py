"""The loop around every stage: retry, reject, drain, and what is returned to the group."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from essp_common.bus.memory import MemoryBus
from essp_common.bus.port import Record, Subscription
from essp_common.cache.memory import MemoryCache
from essp_common.cache.port import Buffer
from essp_common.errors import (
    BadVideo,
    CacheFull,
    CacheMiss,
    ConfigError,
    EsspError,
    FlowUnavailable,
    PermanentError,
    TransientError,
    Unavailable,
)
from essp_common.runtime.metrics import REFUSED
from essp_common.runtime.troubles import Kind
from essp_engine.worker import loop
from essp_engine.worker.crash_counts import CrashCounts
from essp_engine.worker.loop import Worker, WorkerOptions, WorkerStuck
from essp_engine.worker.reports import Reports
from tests.harness.waiting import LONGEST_S, until


class Script:
    """A stage that does what the test says, and what it saw of it."""

    def __init__(self, handle: Callable[[Record], object] = lambda record: None) -> None:
        self.on_handle = handle
        self.on_reject: Callable[[], None] = lambda: None
        self.on_setup: Callable[[], None] = lambda: None
        self.lock = threading.Condition()
        self.handled: list[bytes] = []
        self.rejected: list[tuple[bytes, EsspError, int]] = []
        self.threads: set[str] = set()
        self.closed = 0

    def setup(self) -> None:
        self.on_setup()

    def handle(self, record: Record) -> None:
        with self.lock:
            self.handled.append(record.value)
            self.threads.add(threading.current_thread().name)
            self.lock.notify_all()
        self.on_handle(record)

    def reject(self, record: Record, error: EsspError, attempts: int) -> None:
        self.on_reject()
        with self.lock:
            self.rejected.append((record.value, error, attempts))
            self.lock.notify_all()

    def close(self) -> None:
        with self.lock:
            self.closed += 1

    def wait(self, condition: Callable[[], bool]) -> None:
        with self.lock:
            assert self.lock.wait_for(condition, LONGEST_S)


class Running:
    """A worker in a thread of its own."""

    def __init__(self, bus: MemoryBus, stage: Script, cache: MemoryCache | None = None, **options: int) -> None:
        self.bus = bus
        subscription, made = bus.subscribe(["t"], "g"), WorkerOptions(poll_timeout_s=0.01, **options)
        self.reports = Reports(bus, "w1")
        self.paused, self.noticed = threading.Event(), threading.Event()
        self.worker = Worker(
            "test", subscription, cache or MemoryCache(), lambda: stage, self.reports, made, self._is_paused
        )
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.worker.run()
        except BaseException as error:  # noqa: BLE001  the test looks at it
            self.error = error

    def _is_paused(self) -> bool:
        if self.paused.is_set():
            self.noticed.set()
        return self.paused.is_set()

    def stop(self) -> None:
        self.worker.drain()
        self.thread.join(LONGEST_S)
        assert not self.thread.is_alive()

    def returned(self) -> list[bytes]:
        """What the group gets again after the worker."""
        subscription: Subscription = self.bus.subscribe(["t"], "g")
        try:
            return [record.value for record in subscription.poll(1000, 0.0)]
        finally:
            subscription.close()


@pytest.fixture
def bus() -> MemoryBus:
    bus = MemoryBus()
    bus.ensure_topics({"t": 1})
    return bus


@pytest.fixture
def start(bus: MemoryBus) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def start_one(stage: Script, **options: Any) -> Running:
        started.append(Running(bus, stage, **options))
        return started[-1]

    yield start_one
    for running in started:
        running.stop()


def publish(bus: MemoryBus, *values: str) -> None:
    for value in values:
        bus.publish("t", b"", value.encode())


def test_every_record_is_handled_and_done(bus: MemoryBus, start: Callable[..., Running]) -> None:
    stage = Script()
    running = start(stage, lanes=3)
    publish(bus, *map(str, range(100)))
    stage.wait(lambda: len(stage.handled) == 100)
    running.stop()
    assert Counter(stage.handled) == Counter(str(n).encode() for n in range(100))
    assert running.returned() == []
    assert bus.backlog("t", "g") == 0
    assert stage.closed == 3
    assert all(name.startswith("test-lane-") for name in stage.threads)


def test_lanes_work_side_by_side(bus: MemoryBus, start: Callable[..., Running]) -> None:
    together = threading.Barrier(3)
    stage = Script(lambda record: together.wait(LONGEST_S))
    running = start(stage, lanes=3)
    publish(bus, "a", "b", "c")
    stage.wait(lambda: len(stage.handled) == 3)
    running.stop()
    assert not together.broken
    assert running.error is None


def test_no_more_is_held_than_lanes_and_prefetch(bus: MemoryBus, start: Callable[..., Running]) -> None:
    go = threading.Event()
    stage = Script(lambda record: go.wait(LONGEST_S))
    start(stage, lanes=2, prefetch=1)
    other = bus.subscribe(["t"], "observer")
    publish(bus, *map(str, range(10)))
    assert len(other.poll(100, 0.0)) == 10
    stage.wait(lambda: len(stage.handled) == 2)
    taken = bus._groups["g"].members[0].slots["t", 0]
    assert taken.position <= 3
    go.set()
    stage.wait(lambda: len(stage.handled) == 10)


def test_transient_error_is_tried_again(bus: MemoryBus, start: Callable[..., Running]) -> None:
    failures = [TransientError("no", 0.0), TransientError("no", 0.0)]

    def handle(record: Record) -> None:
        if failures:
            raise failures.pop()

    stage = Script(handle)
    running = start(stage, attempts=3)
    publish(bus, "a", "b")
    stage.wait(lambda: stage.handled[-1:] == [b"b"])
    running.stop()
    assert stage.handled == [b"a", b"a", b"a", b"b"]
    assert stage.rejected == []


def fail_with(error: Exception) -> Callable[[Record], None]:
    def handle(record: Record) -> None:
        raise error

    return handle


@pytest.mark.parametrize(
    ("error", "tries"),
    [
        (BadVideo("broken", "truncated"), 1),
        (CacheMiss("gone"), 1),
        (TransientError("no", 0.0), 3),
        (Unavailable("away", 0.0), 1),
    ],
)
def test_error_that_stays_is_rejected(
    bus: MemoryBus, start: Callable[..., Running], error: EsspError, tries: int
) -> None:
    stage = Script(fail_with(error))
    running = start(stage, attempts=3, patience_s=0)
    publish(bus, "a")
    stage.wait(lambda: bool(stage.rejected))
    running.stop()
    assert stage.rejected == [(b"a", error, tries)]
    assert len(stage.handled) == tries
    assert running.returned() == [], "a rejected record is done"


def test_a_server_that_is_away_is_not_the_records_fault(bus: MemoryBus, start: Callable[..., Running]) -> None:
    failures = [Unavailable("away", 0.0)] * 20

    def handle(record: Record) -> None:
        if failures:
            raise failures.pop()

    stage = Script(handle)
    running = start(stage, attempts=2)
    publish(bus, "a", "b")
    stage.wait(lambda: stage.handled[-1:] == [b"b"])
    running.stop()
    assert stage.rejected == []
    assert len(stage.handled) == 22


def test_no_record_is_given_up_for_the_bus_or_the_cache(bus: MemoryBus, start: Callable[..., Running]) -> None:
    """However long they are away, or refuse a right."""
    failures = [FlowUnavailable("publish to t: not authorized", 0.0)] * 20

    def handle(record: Record) -> None:
        if failures:
            raise failures.pop()

    stage = Script(handle)
    running = start(stage, attempts=2, patience_s=0)
    publish(bus, "a")
    stage.wait(lambda: len(stage.handled) == 21)
    running.stop()
    assert stage.rejected == []


def test_a_lane_that_hangs_has_the_worker_leave(bus: MemoryBus, start: Callable[..., Running]) -> None:
    """And whoever comes next gets what it had in hand."""
    go = threading.Event()
    stage = Script(lambda record: go.wait(LONGEST_S))
    running = start(stage, lanes=1, stuck_s=0)
    publish(bus, "a", "b")
    running.thread.join(LONGEST_S)
    assert isinstance(running.error, WorkerStuck)
    assert "test-lane-0" in str(running.error)
    assert running.returned() == [b"a", b"b"]
    go.set()


def test_a_record_that_brought_workers_down_is_rejected(bus: MemoryBus, start: Callable[..., Running]) -> None:
    """What a dead worker leaves behind is its counts; the one after the last death does not try again."""
    cache = MemoryCache()
    publish(bus, "poison", "good")
    in_hand = []
    for _ in range(2):
        dying = bus.subscribe(["t"], "g")
        (record,) = dying.poll(1, 0.0)
        in_hand.append(CrashCounts(cache, "test", 2, threading.Event()).begun(record))
        in_hand[-1].__enter__()
        dying.close()
    stage = Script()
    running = start(stage, attempts=2, cache=cache)
    stage.wait(lambda: stage.handled == [b"good"])
    running.stop()
    ((value, error, attempts),) = stage.rejected
    assert (value, attempts) == (b"poison", 2)
    assert isinstance(error, BadVideo)
    assert error.kind == "crashed"
    assert cache.usage().keys == 0


def test_a_worker_whose_record_another_has_begun_is_counted_no_more(
    bus: MemoryBus, start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lives: its group was only dealt anew."""
    monkeypatch.setattr(loop, "_TAKE_BACK_S", 0.0)
    cache, go = MemoryCache(), threading.Event()
    publish(bus, "slow")
    other = bus.subscribe(["t"], "observer")
    (record,) = other.poll(1, 0.0)
    stage = Script(lambda record: go.wait(LONGEST_S))
    running = start(stage, cache=cache)
    stage.wait(lambda: bool(stage.handled))
    others = [CrashCounts(cache, "test", 3, threading.Event()).begun(record) for _ in range(2)]
    assert others[0].__enter__() == 1, "it may have died"
    until(lambda: not running.worker._crash_counts._in_hand)
    assert others[1].__enter__() == 1, "the first of the others may have"
    go.set()


def test_a_worker_whose_suspect_hangs_leaves_with_the_others_waiting(
    bus: MemoryBus, start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of which a worker died are tried one at a time; none of them keeps the worker in its group for ever."""
    cache = MemoryCache()
    publish(bus, "a", "b")
    dying = bus.subscribe(["t"], "g")
    deaths = CrashCounts(cache, "test", 3, threading.Event())
    in_hand = [deaths.begun(record) for record in dying.poll(2, 0.0)]
    assert [begun.__enter__() for begun in in_hand] == [0, 0]
    dying.close()
    both_in_hand, get = threading.Barrier(2), cache.get

    def get_together(key: str) -> Buffer:
        both_in_hand.wait(LONGEST_S)
        return get(key)

    monkeypatch.setattr(cache, "get", get_together)
    go = threading.Event()
    stage = Script(lambda record: go.wait(LONGEST_S))
    running = start(stage, lanes=2, stuck_s=0, cache=cache)
    running.thread.join(LONGEST_S)
    assert isinstance(running.error, WorkerStuck)
    assert len(stage.handled) == 1
    assert running.returned() == [b"a", b"b"]
    go.set()


def test_defect_is_rejected_with_its_cause(bus: MemoryBus, start: Callable[..., Running]) -> None:
    defect = ZeroDivisionError("oh")
    stage = Script(fail_with(defect))
    running = start(stage, attempts=2)
    publish(bus, "a")
    stage.wait(lambda: bool(stage.rejected))
    running.stop()
    (_, error, attempts), *rest = stage.rejected
    assert (str(error), error.__cause__, attempts, rest) == ("ZeroDivisionError: oh", defect, 2, [])
    assert running.error is None


def test_back_pressure_is_waited_out(bus: MemoryBus, start: Callable[..., Running]) -> None:
    refusals = [CacheFull("full", 0.0)] * 20

    def handle(record: Record) -> None:
        if refusals:
            raise refusals.pop()

    stage = Script(handle)
    running = start(stage, attempts=2)
    publish(bus, "a")
    stage.wait(lambda: len(stage.handled) == 21)
    running.stop()
    assert stage.rejected == []
    assert running.returned() == []


def test_rejecting_is_tried_until_it_works(bus: MemoryBus, start: Callable[..., Running]) -> None:
    away = [Unavailable("away", 0.0)] * 5

    def reject() -> None:
        if away:
            raise away.pop()

    stage = Script(fail_with(BadVideo("broken")))
    stage.on_reject = reject
    running = start(stage, attempts=1)
    publish(bus, "a")
    stage.wait(lambda: bool(stage.rejected))
    running.stop()
    assert len(stage.handled) == 1
    assert running.returned() == []


def test_a_record_that_cannot_even_be_rejected_is_dropped_and_counted(
    bus: MemoryBus, start: Callable[..., Running]
) -> None:
    def handle(record: Record) -> None:
        if record.value == b"a":
            raise BadVideo("broken")

    def reject() -> None:
        raise PermanentError("its dead letter is too large")

    stage = Script(handle)
    stage.on_reject = reject
    before = REFUSED.labels("t")._value.get()
    running = start(stage, attempts=1)
    publish(bus, "a", "b")
    stage.wait(lambda: len(stage.handled) == 2)
    running.stop()
    assert "its dead letter is too large" in running.worker.troubles()[Kind.UNREPORTED]
    assert REFUSED.labels("t")._value.get() == before + 1
    assert running.returned() == []


def test_drain_finishes_what_is_in_hand_and_returns_the_rest(bus: MemoryBus, start: Callable[..., Running]) -> None:
    go = threading.Event()
    stage = Script(lambda record: go.wait(LONGEST_S))
    running = start(stage, lanes=1, prefetch=2)
    publish(bus, "a", "b", "c", "d")
    stage.wait(lambda: len(stage.handled) == 1)
    assert running.worker.in_hand == 1
    running.worker.drain()
    go.set()
    running.stop()
    assert stage.handled == [b"a"]
    assert running.worker.in_hand == 0
    assert running.returned() == [b"b", b"c", b"d"]


@pytest.mark.parametrize("error", [CacheFull("full", 1000.0), TransientError("no", 1000.0)])
def test_drain_ends_a_wait_between_tries(bus: MemoryBus, start: Callable[..., Running], error: EsspError) -> None:
    stage = Script(fail_with(error))
    running = start(stage)
    publish(bus, "a")
    stage.wait(lambda: bool(stage.handled))
    running.stop()
    assert stage.rejected == []
    assert running.returned() == [b"a"]


def test_drain_before_run_takes_nothing(bus: MemoryBus) -> None:
    stage = Script()
    publish(bus, "a")
    worker = Worker(
        "test", bus.subscribe(["t"], "g"), MemoryCache(), lambda: stage, Reports(bus, "w1"), WorkerOptions()
    )
    worker.drain()
    worker.run()
    assert stage.handled == []
    assert stage.closed == 1


def test_setup_that_fails_ends_the_run(bus: MemoryBus, start: Callable[..., Running]) -> None:
    def setup() -> None:
        raise RuntimeError("no library")

    stage = Script()
    stage.on_setup = setup
    publish(bus, "a")
    running = start(stage, lanes=2)
    running.thread.join(LONGEST_S)
    assert str(running.error) == "no library"
    assert stage.closed == 2
    assert running.returned() == [b"a"]


def test_a_worker_that_can_read_no_more_finishes_what_it_has_in_hand(
    bus: MemoryBus, start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    stage = Script(lambda _: ended.wait(LONGEST_S))
    running = start(stage)
    publish(bus, "a")
    stage.wait(lambda: stage.handled == [b"a"])
    polls: list[int] = []

    def defect(max_records: int, timeout_s: float) -> list[Record]:
        polls.append(max_records)
        if len(polls) > 1:
            ended.set()
        raise EsspError("reading has stopped")

    monkeypatch.setattr(running.worker._subscription, "poll", defect)
    running.thread.join(LONGEST_S)
    assert str(running.error) == "reading has stopped"
    publish(bus, "b")
    assert running.returned() == [b"b"], "it has done a and left its group"


def test_a_worker_that_cannot_report_leaves_its_group(bus: MemoryBus, start: Callable[..., Running]) -> None:
    """What it had in hand is delivered to others."""

    def no_right() -> None:
        raise ConfigError("no right to publish")

    stage = Script()
    running = start(stage)
    running.reports.then(no_right)
    publish(bus, "a")
    running.thread.join(LONGEST_S)
    assert str(running.error) == "no right to publish"
    assert running.returned() == [b"a"]


def test_bus_that_is_away_for_a_while_is_polled_again(bus: MemoryBus, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Script()
    subscription = bus.subscribe(["t"], "g")
    poll, failures = subscription.poll, [Unavailable("away", 0.0)] * 3

    def failing(max_records: int, timeout_s: float) -> object:
        if failures:
            raise failures.pop()
        return poll(max_records, timeout_s)

    monkeypatch.setattr(subscription, "poll", failing)
    worker = Worker("test", subscription, MemoryCache(), lambda: stage, Reports(bus, "w1"), WorkerOptions())
    thread = threading.Thread(target=worker.run)
    thread.start()
    publish(bus, "a")
    stage.wait(lambda: stage.handled == [b"a"])
    worker.drain()
    thread.join(LONGEST_S)
    assert not thread.is_alive()


class Broken(MemoryCache):
    """Fails at everything, with errors that nobody expects."""

    def get(self, key: str, parts: object = ()) -> Buffer:
        raise TypeError("a bytes-like object is required, not 'int'")

    def put(self, key: str, value: object, consumers: object, ttl_s: float) -> None:
        raise AttributeError("'list' object has no attribute 'decode'")

    def ack(self, key: str, consumer: str) -> bool:
        raise ValueError("not enough values to unpack")


def test_a_worker_stays_whatever_its_cache_and_its_reports_do(bus: MemoryBus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_TAKE_BACK_S", 0.0)
    monkeypatch.setattr(CrashCounts, "take_back", lambda self: 1 / 0)
    effects: list[Exception | None] = [KeyError("unexpected"), TypeError("again"), None]

    def effect() -> None:
        if effects and (error := effects.pop(0)) is not None:
            raise error

    stage = Script()
    running = Running(bus, stage, Broken())
    stage.on_handle = lambda record: running.reports.then(effect)
    for value in (b"a", b"b", b"c", b"d"):
        bus.publish("t", b"", value)
    stage.wait(lambda: len(stage.handled) == 4)
    until(lambda: not effects)
    running.stop()
    assert running.error is None
    assert running.returned() == []


def test_a_paused_pool_finishes_what_it_has_and_takes_nothing_new(
    bus: MemoryBus, start: Callable[..., Running]
) -> None:
    released = threading.Event()
    stage = Script(lambda record: released.wait(LONGEST_S))
    running = start(stage, prefetch=0)
    bus.publish("t", b"", b"first")
    stage.wait(lambda: stage.handled == [b"first"])
    running.paused.set()
    running.noticed.wait(LONGEST_S)
    bus.publish("t", b"", b"second")
    released.set()
    until(lambda: bus.backlog("t", "g") == 1)
    assert stage.handled == [b"first"]
    running.paused.clear()
    stage.wait(lambda: stage.handled == [b"first", b"second"])
