"""Pools and registered extractors through the Kubernetes API."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from kubernetes import client

from essp_common.errors import ConfigError
from essp_common.runtime.troubles import Kind
from essp_engine.registrations import Resources
from essp_master.pools.kubernetes import COST, MAX_REPLICAS, MIN_REPLICAS, RELEASE, SCALED_BY, KubernetesDriver
from essp_master.pools.port import PlatformRefuses, PoolSize
from tests.harness.kubernetes_api import Cluster
from tests.harness.kubernetes_objects import (
    DEMO_RGB,
    DEPTH,
    IMAGE,
    NAMESPACE,
    deployment,
    made_anew_before_deletion,
    make,
    read,
    seen,
    told,
)
from tests.harness.waiting import until


def test_a_pool_is_scaled_and_nothing_else_of_it_changed(api: client.ApiClient, driver: KubernetesDriver) -> None:
    make(api, "essp-decoder", "decoder", 3)
    seen(driver, decoder=PoolSize(3, 0))
    before = read(api, "essp-decoder")
    driver.scale("decoder", 7, [])
    after = read(api, "essp-decoder")
    seen(driver, decoder=PoolSize(7, 0))
    assert after.spec.template == before.spec.template


def test_bounds_are_those_of_the_chart(cluster: Cluster, driver: KubernetesDriver) -> None:
    body = deployment("essp-decoder", "decoder", 3) | {"status": {}}
    for low, high, bounds in (("2", "9", (2, 9)), ("", "many", (1, 64)), ("80", "", (80, 80))):
        body["metadata"]["annotations"] |= {MIN_REPLICAS: low, MAX_REPLICAS: high}
        cluster.put("deployments", body)
        seen(driver, decoder=PoolSize(3, 0, *bounds))


@pytest.mark.parametrize("labels", [{}, {SCALED_BY: "master"}, {SCALED_BY: "master", RELEASE: "other"}])
def test_a_pool_that_others_scale_is_not_touched(
    cluster: Cluster, driver: KubernetesDriver, labels: dict[str, str]
) -> None:
    """An HPA's, or another release's in the same namespace."""
    body = deployment("theirs", "decoder", 3)
    body["metadata"]["labels"] = labels
    cluster.put("deployments", body)
    cluster.put("deployments", deployment("ours", "extractor.flow", 1))
    seen(driver, extractor_flow=PoolSize(1, 0))
    driver.scale("decoder", 1, [])
    assert cluster.objects["deployments", "theirs"]["spec"]["replicas"] == 3


@pytest.mark.double  # where one of them goes at once
def test_idle_pods_are_the_ones_to_go(cluster: Cluster, driver: KubernetesDriver) -> None:
    cluster.put("deployments", deployment("essp-decoder", "decoder", 3))
    for number in range(3):
        cluster.put("pods", {"metadata": {"name": f"pod-{number}", "labels": {"essp.dev/pool": "essp-decoder"}}})
    seen(driver, decoder=PoolSize(3, 0))
    driver.scale("decoder", 2, ["pod-1-17", "pod-0-17", "pod-2-17"])
    costs = {name: cluster.objects["pods", name]["metadata"]["annotations"][COST] for name in cluster.names("pods")}
    assert int(costs["pod-1"]) < int(costs["pod-0"]) == int(costs["pod-2"])


def test_a_registered_extractor_gets_its_deployment(api: client.ApiClient, driver: KubernetesDriver) -> None:
    driver.add_extractor(DEPTH)
    seen(driver, extractor_depth_map=PoolSize(2, 0, registered=True))
    made = read(api, "extractor-depth-map").spec.template.spec
    container = made.containers[0]
    assert container.image == IMAGE
    assert container.args == ["extractor", "run", "--feature=depth_map"]
    assert container.resources.limits == {"cpu": "2", "memory": "2Gi", "nvidia.com/gpu": "1"}
    assert made.security_context.run_as_non_root, "as in the template"
    driver.scale("extractor.depth_map", 5, [])
    driver.add_extractor(DEPTH.model_copy(update={"resources": Resources(cpu="4")}))
    changed = read(api, "extractor-depth-map").spec
    assert changed.template.spec.containers[0].resources.limits["cpu"] == "4"
    assert changed.replicas == 5, "a change of what runs does not change how many"
    driver.remove("extractor.depth_map")
    driver.remove("extractor.depth_map")
    seen(driver)


def test_a_pool_of_the_chart_is_neither_changed_nor_removed_for_a_registration_of_its_name(
    cluster: Cluster, driver: KubernetesDriver
) -> None:
    cluster.put("deployments", deployment("essp-depth", "extractor.depth_map", 3))
    seen(driver, extractor_depth_map=PoolSize(3, 0))
    before = cluster.objects["deployments", "essp-depth"]["spec"]
    with pytest.raises(PlatformRefuses, match="essp-depth"):
        driver.add_extractor(DEPTH)
    driver.remove("extractor.depth_map")
    assert cluster.names("deployments") == ["essp-depth"]
    assert cluster.objects["deployments", "essp-depth"]["spec"] == before


def test_a_deployment_that_was_made_anew_meanwhile_is_not_removed_with_the_one_before(
    cluster: Cluster, driver: KubernetesDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch tells of it a moment later."""
    driver.add_extractor(DEPTH)
    seen(driver, extractor_depth_map=PoolSize(2, 0, registered=True))
    made_anew_before_deletion(monkeypatch, cluster, "deployments")
    driver.remove("extractor.depth_map")
    assert cluster.names("deployments") == ["extractor-depth-map"]


