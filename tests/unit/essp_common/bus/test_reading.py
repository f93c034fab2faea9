"""Reading a topic for good, and once through."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from essp_common.bus import reading
from essp_common.bus.memory import MemoryBus
from essp_common.bus.port import Record
from essp_common.bus.reading import batches, read_all
from essp_common.errors import Unavailable


class Scripted:
    """A subscription whose polls return what the test lists, then stop the reader."""

    partitions = 1

    def __init__(self, polls: Sequence[Sequence[Record] | Exception], stopping: threading.Event) -> None:
        self._polls = list(polls)
        self._stopping = stopping

    def poll(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        answer = self._polls.pop(0)
        if not self._polls:
            self._stopping.set()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def done(self, record: Record) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def owned(self, topic: str) -> frozenset[int]:
        return frozenset({0})

    def close(self) -> None: ...


def record(offset: int) -> Record:
    return Record("topic", 0, offset, b"", b"")


def test_batches_go_on_after_a_bus_that_did_not_answer() -> None:
    stopping = threading.Event()
    away = Unavailable("no broker", retry_after_s=0.0)
    subscription = Scripted([[record(0)], away, [], [record(1), record(2)]], stopping)
    found = list(batches(subscription, stopping, "test", 10, 0.0))
    assert found == [[record(0)], (), [], [record(1), record(2)]]


def test_a_reader_that_is_stopping_polls_no_more() -> None:
    stopping = threading.Event()
    stopping.set()
    assert list(batches(Scripted([], stopping), stopping, "test", 10, 0.0)) == []


@pytest.fixture
def bus() -> MemoryBus:
    bus = MemoryBus()
    bus.ensure_topics({"topic": 3})
    return bus


def test_a_topic_is_read_whole(bus: MemoryBus) -> None:
    values = [str(number).encode() for number in range(5000)]
    for value in values:
        bus.publish("topic", value, value)
    assert sorted(r.value for r in read_all(bus, "topic")) == sorted(values)


def test_an_empty_topic_has_nothing(bus: MemoryBus) -> None:
    assert list(read_all(bus, "topic")) == []


def test_reading_ends_when_the_reader_leaves(bus: MemoryBus) -> None:
    bus.publish("topic", b"key", b"value")
    assert list(read_all(bus, "topic", leaving=lambda: True)) == []


@pytest.fixture
def slow(bus: MemoryBus, monkeypatch: pytest.MonkeyPatch) -> MemoryBus:
    """A bus with two records, the second of which comes a few polls after the first one."""
    for number in range(2):
        bus.publish("topic", b"", str(number).encode(), 0)
    polls = [[], [record(0)], [], [], [record(1)], []]
    monkeypatch.setattr(bus, "subscribe", lambda *_, **__: Scripted(polls, threading.Event()))
    return bus


def test_a_record_that_is_there_is_waited_for(slow: MemoryBus) -> None:
    assert [record.offset for record in read_all(slow, "topic")] == [0, 1]


def test_what_does_not_come_in_time_is_not_waited_for(slow: MemoryBus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_SILENT_S", 0.0)
    assert list(read_all(slow, "topic")) == [], "the first poll had nothing"


def test_whoever_needs_the_whole_topic_is_told_that_it_did_not_come(
    slow: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_SILENT_S", 0.0)
    with pytest.raises(Unavailable, match="topic: the broker has sent nothing for 0 s, and not all that it holds"):
        list(read_all(slow, "topic", whole=True))


def test_reading_ends_on_a_topic_with_traffic(bus: MemoryBus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each record that is read is answered by one."""
    monkeypatch.setattr(reading, "_MORE_S", 0.0)
    bus.publish("topic", b"", b"there", 0)
    found = []
    for record in read_all(bus, "topic", whole=True):
        found.append(record.value)
        bus.publish("topic", b"", b"meanwhile", 0)
        assert len(found) < 100
    assert found[0] == b"there"
