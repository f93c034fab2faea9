"""The installation on kind in docs/kubernetes.md fits together, as far as that shows without a cluster."""

from __future__ import annotations

import yaml

from tests.chart import rules
from tests.chart.api_schemas import VERSIONS, faults
from tests.chart.network import Peer, allowed
from tests.chart.rendering import Helm, Object, container_of, environment_of, named, of_kind, parsed, pool_of
from tools.chart_reference import CHART

KIND = CHART / "examples" / "kind"
ROOT = CHART.parents[1]


def manifests(name: str) -> list[Object]:
    return parsed((KIND / name).read_text(encoding="utf-8"))


def installed(helm: Helm) -> list[Object]:
    return helm.render(KIND / "values.yaml")


def test_every_object_fits_its_schema(helm: Helm) -> None:
    for made in installed(helm) + manifests("servers.yaml") + manifests("demo.yaml"):
        assert [fault for version in VERSIONS for fault in faults(made, version)] == []


def test_the_rules_hold(helm: Helm) -> None:
    objects = installed(helm)
    assert [rule(objects) for rule in rules.ALL] == [[]] * len(rules.ALL)


def test_the_servers_are_those_of_the_compose_file() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    for made in of_kind(manifests("servers.yaml"), "Deployment"):
        assert container_of(made)["image"] == services[made["metadata"]["name"]]["image"]
    (demo,) = manifests("demo.yaml")
    assert container_of(demo)["image"] == services["demo"]["image"]


def test_everything_that_is_named_is_there(helm: Helm) -> None:
    objects, servers = installed(helm), manifests("servers.yaml")
    environment = environment_of(pool_of(objects, "decoder"), objects)
    assert environment["ESSP_BUS"] == "kafka://kafka:9092"
    ports = {made["metadata"]["name"]: made["spec"]["ports"][0]["port"] for made in of_kind(servers, "Service")}
    assert ports == {"kafka": 9092, "redis": 6379, "s3": 7070}
    assert named(servers, "Secret", "essp-s3")["stringData"].keys() == {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
    (demo,) = manifests("demo.yaml")
    assert named(objects, "ConfigMap", container_of(demo)["envFrom"][0]["configMapRef"]["name"])
    assert named(objects, "Service", "essp-master")["spec"]["ports"][0]["port"] == 8080
    assert allowed(objects, Peer.of(demo), Peer.of(pool_of(objects, "master")), 8080)
    for pool in ("demo-rgb", "demo-flow"):
        assert "demo" in container_of(pool_of(objects, pool))["args"]
