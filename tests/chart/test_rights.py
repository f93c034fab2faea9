"""What the master may do in the cluster is exactly what is switched on, and what it is given to make is safe."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock

from essp_common.runtime import ids
from essp_engine.features.declared import DeclaredOutput
from essp_engine.registrations import ExtractorRow, Resources
from essp_master.config import MasterSettings
from essp_master.failover import leader
from essp_master.pools import kubernetes as kubernetes_driver
from essp_master.pools.kubernetes import KubernetesDriver
from essp_master.pools.manifests import MADE_OF, extractor_deployment, training_job
from essp_master.video_jobs import cluster
from tests.chart import rules
from tests.chart.api_schemas import VERSIONS, faults
from tests.chart.network import Peer, allowed
from tests.chart.rendering import CASES, Helm, Object, container_of, environment_of, named, of_kind, pod_of, pool_of
from tests.harness.kubernetes_api import ApiServer
from tests.harness.waiting import until

LEASES = {
    ("coordination.k8s.io", "leases", "create", ""),
    ("coordination.k8s.io", "leases", "get", "essp-master"),
    ("coordination.k8s.io", "leases", "update", "essp-master"),
}
LOOKING = {("apps", "deployments", verb, "") for verb in ("list", "watch")}
LOOKING |= {("", "events", verb, "") for verb in ("create", "list")}
SCALING = LOOKING | {
    ("apps", "deployments/scale", "patch", ""),
    ("", "pods", "list", ""),
    ("", "pods", "patch", ""),
}
OWNING = {("", "configmaps", "get", "essp-templates")}
MAKING = SCALING | OWNING | {("apps", "deployments", verb, "") for verb in ("create", "patch", "delete")}
TRAINING = LOOKING | OWNING | {("batch", "jobs", verb, "") for verb in ("list", "watch", "create", "delete")}
TRAINING |= {("", "pods", "list", "")}

JOBS = {("essp.io", "videojobs", verb, "") for verb in ("list", "watch", "patch")}
JOBS |= {("essp.io", "videojobs/status", "patch", ""), ("", "events", "create", "")}
MIRRORING = JOBS | {("essp.io", "videojobs", verb, "") for verb in ("create", "delete")}

IMAGE = "registry.example.com/vision/depth@sha256:" + "0f" * 32

RULES = [rule for rule in rules.ALL if rule is not rules.available]
"""Those that hold of one pool by itself: who makes pools at run time makes no budgets for them."""

RESOURCES = {"deployment_scale": "deployments/scale", "config_map": "configmaps"}
"""Where the client's word is not the resource's."""
GROUPS = {"apps": "apps", "core": "", "batch": "batch"}
VERBS = {"list": "list", "create": "create", "patch": "patch", "delete": "delete", "read": "get", "replace": "update"}


def calls() -> set[tuple[str, str, str, str]]:
    """The rights that the master's driver makes use of, by the methods of the client that it calls. What it lists for a
    `Informer` it watches as well."""
    source = inspect.getsource(kubernetes_driver)
    found = re.findall(r"self\._(apps|core|batch)\.([a-z]+)_namespaced_([a-z_]+)\(", source)
    watched = re.findall(r'Informer\("([a-z]+)"', source)
    rights = {
        (GROUPS[group], resource, VERBS[verb], "essp-templates" if resource == "configmaps" else "")
        for group, verb, kind in found
        for resource in (RESOURCES.get(kind, f"{kind}s"),)
    }
    listed = {(group, kind) for group, kind, verb, _ in rights if verb == "list"}
    return rights | {(group, kind, "watch", "") for group, kind in listed if kind in watched}


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
    *, election: bool = False, registrations: bool = False, ranks: int = 0, scaling: bool = False, jobs: Any = None
) -> dict[str, Any]:
    """Values with parts of the control plane switched on."""
    return {
        "videoJobs": jobs or {},
        "controlPlane": {"leaderElection": election, "registrations": registrations, "ranks": ranks},
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
        (on(ranks=8), TRAINING),
        (on(election=True, registrations=True, ranks=8, scaling=True), LEASES | MAKING | TRAINING),
        (on(jobs={"enabled": True}), JOBS),
        (on(jobs={"enabled": True, "fromApi": True}, ranks=8), MIRRORING | TRAINING),
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
    custom = re.findall(r"self\._custom\.([a-z]+)_namespaced_custom_object(_status)?", inspect.getsource(cluster))
    asked = {("essp.io", f"videojobs{part.replace('_', '/')}", VERBS[verb], "") for verb, part in custom}
    assert asked | {("essp.io", "videojobs", "watch", ""), ("", "events", "create", "")} == MIRRORING
    assert issubclass(leader._Lock, LeaseLock)  # which reads, creates and replaces one Lease
    methods = set(re.findall(r"api_instance\.([a-z]+)_namespaced_lease\(", inspect.getsource(LeaseLock)))
    assert {VERBS[method] for method in methods} == {verb for _, _, verb, _ in LEASES}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_there_are_no_rights_in_the_whole_cluster(helm: Helm, case: Any) -> None:
    objects = helm.render(case)
    assert not of_kind(objects, "ClusterRole", "ClusterRoleBinding")
    assert not [right for right in rights(objects) if "*" in right]
    assert not [right for right in rights(objects) if right[1] in ("secrets", "roles", "rolebindings", "pods/exec")]


def test_who_creates_buckets_has_an_account_for_it(helm: Helm) -> None:
    """With the master's role, and before the job that uses it; where the values bring an account, that one."""
    role = {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/essp"}
    objects = helm.render(pools={"master": {"serviceAccount": {"annotations": role}}}, s3={"createBuckets": True})
    job = named(objects, "Job", "essp-setup")
    account = named(objects, "ServiceAccount", pod_of(job)["spec"]["serviceAccountName"])["metadata"]
    assert account["annotations"].items() >= role.items()
    assert account["annotations"]["helm.sh/hook"] == job["metadata"]["annotations"]["helm.sh/hook"]
    assert int(account["annotations"]["helm.sh/hook-weight"]) < 0
    plain = helm.render(topics={"job": {"hook": False}})
    assert "annotations" not in named(plain, "ServiceAccount", "essp-setup")["metadata"]
    own = helm.render(pools={"master": {"serviceAccount": {"create": False, "name": "mine"}}})
    assert pod_of(named(own, "Job", "essp-setup"))["spec"]["serviceAccountName"] == "mine"
    assert "essp-setup" not in [made["metadata"]["name"] for made in of_kind(own, "ServiceAccount")]


def test_pools_that_name_the_same_account_share_it(helm: Helm) -> None:
    """A role is often bound to one. Helm fails over an object that it has just made."""
    role = {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/essp"}
    objects = helm.render(poolDefaults={"serviceAccount": {"name": "mine", "annotations": role}})
    assert {pod_of(made)["spec"]["serviceAccountName"] for made in of_kind(objects, "Deployment")} == {"mine"}
    [account] = [made for made in of_kind(objects, "ServiceAccount") if made["metadata"]["name"] == "mine"]
    assert account["metadata"]["annotations"] == role


def test_the_master_is_told_of_its_part(helm: Helm) -> None:
    def told(**values: Any) -> dict[str, str]:
        objects = helm.render(**values)
        environment = environment_of(pool_of(objects, "master"), objects)
        return {
            f"ESSP_{name}": environment[f"ESSP_{name}"]
            for name in ("POOLS", "RELEASE", "OWNER", "RANKS", "LEASE", "URL", "VIDEO_JOBS", "VIDEO_JOBS_TEAM")
            if f"ESSP_{name}" in environment
        }

    assert told(**on()) == {}
    ours = {"ESSP_POOLS": "kubernetes", "ESSP_RELEASE": "essp"}
    assert told(**on(scaling=True)) == ours
    making = {**ours, "ESSP_OWNER": "essp-templates"}
    assert told(**on(registrations=True)) == making
    assert told(**on(ranks=8)) == {**making, "ESSP_RANKS": "8"}
    assert told(**on(jobs={"enabled": True})) == {"ESSP_RELEASE": "essp", "ESSP_VIDEO_JOBS": "own"}
    followed = told(**on(jobs={"enabled": True, "fromApi": True, "team": "vision"}))
    assert followed == {"ESSP_RELEASE": "essp", "ESSP_VIDEO_JOBS": "all", "ESSP_VIDEO_JOBS_TEAM": "vision"}
    assert told(**on(election=True)) == {"ESSP_LEASE": "essp-master", "ESSP_URL": "http://$(POD_IP):8080"}


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        yield running


@pytest.fixture
def chart(helm: Helm) -> list[Object]:
    return helm.render(next(case for case in CASES if "control-plane" in case.stem))


@pytest.fixture
def driver(chart: list[Object], server: ApiServer, tmp_path: Path) -> Iterator[KubernetesDriver]:
    """The master's driver, in a cluster in which the chart is installed, with the templates that it finds there."""
    for name, text in named(chart, "ConfigMap", "essp-templates")["data"].items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    for made in of_kind(chart, "Deployment"):
        server.cluster.put("deployments", {**copy.deepcopy(made), "status": {}})
    for made in of_kind(chart, "ConfigMap"):
        server.cluster.put("configmaps", copy.deepcopy(made))
    environment = environment_of(pool_of(chart, "master"), chart)
    release, owner = environment["ESSP_RELEASE"], environment["ESSP_OWNER"]
    started = KubernetesDriver(server.client(), "training", tmp_path, release, owner)
    started.start(lambda: None)
    yield started
    started.close()


def made_of(server: ApiServer, kind: str, name: str, api: str) -> Object:
    """An object that the driver made, as it would be in a manifest."""
    body = copy.deepcopy(server.cluster.objects[kind + "s", name])
    body.pop("status", None)
    metadata = body["metadata"]
    body["metadata"] = {key: metadata[key] for key in ("name", "labels", "annotations") if key in metadata}
    return {**body, "apiVersion": api, "kind": kind.title()}


def test_the_master_finds_the_pools_that_it_scales(driver: KubernetesDriver) -> None:
    """With the bounds that the values give them."""
    bounds = {name: (size.min, size.max) for name, size in driver.sizes().items()}
    assert bounds == {ids.DECODER: (2, 40), ids.extractor_pool(["flow"]): (1, 64), ids.AGGREGATOR: (1, 8)}


def test_a_registered_extractor_is_run_under_the_same_rules(
    chart: list[Object], driver: KubernetesDriver, server: ApiServer
) -> None:
    row = ExtractorRow(name="depth_map", image=IMAGE, output=DeclaredOutput(shape=("T",)), resources=Resources(gpus=1))
    driver.add_extractor(row)
    made = made_of(server, "deployment", "essp-extractor-depth-map", "apps/v1")
    assert [fault for version in VERSIONS for fault in faults(made, version)] == []
    assert container_of(made)["args"] == ["extractor", "run", "--feature=depth_map"]
    installed = [*chart, made]
    assert [rule(installed) for rule in RULES] == [[]] * len(RULES)
    own = Peer.of(made)
    assert allowed(installed, own, Peer({"app": "kafka"}, namespace="kafka"), 9092)
    assert not allowed(installed, own, Peer.of(pool_of(chart, "decoder")), 443)
    until(lambda: f"extractor.{row.name}" in driver.sizes())


def test_a_training_that_the_master_starts_is_one_of_the_charts(
    chart: list[Object], driver: KubernetesDriver, server: ApiServer
) -> None:
    driver.train("ucf101", "rgb", 6, None)
    (name,) = server.cluster.names("jobs")
    made = made_of(server, "job", name, "batch/v1")
    assert [fault for version in VERSIONS for fault in faults(made, version)] == []
    installed = [*chart, made]
    assert [rule(installed) for rule in RULES] == [[]] * len(RULES)
    environment = environment_of(made, chart)
    assert environment["MASTER_ADDR"] == f"{name}-0.essp-ranks"
    assert name.startswith("essp-ucf101-rgb-")
    assert (environment["NNODES"], environment["RANKS_PER_NODE"]) == ("2", "3")
    assert (made["spec"]["completions"], made["spec"]["backoffLimit"]) == (2, 40)
    container = container_of(made)
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "3", "memory": str(96 * 2**30)}
    assert container["command"][:3] == ["tini", "--", "torchrun"]
    used = {part.partition("$(")[2].rstrip(")") for part in container["command"] if "$(" in part}
    assert used <= set(environment)
    driver.train("ucf101", "rgb", 0, None)
    assert server.cluster.names("jobs") == []


def test_ranks_with_a_pod_each_are_told_of_each_other(helm: Helm) -> None:
    objects = helm.render(**on(ranks=8))
    template = named(objects, "ConfigMap", "essp-templates")["data"]["trainer-job.yaml"]
    made = training_job(template, "ucf101", "rgb", 3, None)
    environment = environment_of(made, objects)
    index = "<metadata.annotations['batch.kubernetes.io/job-completion-index']>"
    assert (environment["RANK"], environment["WORLD_SIZE"]) == (index, "3")
    assert (environment["LOCAL_RANK"], environment["LOCAL_WORLD_SIZE"]) == ("0", "1")
    assert environment["MASTER_ADDR"] == f"{made['metadata']['name']}-0.essp-ranks"
    assert "command" not in container_of(made)
    assert (made["spec"]["completions"], made["spec"]["parallelism"], made["spec"]["backoffLimit"]) == (3, 3, 60)


@pytest.mark.parametrize(
    "change", [{"settings": {"log_level": "DEBUG"}}, {"image": {"tag": "2"}}, {"kafka": {"servers": ["moved:9092"]}}]
)
def test_an_upgrade_changes_what_the_master_makes(helm: Helm, change: Object) -> None:
    """The digest by which the master sees it; an upgrade that changes something else leaves what runs alone."""

    def digests(**values: Any) -> list[str]:
        control = next(case for case in CASES if "control-plane" in case.stem)
        made = named(helm.render(control, **values), "ConfigMap", "essp-templates")["data"]
        row = ExtractorRow(name="depth_map", image=IMAGE, output=DeclaredOutput(shape=("T",)))
        bodies = [
            training_job(made["trainer-job.yaml"], "ucf101", "rgb", 3, None),
            extractor_deployment(made["extractor-deployment.yaml"], row),
        ]
        return [body["metadata"]["annotations"][MADE_OF] for body in bodies]

    before, other = digests(), digests(pools={"decoder": {"replicas": 7}})
    assert before == other
    # A registered extractor has an image of its own.
    assert [old != new for old, new in zip(before, digests(**change), strict=True)] == [True, "image" not in change]


def test_what_the_master_makes_stands_in_the_queue_that_the_values_name(helm: Helm) -> None:
    """Kueue takes a Job by a label of it, Volcano its pods by their scheduler."""
    control = next(case for case in CASES if "control-plane" in case.stem)
    queue = {"kueue.x-k8s.io/queue-name": "team"}
    own = {"workloadLabels": queue, "workloadAnnotations": {"cost": "7"}, "schedulerName": "volcano"}
    objects = helm.render(control, controlPlane={"trainer": own}, pools={"extractor": own})
    made = named(objects, "ConfigMap", "essp-templates")["data"]
    row = ExtractorRow(name="depth_map", image=IMAGE, output=DeclaredOutput(shape=("T",)))
    bodies = [
        training_job(made["trainer-job.yaml"], "ucf101", "rgb", 6, None),
        extractor_deployment(made["extractor-deployment.yaml"], row),
    ]
    for body in bodies:
        assert body["metadata"]["labels"].items() >= queue.items()
        assert body["metadata"]["annotations"]["cost"] == "7"
        assert pod_of(body)["spec"]["schedulerName"] == "volcano"


def test_the_master_finds_the_templates_where_it_looks(chart: list[Object]) -> None:
    master = pool_of(chart, "master")
    (mount,) = [m for m in container_of(master)["volumeMounts"] if m["name"] == "templates"]
    # As a folder: a single file in it (subPath) would not follow an upgrade.
    assert mount == {"name": "templates", "mountPath": MasterSettings().templates, "readOnly": True}


def test_damage_to_a_template_is_noticed(chart: list[Object]) -> None:
    made = named(chart, "ConfigMap", "essp-templates")["data"]
    for name in made:
        before = made[name]
        made[name] = before.replace("runAsNonRoot: true", "runAsNonRoot: false")
        assert any("REGISTERED" in fault for fault in rules.restricted(chart))
        made[name] = before
