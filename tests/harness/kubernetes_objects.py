"""What the tests of pools in Kubernetes read, make and wait for."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client

from essp_engine.features.declared import DeclaredOutput
from essp_engine.registrations import ExtractorRow, Resources
from essp_master.pools.kubernetes import RELEASE, SCALED_BY, KubernetesDriver
from essp_master.pools.manifests import WORK, training_name
from essp_master.pools.port import PoolSize
from tests.harness.kubernetes_api import Cluster
from tests.harness.waiting import until

NAMESPACE = "essp-test"
IMAGE = "registry.example/depth@sha256:" + "0f" * 32
DEPTH = ExtractorRow(
    name="depth_map", image=IMAGE, output=DeclaredOutput(shape=("T",)), min=2, resources=Resources(cpu="2", gpus=1)
)
TIMES_S = (3, 2, 1)
PAUSES_S = (0.01, 0.05)
DEMO_RGB = training_name("demo", "rgb")
"""The template of these tests gives the Job no prefix."""


def template(kind: str) -> str:
    pod = {
        "metadata": {"labels": {"essp.dev/pool": "REGISTERED"}},
        "spec": {
            "schedulerName": "tests",
            "securityContext": {"runAsNonRoot": True},
            "containers": [{"name": "worker", "image": "none", "env": [{"name": "ESSP_BUS", "value": "kafka://k"}]}],
        },
    }
    spec: dict[str, Any] = {"template": pod}
    metadata: dict[str, Any] = {"name": "REGISTERED", "labels": {RELEASE: "essp"}}
    if kind == "Deployment":
        spec |= {"replicas": 1, "selector": {"matchLabels": {"essp.dev/pool": "REGISTERED"}}}
        metadata["labels"][SCALED_BY] = "master"
    else:
        pod["spec"]["restartPolicy"] = "Never"  # type: ignore[index]
        pod["spec"]["volumes"] = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1536Mi"}}]  # type: ignore[index]
        amounts = {"cpu": "1500m", "memory": "4Gi", "nvidia.com/gpu": "1"}
        pod["spec"]["containers"][0]["resources"] = {"limits": dict(amounts), "requests": dict(amounts)}  # type: ignore[index]
        spec["backoffLimit"] = 20
    return yaml.safe_dump({"kind": kind, "metadata": metadata, "spec": spec})


OWNER: dict[str, Any] = {"metadata": {"name": "essp-templates"}}
"""The ConfigMap of the release."""


def deployment(name: str, work: str, replicas: int) -> dict[str, Any]:
    body: dict[str, Any] = yaml.safe_load(template("Deployment").replace("REGISTERED", name))
    body["metadata"]["annotations"] = {WORK: work}
    body["spec"]["replicas"] = replicas
    return body


def begun(api: client.ApiClient, templates: Path, changed: Callable[[], None]) -> KubernetesDriver:
    """The driver of a master that begins."""
    driver = KubernetesDriver(api, NAMESPACE, templates, "essp", OWNER["metadata"]["name"], PAUSES_S)
    driver.start(changed)
    return driver


def read(api: client.ApiClient, name: str) -> Any:
    return client.AppsV1Api(api).read_namespaced_deployment(name, NAMESPACE)


def make(api: client.ApiClient, name: str, work: str, replicas: int) -> None:
    body: Any = deployment(name, work, replicas)
    client.AppsV1Api(api).create_namespaced_deployment(NAMESPACE, body)


def seen(driver: KubernetesDriver, **sizes: PoolSize) -> None:
    """Wait until the driver sees these pools, and no others; dots in names are underscores here."""
    until(lambda: {name.replace(".", "_"): size for name, size in driver.sizes().items()} == sizes)


def job_of(api: client.ApiClient, name: str = DEMO_RGB) -> Any:
    return client.BatchV1Api(api).read_namespaced_job(name, NAMESPACE)


def ended(cluster: Cluster, kind: str, reason: str, message: str) -> None:
    """Have the training's Job end."""
    cluster.end_job(DEMO_RGB, kind, reason, message)


def told(cluster: Cluster) -> list[dict[str, Any]]:
    """The events that the master has recorded."""
    events = [cluster.objects["events", name] for name in cluster.names("events")]
    return [event for event in events if event["source"].get("component") == "essp-master"]


def repaired(driver: KubernetesDriver, condition: Callable[[], bool]) -> None:
    """Repair until it is so, as the reconciler does whenever something changes."""
    until(lambda: bool(driver.repair() or True) and condition())


def made_anew_before_deletion(monkeypatch: pytest.MonkeyPatch, cluster: Cluster, kind: str) -> None:
    """Have somebody else delete an object of this kind and make one of its name, just before each deletion arrives."""
    answer = cluster.answer

    def raced(method: str, url: str, body: Any) -> Any:
        if method == "DELETE":
            for name in cluster.names(kind):
                former = copy.deepcopy(cluster.objects[kind, name])
                del former["metadata"]["uid"]
                cluster.delete(kind, name)
                cluster.put(kind, former)
        return answer(method, url, body)

    monkeypatch.setattr(cluster, "answer", raced)
