"""Every pool is its own: replicas, resources, GPUs, nodes, scaling; and whoever scales it owns its size."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from essp_common import topics
from essp_common.runtime import ids
from tests.chart.rendering import (
    CASES,
    Helm,
    Object,
    Refused,
    container_of,
    labels_of,
    named,
    of_kind,
    pod_of,
    pool_of,
    workloads,
)
from tests.harness.kubernetes_api import ApiServer
from tools.chart_reference import CHART

POOLS = ("master", "decoder", "extractor", "aggregator", "predictor")
OWN: Object = {
    "image": {"repository": "example.com/mine", "tag": "7"},
    "resources": {"requests": {"cpu": "3", "memory": "9Gi"}, "limits": {"memory": "9Gi"}},
    "gpu": {"count": 2, "resource": "amd.com/gpu", "type": "MI300X", "typeLabel": "amd.com/gpu.product"},
    "runtimeClassName": "gvisor",
    "priorityClassName": "high",
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "team", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "topologySpreadConstraints": [{"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
    "shm": "2Gi",
    "tmp": "3Gi",
    "volumes": [{"name": "extra", "emptyDir": {"sizeLimit": "1Gi"}}],
    "volumeMounts": [{"name": "extra", "mountPath": "/extra"}],
    "podLabels": {"own": "label"},
    "podAnnotations": {"own": "annotation"},
    "serviceAccount": {"annotations": {"role": "mine"}},
    "env": [{"name": "OWN", "value": "yes"}],
    "envFrom": [{"secretRef": {"name": "proxy"}}],
    "initContainers": [{"name": "warm", "image": "busybox", "securityContext": {"privileged": True}}],
    "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["store"]}],
    "dnsConfig": {"options": [{"name": "ndots", "value": "1"}]},
    "schedulerName": "volcano",
    "workloadLabels": {"kueue.x-k8s.io/queue-name": "team"},
    "workloadAnnotations": {"own": "of the workload"},
    "settings": {"log_level": "DEBUG"},
    "graceS": 77,
}


CPUS = {"decoder": "4", "extractor": "4", "aggregator": "2"}
"""Limits that are there without being asked for: these pools have as many processes."""


@pytest.mark.parametrize("pool", POOLS)
def test_each_pool_can_be_changed_and_no_other_changes(helm: Helm, pool: str) -> None:
    before, after = helm.render(), helm.render(pools={pool: OWN})
    others = [made for made in before if made["metadata"]["labels"].get("essp.dev/pool") not in (pool, None)]
    assert all(made in after for made in others)
    workload = pool_of(after, pool)
    pod, container = pod_of(workload), container_of(workload)
    spec = pod["spec"]
    assert container["image"] == "example.com/mine:7"
    assert container["resources"]["limits"] == {"memory": "9Gi", "amd.com/gpu": "2"} | (
        {"cpu": CPUS[pool]} if pool in CPUS else {}
    )
    assert spec["nodeSelector"] == {"disk": "ssd", "amd.com/gpu.product": "MI300X"}
    assert spec["tolerations"] == [
        {"key": "team", "operator": "Exists"},
        {"key": "amd.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
    ]
    assert (spec["runtimeClassName"], spec["priorityClassName"]) == ("gvisor", "high")
    assert spec["affinity"] == {"podAntiAffinity": {}}
    assert (spec["schedulerName"], spec["hostAliases"], spec["dnsConfig"]) == (
        "volcano",
        OWN["hostAliases"],
        OWN["dnsConfig"],
    )
    assert {"secretRef": {"name": "proxy"}} in container["envFrom"]
    (init,) = spec["initContainers"]
    assert init == {"name": "warm", "image": "busybox", "securityContext": container["securityContext"]}
    assert "queue-name" not in str(pod["metadata"])
    assert workload["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert workload["metadata"]["annotations"]["own"] == "of the workload"
    (spread,) = spec["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["labelSelector"]["matchLabels"]["essp.dev/pool"]) == ("zone", pool)
    volumes = {volume["name"]: volume.get("emptyDir", {}) for volume in spec["volumes"]}
    assert volumes["shm"] == {"medium": "Memory", "sizeLimit": "2Gi"}
    assert (volumes["tmp"]["sizeLimit"], volumes["extra"]["sizeLimit"]) == ("3Gi", "1Gi")
    assert {"name": "extra", "mountPath": "/extra"} in container["volumeMounts"]
    assert pod["metadata"]["labels"]["own"] == "label"
    assert pod["metadata"]["annotations"]["own"] == "annotation"
    assert named(after, "ServiceAccount", spec["serviceAccountName"])["metadata"]["annotations"] == {"role": "mine"}
    assert {"name": "OWN", "value": "yes"} in container["env"]
    assert {"name": "ESSP_LOG_LEVEL", "value": "DEBUG"} in container["env"]
    assert spec["terminationGracePeriodSeconds"] == 77


def test_defaults_of_all_pools_can_be_changed(helm: Helm) -> None:
    objects = helm.render(poolDefaults={"nodeSelector": {"pool": "cpu"}, "replicas": 3})
    for pool in POOLS:
        assert pod_of(pool_of(objects, pool))["spec"]["nodeSelector"] == {"pool": "cpu"}
    assert pool_of(objects, "aggregator")["spec"]["replicas"] == 3
    assert pool_of(objects, "decoder")["spec"]["replicas"] == 2  # it says so itself


def test_a_pool_can_be_left_out(helm: Helm) -> None:
    objects = helm.render(pools={"predictor": {"enabled": False}})
    assert not [
        made for made in objects if made["metadata"]["labels"].get("app.kubernetes.io/component") == "predictor"
    ]


def test_images(helm: Helm) -> None:
    def images(**values: Any) -> dict[str, str]:
        return {
            labels_of(w).get("essp.dev/pool", "task"): container_of(w)["image"]
            for w in workloads(helm.render(**values))
        }

    version = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))["appVersion"]
    assert images(image={"registry": ""}) == {
        "master": f"essp-master:{version}",
        "task": f"essp-master:{version}",
        "decoder": f"essp-video:{version}",
        "extractor": f"essp-video:{version}",
        "aggregator": f"essp-trainer:{version}-cpu",
        "predictor": f"essp-trainer:{version}-cpu",
    }
    found = images(image={"registry": "r.example.com/essp/", "tag": "2"}, pools={"predictor": {"gpu": {"count": 1}}})
    assert found["predictor"] == "r.example.com/essp/essp-trainer:2-cuda"
    digest = "sha256:" + "0" * 64
    pinned = images(pools={"decoder": {"image": {"digest": digest}}})["decoder"]
    assert pinned == f"registry.example.com/essp/essp-video@{digest}"


def test_extra_pools_run_beside_the_others(helm: Helm) -> None:
    objects = helm.render(extraPools={"fast": {"service": "extractor", "features": ["hog", "hof"], "replicas": 3}})
    made = pool_of(objects, "fast")
    assert made["metadata"]["name"] == "essp-fast"
    assert container_of(made)["args"] == ["extractor", "run", "--feature", "hog", "--feature", "hof"]
    assert labels_of(made)["app.kubernetes.io/component"] == "extractor"
    with pytest.raises(Refused, match=r"pools\.decoder instead"):
        helm.render(extraPools={"decoder": {"service": "decoder"}})


def scaled(helm: Helm, provider: str) -> list[Object]:
    return helm.render(autoscaling={"provider": provider}, pools={"decoder": {"autoscaling": {"min": 3, "max": 40}}})


@pytest.mark.parametrize("provider", ["hpa", "keda", "master"])
def test_whoever_scales_a_pool_owns_its_size(helm: Helm, provider: str) -> None:
    objects = scaled(helm, provider)
    for pool in POOLS:
        scaled_pools = {"decoder", "extractor"} | ({"predictor", "aggregator"} if provider != "keda" else set())
        assert ("replicas" in pool_of(objects, pool)["spec"]) is (pool not in scaled_pools)


def test_an_upgrade_says_no_size_of_a_pool_that_something_scales(helm: Helm) -> None:
    """Not even the one that it finds: that may be another one by the time it is applied."""
    with ApiServer() as server:
        for made in of_kind(helm.render(pools={"decoder": {"replicas": 8}}), "Deployment"):
            server.cluster.put("deployments", made)
        objects = helm.upgrade(server.url, autoscaling={"provider": "keda"}, pools={"aggregator": {"replicas": 3}})
    assert "replicas" not in pool_of(objects, "decoder")["spec"]
    assert pool_of(objects, "aggregator")["spec"]["replicas"] == 3, "what nobody scales has the size of the values"


def test_scaling_by_cpu(helm: Helm) -> None:
    spec = named(scaled(helm, "hpa"), "HorizontalPodAutoscaler", "essp-decoder")["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (3, 40)
    assert spec["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 300


def test_scaling_by_what_waits(helm: Helm) -> None:
    """KEDA looks at the topics and groups that the services use."""
    objects = helm.render(next(case for case in CASES if "keda" in case.stem))
    triggers = {made["metadata"]["name"]: made["spec"]["triggers"][0] for made in of_kind(objects, "ScaledObject")}
    places = {name: (t["metadata"]["topic"], t["metadata"]["consumerGroup"]) for name, t in triggers.items()}
    assert places == {
        "essp-decoder": (topics.SEEDS, ids.DECODER),
        "essp-extractor": (topics.CLIPS, ids.extractor_pool(["flow"])),
        "essp-descriptors": (topics.CLIPS, ids.extractor_pool(["hof", "hog"])),
    }
    assert all(trigger["authenticationRef"] == {"name": "kafka"} for trigger in triggers.values())
    assert all(trigger["metadata"]["offsetResetPolicy"] == "earliest" for trigger in triggers.values())


def test_scaling_by_the_master(helm: Helm) -> None:
    decoder = named(scaled(helm, "master"), "Deployment", "essp-decoder")["metadata"]
    assert decoder["labels"]["essp.dev/scaled-by"] == "master"
    bounds = {"essp.dev/min-replicas": "3", "essp.dev/max-replicas": "40"}
    assert decoder["annotations"] == bounds | {"essp.dev/work": ids.DECODER}
    extractor = named(scaled(helm, "master"), "Deployment", "essp-extractor")["metadata"]
    assert extractor["annotations"]["essp.dev/work"] == ids.extractor_pool(["flow"])
    aggregator = named(scaled(helm, "master"), "Deployment", "essp-aggregator")["metadata"]
    assert aggregator["annotations"]["essp.dev/work"] == ids.AGGREGATOR
    assert "essp.dev/scaled-by" not in pool_of(scaled(helm, "master"), "master")["metadata"]["labels"]


def test_topics_are_those_of_the_services(helm: Helm) -> None:
    objects = helm.render(next(case for case in CASES if "keda" in case.stem))
    made = {t["spec"]["topicName"]: t["spec"]["partitions"] for t in of_kind(objects, "KafkaTopic")}
    wanted = [*topics.FIXED, topics.DOCTOR, *map(topics.features, ("flow", "hof", "hog"))]
    assert made == {topic: topics.partitions(topic) for topic in wanted}
    control = next(t for t in of_kind(objects, "KafkaTopic") if t["spec"]["topicName"] == topics.CONTROL)
    assert control["spec"]["config"]["retention.ms"] == -1
    assert not [made for made in of_kind(objects, "Job") if "setup" in made["metadata"]["name"]]
    job = named(helm.render(topics={"features": ["flow", "hog"]}), "Job", "essp-setup")
    assert container_of(job)["args"] == ["setup", "--check", "--feature", "flow", "--feature", "hog"]


def test_the_setup_job_leaves_topics_to_strimzi(helm: Helm) -> None:
    """It runs before they are made: what it created would be there with other replicas."""
    case = next(case for case in CASES if "keda" in case.stem)
    job = named(helm.render(case, s3={"createBuckets": True}), "Job", "essp-setup")
    assert container_of(job)["args"] == ["setup", "--check", "--buckets", "--no-topics"]


def test_more_workers_than_partitions_are_refused(helm: Helm) -> None:
    helm.render(pools={"decoder": {"replicas": topics.DATA_PARTITIONS}})
    with pytest.raises(Refused, match=f"{topics.DATA_PARTITIONS} partitions"):
        helm.render(pools={"decoder": {"replicas": topics.DATA_PARTITIONS + 1}})
    more = topics.DATA_PARTITIONS + 1
    objects = helm.render(pools={"predictor": {"replicas": more}}, topics={"partitions": 2 * more})
    assert {c["data"].get("ESSP_PARTITIONS") for c in of_kind(objects, "ConfigMap")} >= {str(2 * more)}
