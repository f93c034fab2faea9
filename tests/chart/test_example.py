"""The servers that the chart brings, and the commands of its README from an empty cluster to the first trained job."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml

from essp.demo.job import job_text
from essp_common.job.spec import parse_spec
from essp_common.quantities import parse_bytes
from tests.chart.rendering import (
    Helm,
    container_of,
    environment_of,
    labels_of,
    named,
    of_kind,
    pod_of,
    pool_of,
    templates,
    workloads,
)
from tests.chart.rules import UNITS, bytes_of
from tools.chart_reference import CHART

ROOT = CHART.parents[1]
GIB = 2**30


@pytest.fixture
def nothing(tmp_path: Path) -> Path:
    """No values at all."""
    path = tmp_path / "values.yaml"
    path.write_text("{}")
    return path


def blocks(text: str) -> Iterator[list[str]]:
    """The commands of each block of a document."""
    for block in re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        yield block.splitlines()


def first_commands() -> list[list[str]]:
    (commands,) = [b for b in blocks((CHART / "README.md").read_text(encoding="utf-8")) if "make images" in b]
    return [shlex.split(command) for command in commands]


def test_another_setting_restarts_all_but_the_servers(helm: Helm) -> None:
    """They have topics and frames in memory, and without a volume videos and results, too."""

    def pods(**values: Any) -> dict[str, Any]:
        made = of_kind(helm.render(CHART / "ci" / "with-servers-values.yaml", **values), "Deployment")
        return {deployment["metadata"]["name"]: pod_of(deployment) for deployment in made}

    before, after = pods(), pods(settings={"log_level": "DEBUG"}, topics={"partitions": 128})
    assert {name for name in before if before[name] == after[name]} == {"essp-servers"}


def test_ten_commands_lead_to_the_first_job(helm: Helm, nothing: Path) -> None:
    commands = first_commands()
    assert len(commands) <= 10

    guide = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    assert [b for b in blocks(guide) if "make images" in b] == [[shlex.join(c) for c in commands]]
    by_word = {" ".join(command[:3]): command for command in commands}
    assert (ROOT / by_word["kind create cluster"][-1]).exists()
    assert by_word["helm install essp"][-2:] == ["--set", "servers.bundled=true"]
    objects = helm.render(nothing, servers={"bundled": True})
    images = {container_of(workload)["image"] for workload in workloads(objects)}
    assert images == set(by_word["kind load docker-image"][5:]), "pods use what is loaded into the nodes"
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("$(VERSION)", "0.1.0")
    assert all(f":{image}" in makefile for image in images), "`make images` builds them"
    source = by_word["kubectl create job"]
    assert named(objects, "CronJob", source[-1].rpartition("/")[2])["spec"]["suspend"] is True
    assert by_word["kubectl logs --follow"][-1] == f"job/{source[3]}"


def test_the_notes_say_the_same_three(helm: Helm) -> None:
    notes = helm.run("install", "essp", str(CHART), "--dry-run=client", values={"servers": {"bundled": True}})
    said = [shlex.split(line) for line in notes.splitlines() if line.startswith("     kubectl")][:3]
    assert [[word for word in line if word not in ("--namespace", "default")] for line in said] == first_commands()[-3:]


def test_all_of_it_fits_a_laptop(helm: Helm, nothing: Path) -> None:
    """Beside what Kubernetes itself takes: a core, and 1.5 GiB."""
    objects = helm.render(nothing, servers={"bundled": True})
    pods = [w for w in workloads(objects) if w["metadata"]["name"] != "essp-doctor"]
    (trainer,) = templates(objects)
    pods += [trainer] * (int(environment_of(pool_of(objects, "master"), objects)["ESSP_RANKS"]) - 1)
    asked = [container_of(pod)["resources"]["requests"] for pod in pods]
    assert all(pod.get("spec", {}).get("replicas", 1) == 1 for pod in of_kind(objects, "Deployment"))
    assert sum(cores(each["cpu"]) for each in asked) <= 1
    assert sum(bytes_of(each["memory"]) for each in asked) <= Fraction(13, 2) * GIB


def cores(quantity: str) -> Fraction:
    return Fraction(quantity.removesuffix("m")) * UNITS["m" if quantity.endswith("m") else ""]


def test_sizes_that_somebody_has_set_stay(helm: Helm, nothing: Path) -> None:
    """Also those that are the usual ones; `sizes.yaml` names amounts as `values.yaml` has them."""
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    sizes = yaml.safe_load((CHART / "files" / "sizes.yaml").read_text(encoding="utf-8"))
    for path, (usual, _) in sizes["amounts"].items():
        assert at(values, path) == usual, path
    for path in sizes["counts"]:
        assert at(values, path) is None, path

    own = {"trainer": {"gpu": {"count": 1}}, "ranks": 1}
    set_by_user = helm.render(nothing, servers={"bundled": True}, pools={"decoder": {"replicas": 2}}, controlPlane=own)
    assert named(set_by_user, "Deployment", "essp-decoder")["spec"]["replicas"] == 2
    assert environment_of(pool_of(set_by_user, "master"), set_by_user)["ESSP_RANKS"] == "1"
    (trainer,) = templates(set_by_user)
    assert container_of(trainer)["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert container_of(trainer)["image"].endswith("-cuda")
    large = helm.render(nothing, servers={"bundled": True, "small": False})
    assert named(large, "Deployment", "essp-decoder")["spec"]["replicas"] == 2


def at(values: Any, path: str) -> Any:
    """What values have there, if anything."""
    for step in path.split("."):
        values = values.get(step) if values else None
    return values


def test_processes_are_given_the_servers(helm: Helm, nothing: Path) -> None:
    objects = helm.render(nothing, servers={"bundled": True})
    args = container_of(pool_of(objects, "servers"))["args"]
    options = dict(zip(args[2::2], args[3::2], strict=True))
    service = named(objects, "Service", "essp-servers")
    assert options["--name"] == "essp-servers.training.svc"
    environment = environment_of(pool_of(objects, "decoder"), objects)
    assert environment["ESSP_BUS"].startswith(f"kafka://{options['--name']}:{options['--kafka-port']}?")
    assert environment["ESSP_CACHE"].startswith(f"redis://{options['--name']}:{options['--redis-port']}/0?")
    (store,) = json.loads(environment["ESSP_STORES"])
    assert store.startswith(f"s3://essp?endpoint=http://{options['--name']}:{options['--s3-port']}")
    ports = {int(options[f"--{name}-port"]) for name in ("kafka", "redis", "s3")}
    assert {port["port"] for port in service["spec"]["ports"]} == ports
    assert environment_of(pool_of(objects, "master"), objects)["ESSP_TRIAL_SERVERS"] == "true"
    secret = named(objects, "Secret", "essp-servers")["data"]
    assert secret.keys() == {"password", "credentials", "token"}
    for workload in workloads(objects):
        for volume in pod_of(workload)["spec"]["volumes"]:
            for source in volume.get("projected", {}).get("sources", ()):
                assert source["secret"]["name"] == "essp-servers"
                assert {item["key"] for item in source["secret"]["items"]} <= secret.keys()
    assert not [job for job in of_kind(objects, "Job") if labels_of(job)["app.kubernetes.io/component"] == "task"]


def test_redis_leaves_the_other_servers_room(helm: Helm, nothing: Path) -> None:
    container = container_of(pool_of(helm.render(nothing, servers={"bundled": True}), "servers"))
    redis = parse_bytes(container["args"][container["args"].index("--redis-memory") + 1])
    assert bytes_of(container["resources"]["limits"]["memory"]) >= int(str(redis)) + GIB // 2


def test_objects_are_kept_where_there_is_a_volume(helm: Helm, nothing: Path) -> None:
    kept = helm.render(nothing, servers={"bundled": True, "storage": {"persistent": True, "size": "1Gi"}})
    claim = named(kept, "PersistentVolumeClaim", "essp-servers")
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    volumes = {v["name"]: v for v in pod_of(pool_of(kept, "servers"))["spec"]["volumes"]}
    assert volumes["data"]["persistentVolumeClaim"] == {"claimName": "essp-servers"}


def test_the_demonstration_asks_for_trainers_that_the_master_may_start(helm: Helm, nothing: Path) -> None:
    objects = helm.render(nothing, servers={"bundled": True})
    spec = parse_spec(job_text("s3://essp/demo", 1, 16), "demo")
    assert len(spec.trainers) <= int(environment_of(pool_of(objects, "master"), objects)["ESSP_RANKS"])
