"""The network policies allow the flow of `essp_common/topics.py`, and nothing beside it."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from essp_common import topics
from tests.chart.network import Peer, allowed
from tests.chart.rendering import (
    CASES,
    Helm,
    Object,
    environment_of,
    labels_of,
    named,
    of_kind,
    pool_of,
    templates,
    workloads,
)

TALK = 443
STRANGER = Peer({"app": "stranger"})
KAFKA = Peer({"app": "kafka"}, namespace="kafka")
REDIS = Peer({"app": "redis"}, namespace="redis")
S3 = Peer(address="52.218.0.1")
DNS = Peer({"k8s-app": "kube-dns"}, namespace="kube-system")
METADATA = [
    (Peer(address=address), port)
    for address, port in (
        ("169.254.169.254", 80),  # Amazon and Google
        ("169.254.169.252", 988),  # Google, with its network plugins
        ("169.254.170.23", 80),  # EKS' pod identity
        ("fd00:ec2::254", 80),
        ("fd00:ec2::23", 80),
    )
]
API_SERVER = Peer(address="10.96.0.1")
PROMETHEUS = Peer({"app": "prometheus"}, namespace="monitoring")

SERVER_PORTS = {
    "minimal-values": (9092, 6379, 7070),
    "secrets-values": (9093, 6380, 443),
    "scaled-hpa-values": (9094, 6379, 443),
}
"""Of Kafka, Redis and the object store, where a case has others than 9092, 6379 and 443."""
SERVICES = topics.SERVICES - {"loop", "people"}


OUTSIDE = [case for case in CASES if case.stem != "with-servers-values"]
"""Values with servers that the chart does not bring."""


@pytest.mark.parametrize("case", OUTSIDE, ids=lambda case: case.stem)
def test_every_service_of_the_topic_table_reaches_the_servers(helm: Helm, case: Path) -> None:
    objects = helm.render(case)
    kafka, (bus, cache, store) = KAFKA, SERVER_PORTS.get(case.stem, (9092, 6379, 443))
    if case.stem == "secrets-values":
        assert not allowed(objects, Peer.of(pool_of(objects, "decoder")), kafka, bus)  # it names a network
        kafka = Peer(address="10.1.2.3")
    seen = set()
    for workload in workloads(objects):
        own = Peer.of(workload)
        seen.add(labels_of(workload)["app.kubernetes.io/component"])
        for port, protocol in product((53, 5353), ("UDP", "TCP")):  # 5353: OpenShift's pods of DNS
            assert allowed(objects, own, DNS, port, protocol)
        assert allowed(objects, own, kafka, bus), labels_of(workload)
        assert allowed(objects, own, REDIS, cache), labels_of(workload)
        assert allowed(objects, own, S3, store), labels_of(workload)
    missing = {"trainer"} if case.stem not in ("training-values", "control-plane-values") else set()
    missing |= {"predictor"} if "control-plane" in case.stem else set()
    assert SERVICES - seen == missing


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_a_namespace_that_denies_everything_by_default_denies_none_of_it(helm: Helm, case: Path) -> None:
    """Nothing works only because nobody forbids it: each pod has policies of its own, for both directions."""
    objects = helm.render(case)
    deny = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"], "ingress": [], "egress": []}
    denied = [*objects, {"kind": "NetworkPolicy", "metadata": {"name": "deny"}, "spec": deny}]
    pods = [Peer.of(pod) for pod in workloads(objects)]
    ports = (53, 443, 6379, 6443, 7070, 8080, 9092, 9100)
    others = (KAFKA, REDIS, S3, DNS, API_SERVER, PROMETHEUS)
    pairs = [(pod, other) for pod, other in product(pods, (*others, *pods)) if pod != other]
    for source, target in (*pairs, *((other, pod) for pod, other in pairs)):
        for port in ports:
            assert allowed(denied, source, target, port) is allowed(objects, source, target, port)


def test_servers_of_the_chart_are_reached_by_its_pods_and_clients_alone(helm: Helm) -> None:
    """The broker asks for no login."""
    objects = helm.render(CASES[-1])
    servers = Peer.of(pool_of(objects, "servers"))
    pods = [Peer.of(workload) for workload in workloads(objects)]
    assert {pod.labels["app.kubernetes.io/component"] for pod in pods} >= SERVICES
    for port in (9092, 6379, 7070):
        for pod in pods:
            assert allowed(objects, pod, servers, port) is (pod != servers)
            assert not allowed(objects, pod, KAFKA, port), "and no others"
            assert not allowed(objects, servers, pod, port), "which they have no business with"
        assert allowed(objects, Peer({"essp.dev/api-client": "true"}), servers, port)
        assert not allowed(objects, STRANGER, servers, port)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_pods_do_not_talk_to_each_other(helm: Helm, case: Path) -> None:
    """Data flows over the bus and the cache alone; but ranks meet, a standby asks the leader, the doctor the master."""
    objects = helm.render(case)
    pods, master = workloads(objects), pool_of(objects, "master")
    tasks = [pod for pod in pods if labels_of(pod)["app.kubernetes.io/component"] == "task"]
    for source, target in product(pods, pods):
        among_ranks = all(labels_of(pod)["app.kubernetes.io/component"] == "trainer" for pod in (source, target))
        for port in (TALK, 8080, 9100, 29500, 41234):
            asks_master = (
                target == master and port == 8080 and (source in tasks or (source == master and elects(objects)))
            )
            assert allowed(objects, Peer.of(source), Peer.of(target), port) is (among_ranks or asks_master)


def elects(objects: list[Object]) -> bool:
    """There are several masters."""
    environment = environment_of(pool_of(objects, "master"), objects)
    return "ESSP_LEASE" in environment


def test_only_who_is_let_in_reaches_the_master(helm: Helm) -> None:
    objects = helm.render()
    master = Peer.of(pool_of(objects, "master"))
    assert allowed(objects, Peer({"essp.dev/api-client": "true"}), master, 8080)
    assert not allowed(objects, STRANGER, master, 8080)
    assert not allowed(objects, Peer({"essp.dev/api-client": "true"}), master, 9100)
    assert not allowed(objects, Peer({"essp.dev/api-client": "true"}, namespace="other"), master, 8080)
    objects = helm.render(networkPolicy={"api": {"from": [{"namespaceSelector": {}}]}})
    assert allowed(objects, Peer({"app": "ingress"}, namespace="ingress"), master, 8080)


def test_prometheus_reads_metrics_and_nothing_else(helm: Helm) -> None:
    objects = helm.render(next(case for case in CASES if "hpa" in case.stem))
    for workload in of_kind(objects, "Deployment"):
        target = Peer.of(workload)
        (port,) = target.ports.values()
        assert allowed(objects, PROMETHEUS, target, port)
        assert not allowed(objects, PROMETHEUS, target, TALK)
        assert not allowed(objects, STRANGER, target, port)


@pytest.mark.parametrize("case", OUTSIDE, ids=lambda case: case.stem)
def test_only_a_master_with_a_token_reaches_the_api_server(helm: Helm, case: Path) -> None:
    objects = helm.render(case, s3={"endpoint": "http://s3:7070"}, networkPolicy={"s3": {"ports": [7070]}})
    having = {
        labels_of(w)["app.kubernetes.io/component"]
        for w in workloads(objects)
        if allowed(objects, Peer.of(w), API_SERVER, 6443)
    }
    assert having == ({"master"} if of_kind(objects, "Role") else set())


def test_nobody_reaches_the_metadata_server_unless_told_to(helm: Helm) -> None:
    for endpoint in ("", "http://s3"):  # whose port is that of the metadata server, too
        objects = helm.render(s3={"endpoint": endpoint})
        assert not any(allowed(objects, Peer.of(w), *place) for w in workloads(objects) for place in METADATA)
        objects = helm.render(s3={"endpoint": endpoint}, networkPolicy={"metadataServer": True})
        assert all(allowed(objects, Peer.of(w), *place) for w in workloads(objects) for place in METADATA)
        assert not any(allowed(objects, Peer.of(w), METADATA[0][0], TALK) for w in workloads(objects))


def test_pods_reach_what_the_values_add(helm: Helm) -> None:
    collector = Peer({"app": "collector"}, namespace="observability")
    rule = {
        "ports": [{"port": 4318}],
        "to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "observability"}}}],
    }
    for case in CASES:
        objects = helm.render(case)
        assert not any(allowed(objects, Peer.of(w), collector, 4318) for w in workloads(objects))
        objects = helm.render(case, networkPolicy={"egress": [rule]})
        assert all(allowed(objects, Peer.of(w), collector, 4318) for w in workloads(objects))
        assert not any(allowed(objects, Peer.of(w), STRANGER, 4318) for w in workloads(objects))


def test_registered_extractors_are_held_where_the_chart_runs_none(helm: Helm) -> None:
    """Their images are other people's."""
    case = next(case for case in CASES if "control-plane" in case.stem)
    objects = helm.render(case, pools={"extractor": {"enabled": False}})
    (registered,) = (Peer.of(made) for made in templates(objects) if made["kind"] == "Deployment")
    assert allowed(objects, registered, KAFKA, 9092)
    assert not allowed(objects, registered, STRANGER, 8443)
    assert not allowed(objects, registered, API_SERVER, 6443)
    assert not allowed(objects, STRANGER, registered, 9100)
    objects = helm.render(case, pools={"extractor": {"enabled": False}}, controlPlane={"registrations": False})
    assert "essp-extractor" not in {made["metadata"]["name"] for made in of_kind(objects, "NetworkPolicy")}


