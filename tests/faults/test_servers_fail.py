"""Servers that lose their data, fill up, stall, restart or answer wrongly during a job."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from essp.servers.servers import RedisServer
from essp_common import topics
from essp_common.failures import kind_word
from essp_common.pb.v1.messages_pb2 import DeadLetter
from essp_common.wiring import Adapters
from tests.faults.conftest import REDIS_BYTES, Begin
from tests.faults.deployment import Deployment
from tests.harness.waiting import LONGEST_S

pytestmark = pytest.mark.integration

HOLD_AT = 5


def figure(redis: RedisServer, section: str, name: str) -> int:
    """One number of `INFO`; 0 where there is none."""
    found = [line for line in redis.execute("INFO", section).decode().splitlines() if line.startswith(f"{name}:")]
    return int(found[0].partition(":")[2].removeprefix("count=")) if found else 0


# --- Redis ---


@pytest.mark.lane("long")
def test_redis_is_emptied(deployment: Deployment, begin: Begin) -> None:
    run = begin(hold_at=HOLD_AT).held()
    assert deployment.keys()
    deployment.redis.execute("FLUSHALL")
    assert run.finish().counts.lost > 0


def test_redis_starts_again_with_nothing(deployment: Deployment, begin: Begin) -> None:
    run = begin(hold_at=HOLD_AT).held()
    assert deployment.keys()
    deployment.redis.stop()
    run.hold(HOLD_AT + 1)
    assert deployment.links["consumer"].redis.wait_for("unreachable", 1, LONGEST_S)
    deployment.redis.start()
    assert run.finish().counts.lost > 0


def test_redis_is_full(deployment: Deployment, begin: Begin) -> None:
    """No room is no error: everybody waits, and nothing is made again."""
    refused = figure(deployment.redis, "errorstats", "errorstat_OOM")
    deployment.redis.execute("CONFIG", "SET", "maxmemory", str(figure(deployment.redis, "memory", "used_memory") // 2))
    try:
        run = begin()
        run.until("writes are refused", lambda: figure(deployment.redis, "errorstats", "errorstat_OOM") > refused)
        assert run.status().counts.decoded == 0
    finally:
        deployment.redis.execute("CONFIG", "SET", "maxmemory", str(REDIS_BYTES))
    counts = run.finish().counts
    assert (counts.lost, counts.failed) == (0, 0)


def test_redis_stands_still(deployment: Deployment, begin: Begin) -> None:
    """For longer than clients wait for an answer."""
    run = begin(hold_at=HOLD_AT).held()
    pid = figure(deployment.redis, "server", "process_id")
    os.kill(pid, signal.SIGSTOP)
    try:
        run.go()
        threading.Event().wait(2.5)
    finally:
        os.kill(pid, signal.SIGCONT)
    run.finish()


def test_keys_expire_before_they_are_read(deployment: Deployment, begin: Begin) -> None:
    run = begin(hold_at=HOLD_AT, ttl_s=1)  # never at rest: on a busy machine the extractor finds some gone, too
    run.until("all keys have expired", lambda: run.status().counts.decoded > HOLD_AT and not deployment.keys())
    assert run.finish().counts.lost > 0


# --- the object store ---


def test_an_object_store_that_fails_for_a_while(deployment: Deployment, begin: Begin) -> None:
    front = deployment.s3
    front.status(500, 1, "InternalError")
    front.status(503, 1, "SlowDown")
    front.truncate(1)
    front.short(1)
    front.delay(1, 0.2)
    front.status(400, 2, "ExpiredToken")
    front.status(503, 5, "SlowDown")
    before = front.faults.copy()
    counts = begin().finish().counts
    assert front.faults - before == {"500": 1, "503": 6, "truncated": 1, "short": 1, "late": 1, "400": 2}
    assert counts.failed == 0


def test_videos_that_changed_or_vanished(deployment: Deployment, begin: Begin, consumers: Adapters) -> None:
    """Each is reported, and another of its class takes its place; everything else is as ever. One answer blames no
    video: it is asked for again."""
    letters = consumers.bus.subscribe([topics.DEADLETTER], None)
    deployment.s3.retag(4)
    deployment.s3.status(404, 4, "NoSuchKey")
    run = begin()
    run.complete()
    counts = run.leaves_nothing().counts
    assert counts.failed == counts.replaced >= 2  # a unit may have several clips of its video
    assert counts.skipped == 0
    for consumer, expected in deployment.expected[run.clips].items():
        taken = run.taken[consumer]
        assert [place[:2] for place in taken] == [place[:2] for place in expected]
        assert sum(mine != theirs for mine, theirs in zip(taken, expected, strict=True)) <= counts.failed
    kinds = [kind_word(DeadLetter.FromString(record.value).kind) for record in letters.poll(1000, LONGEST_S)]
    letters.close()
    assert set(kinds[-counts.failed :]) == {"changed", "vanished"}
