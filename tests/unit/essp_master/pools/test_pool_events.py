"""What was done to pools is shown by the next master, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from essp_common.errors import Unavailable
from essp_common.objects.port import ObjectStore
from essp_common.wiring import open_store
from essp_master.pools.pool_events import _SILENT_S, PoolEvents
from essp_master.pools.rules import PoolRule
from tests.harness.fleet import Clock
from tests.unit.essp_master.pools.reconciler_bench import ReconcilerBench


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(tmp_path.as_uri())


def told(events: PoolEvents) -> list[str]:
    return [event.message for event in events.all()]


def test_a_master_shows_what_those_before_it_have_done_and_then_its_own(store: ObjectStore) -> None:
    first, second = PoolEvents(store), PoolEvents(store)
    bench = ReconcilerBench(None, first, decoder=1)
    bench.reconciler.set("decoder", PoolRule(replicas=3), "ann")
    bench.reconciler.step()
    before = told(first)
    assert "ann set it to" in before[0]
    successor = ReconcilerBench(None, second, decoder=3)
    successor.reconciler.set("decoder", PoolRule(replicas=2), "bob")  # before it has read anything
    successor.reconciler.step()
    assert told(second)[: len(before)] == before
    assert "bob set it to" in told(second)[len(before)]
    third = PoolEvents(store)
    third.save()
    assert third.all() == second.all()


def test_a_store_that_does_not_answer_is_left_alone_for_a_while(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, asked = Clock(), []

    def away(*_: object) -> None:
        asked.append(1)
        raise Unavailable("the store is away")

    events = PoolEvents(store, clock)
    events.add("decoder", "1 -> 2: trainers wait")
    with monkeypatch.context() as patched:
        patched.setattr(type(store), "put", away)
        for _ in range(3):
            events.save()
    assert (len(asked), told(events)) == (1, ["1 -> 2: trainers wait"])
    clock.now_s += _SILENT_S
    events.save()
    successor = PoolEvents(store)
    successor.save()
    assert told(successor) == ["1 -> 2: trainers wait"]


@pytest.mark.parametrize("damage", [b"[{", b"{}", b'[{"time": "yesterday", "pool": "", "message": ""}]', b"\xff"])
def test_what_cannot_be_read_is_replaced(store: ObjectStore, damage: bytes) -> None:
    store.put("pool-events.json", damage)
    for number in (1, 2):
        events = PoolEvents(store)
        events.add("decoder", f"{number}")
        events.save()
    assert told(events) == ["1", "2"]


def test_without_a_store_events_last_as_long_as_the_process() -> None:
    events = PoolEvents()
    events.add("decoder", "1 -> 2: trainers wait")
    events.save()
    assert told(events) == ["1 -> 2: trainers wait"]
