"""Tenants of one bus and one cache never meet: what one of them says, holds and drops is its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import KafkaAdminClient

from essp_common import topics
from essp_common.bus.kafka import KafkaBus
from essp_common.bus.kafka_clients import connected
from essp_common.bus.kafka_options import KafkaOptions
from essp_common.bus.memory import MemoryBus
from essp_common.bus.port import Bus
from essp_common.bus.tenant import TenantBus
from essp_common.cache.memory import MemoryCache
from essp_common.cache.port import FrameCache, clip_key, job_prefix
from essp_common.cache.port import of_tenant as key_of_tenant
from essp_common.cache.tenant import TenantCache
from essp_common.errors import CacheMiss, ConfigError
from essp_common.job.status import JobState
from essp_common.runtime import ids
from essp_common.runtime.config import Settings
from essp_common.wiring import Adapters, Stores, open_bus, open_cache
from tests.contract.bus_suite import BusContract, take
from tests.contract.cache_suite import TTL_S, CacheContract
from tests.harness.fleet import Fleet, make_job, master_over, run_to_rest

NAMES = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?", fullmatch=True)
TENANTS = st.one_of(st.just(""), NAMES.filter(lambda name: name not in ids.RESERVED))


class TestTenantBus(BusContract):
    """A tenant's part of a bus is a bus."""

    @pytest.fixture
    def bus(self) -> Iterator[Bus]:
        bus = TenantBus(MemoryBus(), "vision")
        yield bus
        bus.close()


class TestTenantCache(CacheContract):
    """A tenant's part of a cache is a cache."""

    @pytest.fixture
    def cache(self) -> Iterator[FrameCache]:
        cache = TenantCache(open_cache("memory://?bytes=8MiB"), "vision")
        yield cache
        cache.close()


@given(TENANTS, TENANTS, st.one_of(NAMES, st.sampled_from(sorted(ids.RESERVED))))
def test_no_name_of_one_tenant_begins_as_all_of_anothers_do(one: str, other: str, job: str) -> None:
    if one == other:
        return
    if other:
        for name in (*topics.FIXED, topics.features(job), ids.DECODER, ids.extractor_pool([job]), f"trainer.rgb.{job}"):
            assert not topics.of_tenant(one, name).startswith(topics.of_tenant(other, ""))
    mine, theirs = (key_of_tenant(tenant, clip_key(job, 1, 0, 7, 0)) for tenant in (one, other))
    assert not mine.startswith(key_of_tenant(other, job_prefix(job)))
    assert mine != theirs


@pytest.mark.parametrize("name", ["essp", "decoder", "master", "Vision", "a.b", "a:b", "-a", "a" * 41])
def test_names_that_no_tenant_may_have(name: str) -> None:
    with pytest.raises(ConfigError, match="ESSP_TENANT: "):
        Settings(tenant=name)


def both(bus: Bus, cache: FrameCache, tenant: str) -> tuple[Bus, FrameCache]:
    return TenantBus(bus, tenant), TenantCache(cache, tenant)


def check_apart(bus: Bus, cache: FrameCache) -> None:
    """Two tenants, and who is none, with the same names of everything."""
    users = [both(bus, cache, "vision"), both(bus, cache, "speech"), (bus, cache)]
    key = clip_key("job", 1, 0, 0, 0)
    for number, (its_bus, its_cache) in enumerate(users):
        its_bus.ensure_topics({topics.CONTROL: 1})
        its_bus.publish(topics.CONTROL, b"job", str(number).encode())
        its_bus.flush()
        its_cache.put(key, str(number).encode(), ["trainer.rgb"], TTL_S)
    for number, (its_bus, its_cache) in enumerate(users):
        assert its_bus.backlog(topics.CONTROL, "decoder") == 1
        subscription = its_bus.subscribe([topics.CONTROL], "decoder")
        (record,) = take(subscription, 1)
        assert (record.topic, record.value) == (topics.CONTROL, str(number).encode())
        subscription.done(record)
        subscription.close()
        assert [its.backlog(topics.CONTROL, "decoder") for its, _ in users] == [0] * (number + 1) + [1] * (2 - number)
        assert bytes(its_cache.get(key)) == str(number).encode()
    assert users[0][1].purge(job_prefix("job")) == 1
    with pytest.raises(CacheMiss):
        users[0][1].get(key)
    assert users[2][1].purge(job_prefix("job")) == 1, "its own alone"
    assert users[1][1].ack(key, "trainer.rgb")


def test_tenants_of_one_process() -> None:
    check_apart(MemoryBus(), MemoryCache(2**20))


@pytest.mark.lane("promises")
@pytest.mark.integration
def test_tenants_of_kafka_and_redis(own_kafka_url: str, empty_redis_url: str) -> None:
    bus, cache = open_bus(own_kafka_url), open_cache(empty_redis_url)
    try:
        check_apart(bus, cache)
        with pytest.raises(ConfigError, match=r"topic vision\.essp\.control has 1 partitions and ESSP needs 2"):
            TenantBus(bus, "vision").ensure_topics({topics.CONTROL: 2})
    finally:
        cache.close()
        bus.close()
    admin: Any = connected(KafkaAdminClient, **KafkaOptions.from_url(own_kafka_url).client())
    try:
        assert {name for name in admin.list_topics() if topics.CONTROL in name} == {
            "essp.control", "vision.essp.control", "speech.essp.control"
        }  # fmt: skip
    finally:
        admin.close()


def test_nothing_of_a_tenants_commands_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, Any]] = []
    monkeypatch.setattr(
        KafkaBus, "ensure_topics", lambda self, wanted, kept=(), grow=False: asked.append((wanted, kept))
    )
    open_bus("kafka://nowhere:1", tenant="vision").ensure_topics({topics.CONTROL: 1, topics.SEEDS: 64})
    assert asked == [({"vision.essp.control": 1, "vision.essp.seeds": 64}, {"vision.essp.control"})]


def test_two_tenants_run_jobs_of_the_same_name_side_by_side(tmp_path: Path) -> None:
    bus, cache = MemoryBus(), MemoryCache(64 * 2**20)
    running = []
    for tenant in ("vision", "speech"):
        folder = tmp_path / tenant
        folder.mkdir()
        its_bus, its_cache = both(bus, cache, tenant)
        its_bus.ensure_topics({topic: topics.partitions(topic) for topic in topics.FIXED})
        adapters = Adapters(its_bus, its_cache, Stores([f"file://{folder}"]))
        master = master_over(adapters)
        master.start(make_job(folder))
        running.append((master, Fleet(adapters, make_job(folder))))
    (one, its_fleet), (other, others_fleet) = running
    run_to_rest(one, its_fleet)
    its_fleet.finish()
    run_to_rest(one, its_fleet)
    assert one.status("small").state is JobState.COMPLETED
    assert (other.status("small").progress.done, other.status("small").state) == (0, JobState.RUNNING)
    run_to_rest(other, others_fleet)
    others_fleet.finish()
    run_to_rest(other, others_fleet)
    assert other.status("small").counts == one.status("small").counts
    assert cache.usage().keys == 0
    for _, fleet in running:
        fleet.close()