def test_the_policy_of_tasks_is_there_before_them(helm: Helm) -> None:
    objects = helm.render()
    policy = named(objects, "NetworkPolicy", "essp-setup")["metadata"]["annotations"]
    job = named(objects, "Job", "essp-setup")["metadata"]["annotations"]
    assert policy["helm.sh/hook"] == job["helm.sh/hook"]
    assert int(policy["helm.sh/hook-weight"]) < int(job.get("helm.sh/hook-weight", 0))
    lasting = named(objects, "NetworkPolicy", "essp-tasks")
    assert lasting["spec"] == named(objects, "NetworkPolicy", "essp-setup")["spec"]
    assert "annotations" not in lasting["metadata"], "it goes with the release"


def test_what_runs_before_the_release_leaves_nothing_behind(helm: Helm) -> None:
    """But a job that has failed, with its log."""
    for made in helm.render(CASES[0]):
        annotations = made["metadata"].get("annotations", {})
        if "pre-install" in annotations.get("helm.sh/hook", ""):
            assert "hook-succeeded" in annotations["helm.sh/hook-delete-policy"], made["metadata"]["name"]


def test_a_hole_is_noticed(helm: Helm) -> None:
    """The evaluation can fail: with a policy gone, or opened, pods reach each other."""

    def extractor_reached(objects: list[Object]) -> bool:
        source, target = (Peer.of(pool_of(objects, name)) for name in ("decoder", "extractor"))
        return allowed(objects, source, target, TALK)

    objects = helm.render()
    assert not extractor_reached(objects)
    for spec in (named(objects, "NetworkPolicy", f"essp-{name}")["spec"] for name in ("decoder", "extractor")):
        spec["egress"].append({})
        spec["ingress"].append({})
    assert extractor_reached(objects)
    assert extractor_reached(helm.render(networkPolicy={"enabled": False}))
