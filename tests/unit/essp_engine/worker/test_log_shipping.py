"""Lines of a worker's log reach the master: in order, each once, or counted as left out."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp_common import topics
from essp_common.bus.memory import MemoryBus
from essp_common.bus.port import Bus
from essp_common.errors import Unavailable
from essp_common.messages.parsing import parsed
from essp_common.pb.v1.messages_pb2 import LogLines, Progress
from essp_common.runtime import logs
from essp_engine.worker.log_shipping import LONGEST_ERROR, LONGEST_EVENT, MOST_LINES, LogShipper

log = logging.getLogger("essp.test")


@pytest.fixture
def logging_set_up() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    root.handlers.clear()
    logs.set_up("INFO", "json", "w1", "decoder", {"job_id": "night"})
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@dataclass
class Broker:
    """Takes messages while it is up."""

    up: bool = True
    taken: list[LogLines] = field(default_factory=list)

    def publish(self, topic: str, key: bytes, value: bytes) -> None:
        if not self.up:
            raise Unavailable("away")
        assert topic == topics.PROGRESS
        self.taken.append(Progress.FromString(value).logs)


def shipper(broker: Broker) -> LogShipper:
    return LogShipper(cast("Bus", broker), "w1", "decoder", interval_s=3600)


@pytest.mark.usefixtures("logging_set_up")
def test_what_was_logged_is_sent_before_the_worker_ends() -> None:
    bus = MemoryBus()
    bus.ensure_topics({topics.PROGRESS: 1})
    reader = bus.subscribe([topics.PROGRESS], None)
    with LogShipper(bus, "w1", "decoder", interval_s=3600):
        log.debug("no")
        log.info("one %d", 1)
        try:
            raise ValueError("inner")
        except ValueError:
            log.exception("two", extra={"job_id": "day"})
    log.info("after its end")
    (record,) = reader.poll(10, 10)
    progress = parsed(Progress, record)
    assert (progress.worker, progress.logs.pool, progress.logs.left_out) == ("w1", "decoder", 0)
    one, two = progress.logs.lines
    assert (one.level, one.event, one.job, one.thread) == ("INFO", "one 1", "night", threading.current_thread().name)
    assert (two.level, two.event, two.job) == ("ERROR", "two", "day")
    assert two.error.startswith("Traceback")
    assert two.error.endswith("ValueError: inner")
    assert not [thread for thread in threading.enumerate() if thread.name == "essp-log-shipping"]


@pytest.mark.usefixtures("logging_set_up")
def test_long_lines_and_names_that_are_no_text_are_sent_shortened() -> None:
    broker = Broker()
    with shipper(broker):
        log.info("broken \udcff %s", "x" * 5000)
        log.error("deep", exc_info=RuntimeError("y" * 9000))
    first, second = broker.taken[0].lines
    assert first.event.startswith("broken ? xxx")
    assert len(first.event) == LONGEST_EVENT
    assert len(second.error) == LONGEST_ERROR
    assert second.error.endswith("yyy")


steps = st.lists(
    st.one_of(st.booleans(), st.integers(1, 1500), st.just("send")),
    max_size=12,
)


@given(steps, st.integers(1, 2000))
def test_each_line_is_sent_once_in_order_or_counted(steps: list[bool | int | str], length: int) -> None:
    broker, logged = Broker(), 0
    ship = shipper(broker)
    for step in [*steps, True]:
        if isinstance(step, bool):
            broker.up = step
        elif step == "send":
            ship._send()
        else:
            for _ in range(int(step)):
                ship._hold(logs.Line(0.0, "INFO", f"{logged:09}" + "x" * length, "t", "", ""))
                logged += 1
    while ship._send():
        pass
    next_line = 0
    for message in broker.taken:
        assert 0 < len(message.lines) <= MOST_LINES
        assert message.ByteSize() < 2**20
        next_line += message.left_out
        for line in message.lines:
            assert int(line.event[:9]) == next_line
            next_line += 1
    assert next_line == logged
