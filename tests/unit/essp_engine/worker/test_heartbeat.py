"""What a worker says of itself, and what the master makes of it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from essp_common import topics
from essp_common.bus.memory import MemoryBus
from essp_common.errors import ConfigError, Unavailable
from essp_common.pb.v1.messages_pb2 import Heartbeat, Progress
from essp_common.runtime.troubles import Kind
from essp_engine.worker.heartbeat import Heart, LaneLoad
from essp_master.pools.worker_registry import GONE_S, STUCK_S, WorkerRegistry
from tests.harness.fleet import Clock


def test_busy_is_the_share_of_the_lanes_time() -> None:
    clock = Clock()
    load = LaneLoad(2, clock)
    load.begin()
    clock.now_s += 4
    load.end()
    clock.now_s += 6
    assert load.take() == {"lanes": 2, "busy": 0.2, "done": 1, "in_hand": 0, "oldest": 0}
    clock.now_s += 10
    assert load.take()["busy"] == 0


def test_what_is_in_hand_counts_as_work_in_every_interval() -> None:
    clock = Clock()
    load = LaneLoad(1, clock)
    clock.now_s += 5
    load.begin()
    for expected in (0.5, 1.0, 1.0):
        clock.now_s += 5 if expected == 0.5 else 10
        gauges = load.take()
        assert (gauges["busy"], gauges["in_hand"]) == (expected, 1)
    assert gauges["oldest"] == 25
    clock.now_s += 5
    load.end()
    clock.now_s += 5
    assert load.take()["busy"] == 0.5, "only since the last look"


def test_lanes_are_told_apart() -> None:
    load = LaneLoad(2)
    begun, go = threading.Event(), threading.Event()

    def lane() -> None:
        load.begin()
        begun.set()
        go.wait()
        load.end()

    thread = threading.Thread(target=lane)
    thread.start()
    begun.wait()
    load.begin()
    assert load.take()["in_hand"] == 2
    load.end()
    assert load.take()["in_hand"] == 1
    go.set()
    thread.join()


def test_a_heart_beats_at_once_and_stops_with_its_worker() -> None:
    bus = MemoryBus()
    bus.ensure_topics({topics.PROGRESS: 1})
    reader = bus.subscribe([topics.PROGRESS], None)
    troubles = {Kind.STORAGE_FULL: "no room below b\udcff"}  # a folder whose name is no UTF-8
    with Heart(bus, "w1", "decoder", lambda: {"busy": 0.5}, interval_s=3600, troubles=lambda: troubles):
        (record,) = reader.poll(1, 10)
    progress = Progress.FromString(record.value)
    assert (progress.worker, progress.heartbeat.pool, dict(progress.heartbeat.gauges)) == (
        "w1",
        "decoder",
        {"busy": 0.5},
    )
    assert dict(progress.heartbeat.troubles) == {"storage-full": "no room below b?"}
    assert progress.heartbeat.machine.memory_bytes > 2**20
    assert not [thread for thread in threading.enumerate() if thread.name == "essp-heart"]


@pytest.mark.parametrize("error", [Unavailable("away"), ConfigError("no right to publish"), ValueError("odd")])
def test_a_heart_beats_on_whatever_becomes_of_a_beat(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    bus = MemoryBus()
    bus.ensure_topics({topics.PROGRESS: 1})
    reader, publish, failures = bus.subscribe([topics.PROGRESS], None), bus.publish, [error, error]

    def failing(*message: Any) -> None:
        if failures:
            raise failures.pop()
        publish(*message)

    monkeypatch.setattr(bus, "publish", failing)
    with Heart(bus, "w1", "decoder", dict, interval_s=0.01):
        assert reader.poll(1, 10)


def beat(pool: str = "decoder", **gauges: float) -> Heartbeat:
    return Heartbeat(pool=pool, gauges={"busy": 0.0, "in_hand": 0, "oldest": 0, **gauges})


def test_the_registry_knows_which_workers_are_up_busy_and_stuck() -> None:
    worker_registry = WorkerRegistry()
    worker_registry.note("a", beat(busy=1.0, in_hand=2), 0.0)
    worker_registry.note("b", beat(busy=0.5, in_hand=1), 1.0)
    worker_registry.note("c", beat(busy=1.0, in_hand=1, oldest=STUCK_S + 1), 1.0)
    worker_registry.note("d", beat("extractor.flow"), 1.0)
    pools = worker_registry.pools(2.0)
    assert set(pools) == {"decoder", "extractor.flow"}
    decoder = pools["decoder"]
    assert (decoder.ready, decoder.stuck) == (3, 1)
    assert decoder.idlest() == ["c", "b", "a"], "who hangs is spared first, then who has least to do"
    assert set(worker_registry.pools(GONE_S + 0.5)["decoder"].idlest()) == {"b", "c"}
    assert worker_registry.pools(1000.0) == {}
