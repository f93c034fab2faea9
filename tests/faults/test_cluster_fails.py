"""A Redis Cluster loses a primary: the replica takes over, and is found; clips that it lacks are made again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from essp_common.cache import redis as cache_redis
from essp_common.cache.port import clip_key
from essp_common.cache.redis import RedisCache
from essp_common.errors import CacheMiss, Unavailable
from tests.faults.conftest import REDIS_BYTES
from tests.faults.deployment import SESSION_TIMEOUT_MS, Deployment, Run
from tests.faults.redis_cluster import Cluster
from tests.harness.brokers import kafka_broker

pytestmark = pytest.mark.integration

T = TypeVar("T")

SIDES = ("worker", "master", "consumer")


class ClusterDeployment(Deployment):
    """A deployment over the cluster; everything else as in the other one, but for a broker of its own."""

    cluster: Cluster

    def urls(self, side: str) -> dict[str, str]:
        return super().urls(side) | {"ESSP_CACHE": self.cluster.url}

    def keys(self) -> list[str]:
        return re.findall(r"essp:\S+", self.cluster.keys())


@pytest.fixture
def clustered(deployment: Deployment, undisturbed: None, tmp_path: Path) -> Iterator[ClusterDeployment]:
    with (
        Cluster(tmp_path, REDIS_BYTES) as cluster,
        kafka_broker(tmp_path, session_timeout_ms=SESSION_TIMEOUT_MS) as kafka,
    ):
        made = ClusterDeployment(
            kafka, deployment.redis, deployment.s3, deployment.bucket, tmp_path, expected=deployment.expected
        )
        made.cluster = cluster
        for side in SIDES:
            made.link(side)
        yield made
        for process in made.processes:
            process.end()
        for links in made.links.values():
            for proxy in links.all():
                proxy.close()


def test_a_job_outlives_a_failover(clustered: ClusterDeployment, unique: str) -> None:
    deployment = clustered
    consumers, own = deployment.adapters("consumer"), deployment.adapters("master")
    decoder, extractor = deployment.decoder(), deployment.extractor()
    for process in (decoder, extractor):
        deployment.joined(process)
    with deployment.master(own) as master:
        run = Run(deployment, master, consumers, deployment.spec(unique), hold_at=3)
        try:
            run.held()
            assert deployment.keys()
            deployment.cluster.fail_over()
            run.finish()
        finally:
            run.close()
    for process in (decoder, extractor):
        deployment.drain(process)
    for adapters in (consumers, own):
        adapters.close()


KEYS = tuple(clip_key("job", 1, 0, index, 0) for index in range(24))
"""Enough that each primary holds some."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, REDIS_BYTES) as cluster:
        yield cluster


@pytest.fixture
def cache(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisCache]:
    """Holds `KEYS`, and waits a second for an answer."""
    monkeypatch.setitem(cache_redis._OPTIONS, "socket_timeout", 1.0)
    cache = RedisCache.from_url(cluster.url)
    for key in KEYS:
        cache.put(key, b"frames", ["trainer.a"], 60.0)
    yield cache
    cache.close()


def test_the_new_primary_is_counted_and_purged_by_who_asks_for_no_key(cluster: Cluster, cache: RedisCache) -> None:
    watching = RedisCache.from_url(cluster.url)
    cluster.fail_over()
    for key in KEYS:
        cache.put(key, b"frames", ["trainer.a"], 60.0)
    assert watching.usage().keys == len(KEYS)
    assert watching.purge("essp:") == len(KEYS)
    assert watching.usage().keys == 0
    watching.close()


def test_a_primary_that_hangs_is_left_for_the_new_one(cluster: Cluster, cache: RedisCache) -> None:
    others = {name: RedisCache.from_url(cluster.url) for name in ("put", "get", "parts", "ack_all")}
    with cluster.hangs():
        cluster.failed_over()
        for key in KEYS:
            in_a_few(partial(others["put"].put, key, b"frames", ["trainer.a", "trainer.b"], 60.0))
        for key in KEYS:
            assert bytes(in_a_few(partial(others["get"].get, key))) == b"frames"
            assert bytes(in_a_few(partial(others["parts"].get, key, [(1, 3)]))) == b"ra"
        in_a_few(lambda: others["ack_all"].ack_all(KEYS, "trainer.a"))
        assert others["ack_all"].ack_all(KEYS, "trainer.b") == len(KEYS)
        with pytest.raises(CacheMiss):
            others["get"].get(KEYS[0])
    for other in others.values():
        other.close()


def test_what_is_asked_at_once_goes_to_the_new_primary(cluster: Cluster) -> None:
    cache = RedisCache.from_url(cluster.url)
    cluster.fail_over()
    assert cache.ack_all(KEYS, "trainer.a") == 0
    cache.close()


def in_a_few(call: Callable[[], T]) -> T:
    """What it gives when it is called again after it failed, a few times."""
    for _ in range(4):
        with suppress(Unavailable):
            return call()
    return call()
