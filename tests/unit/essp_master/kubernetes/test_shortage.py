"""Pods that do not come up: they are waited for, no more are added, and people see why."""

from __future__ import annotations

import re
from functools import partial

import pytest

from essp_common.pb.v1.messages_pb2 import Heartbeat
from essp_common.runtime.conditions import Lasting
from essp_common.runtime.troubles import Kind
from essp_master.pools.kubernetes import KubernetesDriver
from essp_master.pools.reconciler import Reconciler
from essp_master.pools.worker_registry import WorkerRegistry
from tests.harness.fleet import Clock
from tests.harness.kubernetes_api import Cluster
from tests.harness.kubernetes_objects import DEMO_RGB, deployment
from tests.harness.waiting import until
from tests.unit.essp_master.pools.reconciler_bench import job

EACH_PER_S = 2.0
NEEDED = 12
"""Workers of 2 clips/s for trainers that could take 20 clips/s, with headroom."""


class Scaled:
    """A reconciler over a driver in a cluster whose decoders make 2 clips/s each."""

    def __init__(self, cluster: Cluster, driver: KubernetesDriver) -> None:
        self.cluster = cluster
        self.driver = driver
        self.clock = Clock()
        self.clock.now_s += 0.5  # the window of rates ends between two looks
        self.decoded = 0.0
        self.sizes: list[int] = []
        self.registry = WorkerRegistry()
        self.reconciler = Reconciler(driver, self.registry, lambda: [job(0.5, round(self.decoded))], clock=self.clock)
        cluster.put("deployments", deployment("essp-decoder", "decoder", 2))

    def pass_time(self, seconds: int, room: int, broken: str = "") -> None:
        """Ten seconds at a time, with room for so many pods."""
        for _ in range(0, seconds, 10):
            self.clock.now_s += 10
            self.cluster.settle(room, broken)
            decoder = self.cluster.objects["deployments", "essp-decoder"]
            wanted, ready = decoder["spec"]["replicas"], decoder["status"].get("readyReplicas", 0)
            for number in range(ready):
                gauges = {"busy": 1.0, "in_hand": 1.0, "oldest": 0.0}
                self.registry.note(f"w{number}", Heartbeat(pool="decoder", gauges=gauges), self.clock())
            self.decoded += 10 * EACH_PER_S * ready
            until(partial(self._sees, wanted, ready))
            self.reconciler.step()
            self.sizes.append(self.cluster.objects["deployments", "essp-decoder"]["spec"]["replicas"])

    def _sees(self, wanted: int, ready: int) -> bool:
        found = self.driver.sizes().get("decoder")
        return found is not None and (found.replicas, found.ready) == (wanted, ready)

    def told(self) -> list[str]:
        return [event.message for event in self.reconciler.events() if "not up" in event.message]


@pytest.fixture
def scaled(cluster: Cluster, driver: KubernetesDriver) -> Scaled:
    return Scaled(cluster, driver)


def test_where_there_is_room_for_half_no_more_are_asked_for_than_are_needed(scaled: Scaled) -> None:
    scaled.pass_time(150, room=5)
    wanted = scaled.sizes[-1]
    assert 5 < wanted == max(scaled.sizes) <= NEEDED
    (pool,) = scaled.reconciler.pools()
    assert (pool.replicas, pool.ready) == (wanted, 5)
    assert f"{wanted - 5} of {wanted} workers are not up yet, and none is added to them" in pool.reason
    assert re.match(rf"{wanted - 5} pods are not placed, as essp-decoder-\S+: Unschedulable: 0/3 nodes", pool.held_up)
    assert scaled.told() == [f"{wanted - 5} of {wanted} workers are not up: {pool.held_up}"], "once"
    scaled.pass_time(20, room=64)
    assert not scaled.reconciler.pools()[0].held_up


def test_a_quota_that_is_used_up_is_named_and_not_asked_again(scaled: Scaled) -> None:
    scaled.cluster.limit(5)
    scaled.pass_time(150, room=64)
    assert 5 < scaled.sizes[-1] == max(scaled.sizes) <= NEEDED
    words = scaled.reconciler.pools()[0].held_up
    assert "exceeded quota: team, requested: pods=1" in words
    assert len(scaled.told()) == 1
    scaled.cluster.limit()
    advice = re.search(r"at once after `kubectl annotate deployment (\S+) (\S+)=\$\(date \+%s\) --overwrite`", words)
    assert advice is not None
    scaled.cluster.annotate("deployments", *advice.groups())
    scaled.pass_time(20, room=64)
    assert not scaled.reconciler.pools()[0].held_up


@pytest.mark.double
def test_nodes_that_are_slow_to_come_are_waited_for(scaled: Scaled) -> None:
    """Room for three pods more every minute and a half."""
    for room in (3, 6, 9, 12):
        scaled.pass_time(90, room)
    assert 9 < scaled.sizes[-1] == max(scaled.sizes) <= NEEDED


def test_an_image_that_is_not_there_is_named_and_a_condition(scaled: Scaled) -> None:
    scaled.pass_time(100, room=64, broken="ImagePullBackOff")
    assert scaled.sizes[-1] == 2
    assert "ImagePullBackOff" in scaled.reconciler.pools()[0].held_up
    assert "ImagePullBackOff" in scaled.driver.troubles()[Kind.CRASHING, "decoder"]


def test_a_quota_that_stops_ranks_is_named_and_a_condition(cluster: Cluster, driver: KubernetesDriver) -> None:
    """Only an Event tells, and a training that lacks a rank stands still."""
    cluster.limit(1)
    driver._lasting = Lasting(0.0)
    driver.train("demo", "rgb", 2, None)

    def named() -> bool:
        cluster.settle(room=9)
        driver.repair()
        size = driver.sizes().get("trainer.demo.rgb")
        return size is not None and "pods are not made: FailedCreate: " in size.held_up

    until(named)
    driver.troubles()
    words = driver.troubles()[Kind.HELD_UP, "trainer.demo.rgb"]
    assert "exceeded quota: team, requested: pods=1" in words
    assert words == driver.sizes()["trainer.demo.rgb"].held_up


def test_ranks_that_find_no_node_are_told_of(cluster: Cluster, driver: KubernetesDriver) -> None:
    driver.train("demo", "rgb", 2, None)
    cluster.settle(room=1)
    until(lambda: driver.sizes().get("trainer.demo.rgb") is not None and driver.sizes()["trainer.demo.rgb"].ready == 1)
    driver.repair()
    held_up = driver.sizes()["trainer.demo.rgb"].held_up
    assert re.search(rf"1 pod is not placed, as {DEMO_RGB}-1[^:]*: Unschedulable", held_up)
