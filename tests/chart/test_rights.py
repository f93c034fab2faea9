"""What the master may do in the cluster is exactly what is switched on, and what it is given to make is safe."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client
from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock

from services.master import leader
from services.master.pools import kubernetes as kubernetes_driver
from services.master.registrations import ExtractorRow, TrainerRow
from tests.chart import rules
from tests.chart.rendering import CASES, Helm, Object, named, of_kind, pod_of, pool_of

LEASES = {
    ("coordination.k8s.io", "leases", "create", ""),
    ("coordination.k8s.io", "leases", "get", "essp-master"),
    ("coordination.k8s.io", "leases", "update", "essp-master"),
}
SCALING = {
    ("apps", "deployments", "list", ""),
    ("apps", "deployments/scale", "patch", ""),
    ("", "pods", "list", ""),
    ("", "pods", "patch", ""),
}
MAKING = SCALING | {("apps", "deployments", verb, "") for verb in ("create", "patch", "delete")}
TRAINING = {("batch", "jobs", verb, "") for verb in ("list", "create", "delete")}

GROUPS = {"apps": "apps", "core": "", "batch": "batch"}
VERBS = {"list": "list", "create": "create", "patch": "patch", "delete": "delete", "read": "get", "replace": "update"}


def calls() -> set[tuple[str, str, str, str]]:
    """The rights that the master's driver makes use of, by the methods of the client that it calls."""
    source = inspect.getsource(kubernetes_driver)
    found = re.findall(r"self\._(apps|core|batch)\.([a-z]+)_namespaced_([a-z]+)(_scale)?\(", source)
    return {(GROUPS[group], kind + "s" + ("/scale" if scale else ""), VERBS[verb], "") for group, verb, kind, scale in found}


def rights(objects: list[Object]) -> set[tuple[str, str, str, str]]:
    """Group, resource, verb and name of everything that a Role allows."""
    return {
        (group, resource, verb, name)
        for role in of_kind(objects, "Role")
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }


def on(
    *, election: bool = False, registrations: bool = False, trainings: bool = False, scaling: bool = False
) -> dict[str, Any]:
    """Values with parts of the control plane switched on."""
    return {
        "controlPlane": {"leaderElection": election, "registrations": registrations, "trainings": trainings},
        "autoscaling": {"provider": "master" if scaling else "none"},
        "pools": {"master": {"settings": {"state": "s3://essp/state", "images": ["r.example.com/"]}}},
    }


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (on(), set()),
        (on(election=True), LEASES),
        (on(scaling=True), SCALING),
        (on(registrations=True), MAKING),
        (on(trainings=True), TRAINING),
        (on(election=True, registrations=True, trainings=True, scaling=True), LEASES | MAKING | TRAINING),
    ],
)
def test_the_role_has_exactly_these_rights(helm: Helm, values: Object, wanted: set[tuple[str, ...]]) -> None:
    objects = helm.render(**values)
    assert rights(objects) == wanted
    assert rules.tokenless(objects) == []
    token = pod_of(pool_of(objects, "master"))["spec"]["automountServiceAccountToken"]
    assert token is bool(wanted)


def test_the_rights_are_those_that_the_master_makes_use_of() -> None:
    assert calls() == MAKING | TRAINING
    assert issubclass(leader._Lock, LeaseLock)  # which reads, creates and replaces one Lease
    methods = set(re.findall(r"api_instance\.([a-z]+)_namespaced_lease\(", inspect.getsource(LeaseLock)))
    assert {VERBS[method] for method in methods} == {verb for _, _, verb, _ in LEASES}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_there_are_no_rights_in_the_whole_cluster(helm: Helm, case: Any) -> None:
    objects = helm.render(case)
    assert not of_kind(objects, "ClusterRole", "ClusterRoleBinding")
    assert not [right for right in rights(objects) if "*" in right]
    assert not [right for right in rights(objects) if right[1] in ("secrets", "roles", "rolebindings", "pods/exec")]


def test_what_the_master_makes_of_a_registration(helm: Helm) -> None:
    """The template is a whole Deployment under the same rules; its pods are found by the extractors' policies."""
    objects = helm.render(**on(registrations=True))
    text = named(objects, "ConfigMap", "essp-templates")["data"]["extractor-deployment.yaml"]
    made = yaml.safe_load(text)
    assert made["metadata"]["name"] == "essp-REGISTERED"
    assert made["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "essp-master"
    assert made["metadata"]["labels"]["essp.dev/scaled-by"] == "master"
    policy = named(objects, "NetworkPolicy", "essp-extractor")["spec"]["podSelector"]["matchLabels"]
    assert policy.items() <= made["spec"]["template"]["metadata"]["labels"].items()
    alone = [o for o in objects if o["kind"] in ("ConfigMap", "ServiceAccount")]
    for rule in (rules.restricted, rules.limited, rules.probed, rules.selected, rules.bound, rules.graceful):
        assert rule(alone) == []
    mounts = pod_of(pool_of(objects, "master"))["spec"]["containers"][0]["volumeMounts"]
    assert {"name": "templates", "mountPath": "/etc/essp/templates", "readOnly": True} in mounts
    assert not of_kind(helm.render(), "ConfigMap")[1:]


def test_damage_to_the_template_is_noticed(helm: Helm) -> None:
    objects = helm.render(**on(registrations=True))
    made = named(objects, "ConfigMap", "essp-templates")["data"]
    made["extractor-deployment.yaml"] = made["extractor-deployment.yaml"].replace("runAsNonRoot: true", "{}")
    made["extractor-deployment.yaml"] = made["extractor-deployment.yaml"].replace("{}\n", "hostUsers: true\n", 1)
    assert any("REGISTERED" in fault for fault in rules.restricted(objects))