def test_an_upgrade_reaches_the_pools_of_registered_extractors(
    api: client.ApiClient, driver: KubernetesDriver, tmp_path: Path
) -> None:
    """Also what the template does not have any more; and not their size."""
    driver.add_extractor(DEPTH)
    seen(driver, extractor_depth_map=PoolSize(2, 0, registered=True))
    driver.scale("extractor.depth_map", 5, [])
    seen(driver, extractor_depth_map=PoolSize(5, 0, registered=True))
    assert driver.repair() == []
    file = tmp_path / "extractor-deployment.yaml"
    file.write_text(file.read_text().replace("name: ESSP_BUS", "name: ESSP_BUS_NOW"))
    (sentence,) = driver.repair()
    assert "extractor.depth_map" in sentence
    changed = read(api, "extractor-depth-map").spec
    assert [variable.name for variable in changed.template.spec.containers[0].env] == ["ESSP_BUS_NOW"]
    assert changed.replicas == 5
    until(lambda: driver.repair() == [])


def test_the_pool_of_a_registered_extractor_that_somebody_deletes_is_made_again(
    cluster: Cluster, driver: KubernetesDriver
) -> None:
    driver.add_extractor(DEPTH)
    seen(driver, extractor_depth_map=PoolSize(2, 0, registered=True))
    cluster.delete("deployments", "extractor-depth-map")
    seen(driver)
    driver.repair()
    seen(driver, extractor_depth_map=PoolSize(2, 0, registered=True))
    driver.remove("extractor.depth_map")
    seen(driver)
    driver.repair()
    assert cluster.names("deployments") == []


def test_without_the_charts_templates_nothing_can_be_registered(api: client.ApiClient, tmp_path: Path) -> None:
    bare = KubernetesDriver(api, NAMESPACE, tmp_path / "none")
    with pytest.raises(ConfigError, match="registrations: true"):
        bare.add_extractor(DEPTH)
    with pytest.raises(ConfigError, match="ranks: N"):
        bare.train("demo", "rgb", 1, None)


def test_who_describes_a_pool_reads_what_was_done_to_it(cluster: Cluster, driver: KubernetesDriver) -> None:
    cluster.put("deployments", deployment("essp-decoder", "decoder", 3))
    driver.train("demo", "rgb", 2, None)
    seen(driver, decoder=PoolSize(3, 0), trainer_demo_rgb=PoolSize(2, 0, 0))
    driver.tell("decoder", "3 -> 5: trainers wait")
    driver.tell("trainer.demo.rgb", "2 -> 1 ranks of 2")
    driver.tell("nobody", "3 -> 5: there is no such pool")
    found = {event["message"]: (event["type"], event["involvedObject"]["uid"]) for event in told(cluster)}
    assert found == {
        "3 -> 5: trainers wait": ("Normal", cluster.objects["deployments", "essp-decoder"]["metadata"]["uid"]),
        "2 -> 1 ranks of 2": ("Normal", cluster.objects["jobs", DEMO_RGB]["metadata"]["uid"]),
    }
    cluster.outage = True
    driver.tell("decoder", "what cannot be told is in the log")


def test_pods_that_do_not_stay_up_are_told_of(cluster: Cluster, driver: KubernetesDriver) -> None:
    cluster.put("deployments", deployment("essp-decoder", "decoder", 1))
    state = {"waiting": {"reason": "CrashLoopBackOff"}}
    last = {"terminated": {"exitCode": 2, "reason": "Error"}}
    container = {"name": "c", "image": IMAGE, "imageID": "", "ready": False, "restartCount": 3, "state": state}
    pod = {"metadata": {"name": "pod-0", "labels": {"essp.dev/pool": "essp-decoder"}}}
    cluster.put("pods", pod | {"status": {"containerStatuses": [container | {"lastState": last}]}})
    seen(driver, decoder=PoolSize(1, 0))
    driver.repair()
    words = driver.troubles()[Kind.CRASHING, "decoder"]
    assert "as pod-0: CrashLoopBackOff, restarted 3 times, the last time with exit code 2 (Error)" in words
    assert "kubectl logs --previous pod-0" in words
    waiting = container | {"state": {"waiting": {"reason": "ContainerCreating"}}}
    cluster.put("pods", pod | {"status": {"containerStatuses": [waiting]}})
    driver.repair()
    assert not driver.troubles(), "it may still come up"
    ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": datetime.now(UTC).isoformat()}}
    running = container | {"state": {"running": {}}, "lastState": ended}
    cluster.put("pods", pod | {"status": {"containerStatuses": [running]}})
    driver.repair()
    words = driver.troubles()[Kind.CRASHING, "decoder"]
    assert "pod-0 has ended OOMKilled, 3 times; raise resources of the pool" in words, "it is up, and not for long"
