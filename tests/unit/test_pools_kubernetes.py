"""Pools, registered extractors, trainings and leadership through the Kubernetes API.

Against a double of the API server, or, with KUBECONFIG set, against the cluster that it names, in the namespace of
ESSP_TEST_NAMESPACE (default: essp-test), which has to exist and is used up.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config

from essp_common.errors import ConfigError, Unavailable
from essp_common.features.declared import DeclaredOutput
from services.master.leader import Election, wait_to_lead
from services.master.pools.kubernetes import COST, LEAST, MOST, SCALED_BY, WORK, KubernetesDriver
from services.master.pools.port import PoolSize
from services.master.registrations import ExtractorRow, Resources, TrainerRow
from tests.kubernetes_api import ApiServer, Cluster

NAMESPACE = os.environ.get("ESSP_TEST_NAMESPACE", "essp-test")
IMAGE = "registry.example/depth@sha256:" + "0f" * 32
DEPTH = ExtractorRow(
    name="depth_map", image=IMAGE, output=DeclaredOutput(shape=("T",)), least=2, resources=Resources(cpu="2", gpus=1)
)
TIMES_S = (3, 2, 1)


def template(kind: str) -> str:
    pod = {
        "metadata": {"labels": {"essp.dev/pool": "REGISTERED"}},
        "spec": {
            "securityContext": {"runAsNonRoot": True},
            "containers": [{"name": "worker", "image": "none", "env": [{"name": "ESSP_BUS", "value": "kafka://k"}]}],
        },
    }
    spec: dict[str, Any] = {"template": pod}
    if kind == "Deployment":
        spec |= {"replicas": 1, "selector": {"matchLabels": {"essp.dev/pool": "REGISTERED"}}}
    else:
        pod["spec"]["restartPolicy"] = "Never"  # type: ignore[index]
    labels = {SCALED_BY: "master"} if kind == "Deployment" else {}
    return yaml.safe_dump({"kind": kind, "metadata": {"name": "REGISTERED", "labels": labels}, "spec": spec})


def deployment(name: str, work: str, replicas: int) -> dict[str, Any]:
    body: dict[str, Any] = yaml.safe_load(template("Deployment").replace("REGISTERED", name))
    body["metadata"]["annotations"] = {WORK: work}
    body["spec"]["replicas"] = replicas
    return body


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        yield running


@pytest.fixture
def cluster(server: ApiServer) -> Cluster:
    return server.cluster


@pytest.fixture
def api(server: ApiServer) -> client.ApiClient:
    return config.new_client_from_config() if os.environ.get("KUBECONFIG") else server.client()


@pytest.fixture
def driver(api: client.ApiClient, tmp_path: Path) -> KubernetesDriver:
    (tmp_path / "extractor-deployment.yaml").write_text(template("Deployment"))
    (tmp_path / "trainer-job.yaml").write_text(template("Job"))
    return KubernetesDriver(api, NAMESPACE, tmp_path)


def read(api: client.ApiClient, name: str) -> Any:
    return client.AppsV1Api(api).read_namespaced_deployment(name, NAMESPACE)


def make(api: client.ApiClient, name: str, work: str, replicas: int) -> None:
    body: Any = deployment(name, work, replicas)
    client.AppsV1Api(api).create_namespaced_deployment(NAMESPACE, body)


def test_a_pool_is_scaled_and_nothing_else_of_it_changed(api: client.ApiClient, driver: KubernetesDriver) -> None:
    make(api, "essp-decoder", "decoder", 3)
    assert driver.sizes() == {"decoder": PoolSize(3, 0)}
    before = read(api, "essp-decoder")
    driver.scale("decoder", 7, [])
    after = read(api, "essp-decoder")
    assert driver.sizes() == {"decoder": PoolSize(7, 0)}
    assert after.spec.template == before.spec.template
    driver.remove("decoder")
    assert driver.sizes() == {}


def test_bounds_are_those_of_the_chart(cluster: Cluster, driver: KubernetesDriver) -> None:
    body = deployment("essp-decoder", "decoder", 3) | {"status": {}}
    for least, most, bounds in (("2", "9", (2, 9)), ("", "many", (1, 64)), ("80", "", (80, 80))):
        body["metadata"]["annotations"] |= {LEAST: least, MOST: most}
        cluster.put("deployments", body)
        assert driver.sizes() == {"decoder": PoolSize(3, 0, *bounds)}


def test_a_pool_that_others_scale_is_not_touched(cluster: Cluster, driver: KubernetesDriver) -> None:
    body = deployment("theirs", "decoder", 3)
    body["metadata"]["labels"] = {}
    cluster.put("deployments", body)
    driver.scale("decoder", 1, [])
    assert driver.sizes() == {}
    assert cluster.objects["deployments", "theirs"]["spec"]["replicas"] == 3


def test_idle_pods_are_the_ones_to_go(cluster: Cluster, driver: KubernetesDriver) -> None:
    cluster.put("deployments", deployment("essp-decoder", "decoder", 3))
    for number in range(3):
        cluster.put("pods", {"metadata": {"name": f"pod-{number}", "labels": {"essp.dev/pool": "essp-decoder"}}})
    driver.scale("decoder", 2, ["pod-1-17", "pod-0-17", "pod-2-17"])
    costs = {name: cluster.objects["pods", name]["metadata"]["annotations"][COST] for name in cluster.names("pods")}
    assert int(costs["pod-1"]) < int(costs["pod-0"]) == int(costs["pod-2"])


def test_a_registered_extractor_gets_its_deployment(api: client.ApiClient, driver: KubernetesDriver) -> None:
    driver.add_extractor(DEPTH)
    assert driver.sizes() == {"extractor.depth_map": PoolSize(2, 0)}
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
    assert driver.sizes() == {}


def test_a_training_moves_to_another_number_of_ranks(api: client.ApiClient, driver: KubernetesDriver) -> None:
    jobs: Any = client.BatchV1Api(api)
    name = "trainer-demo-rgb"
    driver.train("demo", "rgb", 2, None)
    first = jobs.read_namespaced_job(name, NAMESPACE)
    assert (first.spec.completions, first.spec.completion_mode) == (2, "Indexed")
    driver.train("demo", "rgb", 2, None)
    assert jobs.read_namespaced_job(name, NAMESPACE).metadata.resource_version == first.metadata.resource_version
    driver.train("demo", "rgb", 3, TrainerRow(name="big", image=IMAGE, models=("resnet50",)))
    moved = jobs.read_namespaced_job(name, NAMESPACE).spec
    assert moved.completions == 3
    container = moved.template.spec.containers[0]
    assert container.image == IMAGE
    assert {e.name: e.value for e in container.env} == {"ESSP_BUS": "kafka://k", "WORLD_SIZE": "3"}
    driver.train("demo", "rgb", 0, None)
    assert jobs.list_namespaced_job(NAMESPACE).items == []


def test_an_api_that_does_not_answer_is_tried_again_later(cluster: Cluster, driver: KubernetesDriver) -> None:
    cluster.outage = True
    with pytest.raises(Unavailable):
        driver.sizes()
    cluster.outage = False
    assert driver.sizes() == {}


def test_without_the_charts_templates_nothing_can_be_registered(api: client.ApiClient, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="registrations: true"):
        KubernetesDriver(api, NAMESPACE, tmp_path / "none").add_extractor(DEPTH)


def candidate(api: client.ApiClient, name: str, lost: threading.Event) -> Election:
    return Election(api, NAMESPACE, "essp-master", name, lost.set, TIMES_S)


def test_of_two_masters_one_leads_and_the_other_knows_who(api: client.ApiClient) -> None:
    first, second = candidate(api, "http://one", threading.Event()), candidate(api, "http://two", threading.Event())
    first.start()
    assert first.wait(10)
    second.start()
    assert not second.wait(1.5)
    assert (second.leads, second.leader, first.leader) == (False, "http://one", "http://one")


def test_a_leader_that_cannot_renew_gives_up_and_the_other_takes_over(cluster: Cluster, server: ApiServer) -> None:
    lost = threading.Event()
    first = candidate(server.client(), "http://one", lost)
    first.start()
    assert first.wait(10)
    cluster.outage = True
    assert lost.wait(10), "within the renew deadline"
    cluster.outage = False
    second = candidate(server.client(), "http://two", threading.Event())
    assert wait_to_lead(second, threading.Event(), 0.1)
    assert second.leader == "http://two"


def test_a_standby_that_is_to_leave_leaves(api: client.ApiClient) -> None:
    leader, standby = candidate(api, "http://one", threading.Event()), candidate(api, "http://two", threading.Event())
    leader.start()
    assert leader.wait(10)
    draining = threading.Event()
    draining.set()
    assert not wait_to_lead(standby, draining)
