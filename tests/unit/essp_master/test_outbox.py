"""Effects are carried out in order, and none that fails ends the master or holds up the others for ever."""

from __future__ import annotations

import pytest

from essp_common.bus.memory import MemoryBus
from essp_common.bus.port import MessageTooLarge
from essp_common.errors import PermanentError, TransientError, Unavailable
from essp_master.effects.outbox import Outbox


def test_an_error_that_nobody_expected_is_tried_again_and_then_given_up() -> None:
    outbox, done = Outbox(MemoryBus()), list[str]()

    def broken() -> None:
        raise TypeError("a bytes-like object is required")

    outbox.add(broken, "a")
    outbox.add(lambda: done.append("b"), "b")
    for _ in range(2):
        with pytest.raises(Unavailable, match="TypeError"):
            outbox.send()
        assert not outbox.refused()
    outbox.send()
    assert outbox.empty
    assert done == ["b"]
    [(job, error)] = outbox.refused()
    assert job == "a"
    assert isinstance(error, PermanentError)
    assert "TypeError" in str(error)


def test_one_error_that_nobody_expected_is_no_jobs_end() -> None:
    outbox, errors, done = Outbox(MemoryBus()), [KeyError("x"), Unavailable("y"), KeyError("z")], list[str]()

    def flaky() -> None:
        if errors:
            raise errors.pop(0)
        done.append("done")

    outbox.add(flaky, "a")
    for _ in range(3):
        with pytest.raises(TransientError):
            outbox.send()
    outbox.send()
    assert done == ["done"]
    assert not outbox.refused()


class SmallBus(MemoryBus):
    """As Kafka, which refuses what is too large at the flush, and loses with it what was published beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.ensure_topics({"t": 1})
        self._pending: list[bytes] = []
        self._lost = 0
        self.stored: list[bytes] = []

    def publish(self, topic: str, key: bytes, value: bytes, partition: int | None = None) -> None:
        self._pending.append(value)

    def flush(self, timeout_s: float = 30.0) -> None:
        pending, self._pending = self._pending, []
        if any(len(value) > 1 for value in pending):
            self._lost += len(pending) - 1
            raise MessageTooLarge("t has 2 bytes, and 1 is the most")
        self.stored += pending
        if self._lost:
            lost, self._lost = self._lost, 0
            raise Unavailable(f"{lost} messages were not delivered")


def test_a_message_that_is_refused_fails_its_job_although_it_takes_others_with_it() -> None:
    bus = SmallBus()
    outbox = Outbox(bus)
    for job, value in (("a", b"1"), ("b", b"22"), ("c", b"3"), ("d", b"44"), ("e", b"5")):
        outbox.add(lambda value=value: bus.publish("t", b"", value), job)  # type: ignore[misc]
    outbox.send()
    assert outbox.empty
    assert [job for job, _ in outbox.refused()] == ["b", "d"]
    assert [value for value in bus.stored if value in {b"1", b"3", b"5"}] == [b"1", b"3", b"5"]
