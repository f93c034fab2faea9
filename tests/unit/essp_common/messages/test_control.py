"""The feed of control commands."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

from essp_common import topics
from essp_common.bus.memory import MemoryBus
from essp_common.bus.port import Record
from essp_common.errors import Unavailable
from essp_common.messages.control import ControlFeed
from essp_common.pb.v1.messages_pb2 import Control, JobSnapshot, PausedPools
from tests.harness.waiting import LONGEST_S


@pytest.fixture
def bus() -> MemoryBus:
    bus = MemoryBus()
    bus.ensure_topics({topics.CONTROL: 1})
    return bus


@pytest.fixture
def feed(bus: MemoryBus) -> Iterator[ControlFeed]:
    feed = ControlFeed(bus)
    yield feed
    feed.close()


def send(bus: MemoryBus, command: Control.Command, job: str = "job", fence: int = 1) -> None:
    control = Control(job=job, fence=fence, command=command, snapshot=JobSnapshot(spec_json=f"spec of {job}"))
    bus.publish(topics.CONTROL, job.encode(), control.SerializeToString())


def test_unknown_job_has_no_state(feed: ControlFeed) -> None:
    assert feed.state("job") == Control.COMMAND_UNSPECIFIED
    assert feed.snapshot("job") is None
    assert feed.wait("job", 0.0) is None
    assert not feed.ended("job")


def test_last_command_counts(bus: MemoryBus, feed: ControlFeed) -> None:
    for command in (Control.START, Control.PAUSE):
        send(bus, command)
    assert feed.wait("job", LONGEST_S, {Control.PAUSE})
    assert feed.state("job") == Control.PAUSE
    snapshot = feed.snapshot("job")
    assert snapshot is not None
    assert snapshot.spec_json == "spec of job"


def test_late_reader_knows_what_was_said_before(bus: MemoryBus) -> None:
    send(bus, Control.START, "one")
    send(bus, Control.STOP, "two")
    feed = ControlFeed(bus)
    try:
        assert feed.wait("two", LONGEST_S, {Control.STOP})
        assert {job: control.command for job, control in feed.jobs().items()} == {
            "one": Control.START,
            "two": Control.STOP,
        }
        assert feed.ended("two")
        assert not feed.ended("one")
    finally:
        feed.close()


def test_a_late_reader_acts_on_no_command_that_was_overtaken(bus: MemoryBus, feed: ControlFeed) -> None:
    seen: list[tuple[Control.Command, Control.Command]] = []
    told = threading.Event()

    def listen(control: Control) -> None:
        seen.append((control.command, feed.state("job")))
        if control.command == Control.STOP:
            told.set()

    feed.on_change(listen)
    with bus.lock:  # both are there before anybody can read
        send(bus, Control.START)
        send(bus, Control.STOP)
    assert told.wait(LONGEST_S)
    assert seen == [(Control.START, Control.STOP), (Control.STOP, Control.STOP)]


def test_work_of_a_later_start_is_not_over(bus: MemoryBus, feed: ControlFeed) -> None:
    send(bus, Control.STOP, fence=2)
    assert feed.wait("job", LONGEST_S, {Control.STOP})
    assert feed.ended("job", fence=2)
    assert not feed.ended("job", fence=3)


def test_deposed_master_is_ignored(bus: MemoryBus, feed: ControlFeed) -> None:
    send(bus, Control.START, fence=2)
    send(bus, Control.STOP, fence=1)
    send(bus, Control.START, "last")
    assert feed.wait("last", LONGEST_S)
    assert feed.state("job") == Control.START
    send(bus, Control.PAUSE, fence=3)
    assert feed.wait("job", LONGEST_S, {Control.PAUSE})


def test_work_of_an_older_master_is_outdated_but_its_run_is_not(bus: MemoryBus, feed: ControlFeed) -> None:
    assert not feed.outdated("job", fence=1)
    for fence in (2, 3):
        control = Control(job="job", fence=fence, command=Control.START, since=2)
        bus.publish(topics.CONTROL, b"job", control.SerializeToString())
    send(bus, Control.START, "last")
    assert feed.wait("last", LONGEST_S)
    assert [feed.outdated("job", fence) for fence in (1, 2, 3, 4)] == [True, True, False, False]
    assert [feed.of_earlier_run("job", fence) for fence in (0, 1, 2, 3)] == [False, True, False, False]
    assert [feed.run_of("job", fence) for fence in (2, 3, 4)] == [2, 2, None]
    assert feed.run_of("unknown", 0) is None


def test_fence_of_one_job_says_nothing_of_another(bus: MemoryBus, feed: ControlFeed) -> None:
    send(bus, Control.START, "one", fence=5)
    send(bus, Control.START, "two", fence=1)
    assert feed.wait("two", LONGEST_S)


def test_listener_gets_what_is_known_and_what_comes(bus: MemoryBus, feed: ControlFeed) -> None:
    send(bus, Control.START)
    assert feed.wait("job", LONGEST_S)
    heard: list[Control.Command] = []
    paused = threading.Event()

    def listen(control: Control) -> None:
        heard.append(control.command)
        if control.command == Control.PAUSE:
            paused.set()

    feed.on_change(listen)
    assert heard == [Control.START]
    send(bus, Control.PAUSE)
    assert paused.wait(LONGEST_S)
    assert heard == [Control.START, Control.PAUSE]


def test_failing_listener_does_not_stop_the_feed(
    bus: MemoryBus, feed: ControlFeed, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(control: Control) -> None:
        raise RuntimeError("listener")

    feed.on_change(fail)
    send(bus, Control.START)
    assert feed.wait("job", LONGEST_S, {Control.START})
    send(bus, Control.PAUSE)
    assert feed.wait("job", LONGEST_S, {Control.PAUSE})
    assert "a listener failed on job" in caplog.text


def test_garbage_is_skipped(bus: MemoryBus, feed: ControlFeed) -> None:
    bus.publish(topics.CONTROL, b"job", b"\xff\xff\xff")
    send(bus, Control.START)
    assert feed.wait("job", LONGEST_S)


def test_close_ends_a_wait(bus: MemoryBus) -> None:
    feed = ControlFeed(bus)
    answers: list[object] = []
    waiter = threading.Thread(target=lambda: answers.append(feed.wait("job", LONGEST_S * 10)))
    waiter.start()
    feed.close()
    waiter.join()
    assert answers == [None]


def test_bus_that_is_away_for_a_while_is_asked_again(bus: MemoryBus, monkeypatch: pytest.MonkeyPatch) -> None:
    subscription = bus.subscribe([topics.CONTROL], None)
    poll, failures = subscription.poll, [Unavailable("away", 0.0), Unavailable("away", 0.0)]

    def failing(max_records: int, timeout_s: float) -> Sequence[Record]:
        if failures:
            raise failures.pop()
        return poll(max_records, timeout_s)

    monkeypatch.setattr(subscription, "poll", failing)
    monkeypatch.setattr(bus, "subscribe", lambda *args, **kwargs: subscription)
    send(bus, Control.START)
    feed = ControlFeed(bus)
    try:
        assert feed.wait("job", LONGEST_S)
    finally:
        feed.close()


def test_a_pool_is_paused_until_the_next_message_about_pools(bus: MemoryBus, feed: ControlFeed) -> None:
    heard: list[Control] = []
    feed.on_change(heard.append)
    for names in (["decoder", "extractor.flow"], ["extractor.flow"]):
        paused = Control(pools=PausedPools(names=names))
        bus.publish(topics.CONTROL, b"", paused.SerializeToString())
    send(bus, Control.START)
    assert feed.wait("job", LONGEST_S)
    assert [feed.is_paused(pool) for pool in ("decoder", "extractor.flow", "extractor")] == [False, True, False]
    assert list(feed.jobs()) == ["job"], "it is about no job"
