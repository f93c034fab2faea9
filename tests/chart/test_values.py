"""Wrong values are refused with what to do, and what is installed says how to go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.rendering import CASES, MINIMAL, Helm, Object, Refused, container_of, environment_of, named
from tools.chart_reference import CHART, SCHEMA

NOWHERE = CHART / "values.yaml"
"""As a case: nothing but the defaults."""


def notes(helm: Helm, case: Path = MINIMAL, **values: Any) -> str:
    command = ("install", "essp", str(CHART), "--namespace", "training", "--dry-run=client", "--values", str(case))
    return helm.run(*command, values=values).partition("NOTES:")[2]


def test_what_has_to_be_said_is_asked_for_all_at_once(helm: Helm) -> None:
    with pytest.raises(Refused) as refused:
        helm.render(NOWHERE)
    for part in ("kafka.servers", "redis.server", "s3.buckets", "kubectl create secret generic essp-api"):
        assert part in str(refused.value)


def absent(defaults: Object, given: Object, deepest: int) -> Object:
    """Every default but those given, as null, which takes it away; down to this depth."""
    found: Object = {}
    for key, default in defaults.items():
        if key in given and not isinstance(given[key], dict):
            continue
        opened = isinstance(default, dict) and default and deepest > 1 and key != "resources"
        found[key] = absent(default, given.get(key, {}), deepest - 1) if opened or key in given else None
    return found


@pytest.mark.parametrize("deepest", [1, 2, 9])
def test_an_upgrade_that_reuses_the_values_of_an_older_chart_has_the_defaults_of_this_one(
    helm: Helm, deepest: int
) -> None:
    """`--reuse-values` takes the older chart's defaults, which know nothing of what is new."""
    values = yaml.safe_load(NOWHERE.read_text())
    kept = dict.fromkeys(("podSecurity", "poolDefaults", "pools"))  # they may lack something on purpose
    without = absent(values, yaml.safe_load(MINIMAL.read_text()) | kept, deepest)
    assert helm.render(**without) == helm.render()


PLACES = (
    "", "image", "kafka", "redis", "s3", "topics.job", "api.ingress", "settings", "poolDefaults", "poolDefaults.gpu",
    "pools", "pools.decoder", "pools.decoder.autoscaling", "pools.extractor.settings", "extraPools.x",
    "autoscaling.keda", "controlPlane", "controlPlane.trainer", "podSecurity", "networkPolicy.kafka",
    "monitoring.monitors", "test",
)  # fmt: skip


def test_an_unknown_key_is_refused_wherever_it_is(helm: Helm) -> None:
    values: Object = {"extraPools": {"x": {"service": "extractor"}}}
    for number, place in enumerate(PLACES):
        there = values
        for part in place.split(".") if place else []:
            there = there.setdefault(part, {})
        there[f"colour{number}"] = "blue"
    with pytest.raises(Refused) as refused:
        helm.render(**values)
    for number, place in enumerate(PLACES):
        assert f"'colour{number}' not allowed" in str(refused.value), place


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"kafka": {"servers": ["kafka"]}}, "/kafka/servers/0"),
        ({"redis": {"server": "redis://redis:6379"}}, "/redis/server"),
        ({"s3": {"buckets": ["s3://bucket"]}}, "/s3/buckets/0"),
        ({"s3": {"endpoint": "http://key:secret@s3:7070"}}, "/s3/endpoint"),
        ({"redis": {"server": "essp:secret@redis:6379"}}, "/redis/server"),
        ({"podSecurity": {"runAsUser": 0}}, "/podSecurity/runAsUser"),
        ({"fullnameOverride": "Video"}, "/fullnameOverride"),
        ({"nameOverride": "my_essp"}, "/nameOverride"),
        ({"autoscaling": {"provider": "magic"}}, "/autoscaling/provider"),
        ({"extraPools": {"Bad_Name": {"service": "extractor"}}}, "Bad_Name"),
        ({"extraPools": {"x": {}}}, "service"),
        ({"extraPools": {"x": {"service": "master"}}}, "/extraPools/x/service"),
        ({"pools": {"decoder": {"service": "extractor"}}}, "/pools/decoder/service"),
        ({"pools": {"decoder": {"podLabels": {"essp.dev/pool": "x"}}}}, "invalid propertyName .essp.dev/pool"),
        ({"pools": {"decoder": {"resources": {"limits": {"memory": "a lot"}}}}}, "/resources/limits/memory"),
        ({"pools": {"master": {"replicas": 2}}}, "leaderElection=true"),
        ({"controlPlane": {"registrations": True}}, r"pools\.master\.settings\.state"),
        ({"pools": {"aggregator": {"autoscaling": {"provider": "keda"}}}}, "only decoders and extractors"),
        ({"pools": {"decoder": {"autoscaling": {"min": 9, "max": 8}}}}, r"min is above"),
        ({"pools": {"decoder": {"autoscaling": {"min": 0, "provider": "hpa"}}}}, "an HPA never scales to nothing"),
        ({"autoscaling": {"provider": "keda"}, "pools": {"extractor": {"features": []}}}, "consumer group"),
        ({"kafka": {"sasl": "PLAIN"}}, "belong together"),
        ({"kafka": {"user": "essp"}}, "belong together"),
        ({"kafka": {"caSecret": "ca"}}, r"kafka\.tls=true"),
        ({"kafka": {"clientSecret": "me"}}, r"kafka\.tls=true"),
        ({"redis": {"clientSecret": "me"}}, r"redis\.tls=true"),
        ({"redis": {"user": "me"}}, r"redis\.passwordSecret"),
        ({"redis": {"passwordSecret": "me", "existingSecret": "url"}}, "not both"),
        (
            {"autoscaling": {"provider": "keda"}, "kafka": {"sasl": "PLAIN", "user": "u", "existingSecret": "s"}},
            "TriggerAuthentication",
        ),
        (
            {"autoscaling": {"provider": "keda"}, "kafka": {"tls": True, "clientSecret": "me"}},
            "TriggerAuthentication",
        ),
        (
            {
                "poolDefaults": {"serviceAccount": {"name": "mine"}},
                "pools": {"master": {"serviceAccount": {"annotations": {"role": "mine"}}}},
            },
            "a service account mine with other annotations",
        ),
        ({"api": {"ingress": {"enabled": True}}}, "/api/ingress/host"),
        ({"servers": {"bundled": True}}, r"leave out kafka\.servers, redis\.server, s3\.endpoint, s3\.existingSecret"),
        ({"servers": {"bundled": True}, "redis": {"mode": "cluster", "user": "me"}}, r"redis\.mode, redis\.user,"),
        ({"servers": {"bundled": True}, "redis": {"passwordSecret": "mine"}}, r"redis\.passwordSecret"),
        ({"servers": {"bundled": True}, "s3": {"buckets": ["essp/a", "videos"]}}, r"s3\.endpoint, s3\.buckets"),
        ({"servers": {"bundled": True}, "s3": {"credentialsSecret": "mine"}}, r"s3\.credentialsSecret"),
    ],
)
def test_what_cannot_be_is_refused(helm: Helm, values: Object, said: str) -> None:
    with pytest.raises(Refused, match=said):
        helm.render(**values)


def test_keys_of_other_charts_are_refused_with_what_to_say_instead(helm: Helm) -> None:
    with pytest.raises(Refused) as refused:
        helm.render(
            replicaCount=3,
            resources={},
            workers={},
            serviceMonitor={"enabled": True},
            kafka={"enabled": True},
            redis={"enabled": False, "password": "secret"},
            s3={"secretKey": "secret"},
            api={"token": "secret"},
        )
    for said in (
        "replicaCount: set pools.<name>.replicas",
        "resources: set poolDefaults.resources",
        "workers: is called pools",
        "serviceMonitor: is called monitoring.monitors",
        "kafka.enabled: servers.bundled=true",
        "redis.enabled: servers.bundled=true",
        "name that in redis.passwordSecret",
        "name it in s3.existingSecret",
        "name it in api.existingSecret",
    ):
        assert said in str(refused.value)


def test_every_deprecated_key_has_its_advice() -> None:
    """The schema lets through what `_refused.tpl` refuses, and nothing else."""
    advice = (CHART / "templates" / "_refused.tpl").read_text(encoding="utf-8")

    def deprecated(schema: Object, path: str) -> list[str]:
        found: list[str] = []
        for name, field in schema.get("properties", {}).items():
            where = f"{path}.{name}" if path else name
            if isinstance(field, dict):
                found += [where] if field.get("deprecated") else deprecated(field, where)
        return found

    names = deprecated(json.loads(SCHEMA.read_text(encoding="utf-8")), "")
    assert len(names) == advice.count('" "') == 9
    assert all(f'"{name}" "' in advice for name in names)


def test_every_value_is_explained_and_has_a_default() -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    values = yaml.safe_load(NOWHERE.read_text(encoding="utf-8"))

    def gaps(part: Object, held: Any, path: str) -> list[str]:
        found = []
        for name, field in part.get("properties", {}).items():
            where = f"{path}.{name}"
            if field is False or field.get("deprecated"):
                continue
            if not field.get("description"):
                found.append(f"{where}: not explained")
            if name not in held and where not in (".global", "pool.service", "pool.training"):
                found.append(f"{where}: no default")
            elif isinstance(held.get(name), dict):
                found += gaps(field, held[name], where)
        return found

    assert gaps(schema, values, "") == []
    assert gaps(schema["$defs"]["pool"], values["poolDefaults"], "pool") == []


def test_the_notes_say_how_to_go_on(helm: Helm) -> None:
    said = notes(helm)
    assert "kubectl --namespace training get pods --selector app.kubernetes.io/instance=essp" in said
    assert "helm test essp --namespace training --logs" in said
    assert "port-forward service/essp-master 8080:8080" in said
    assert "get secret essp-api --output jsonpath='{.data.token}'" in said
    assert "essp job start job.yaml" in said
    assert "\n  decoder  2 workers\n  extractor  extractor of flow, 2 workers\n  predictor  1 worker\n" in said
    assert "WARNING" not in said


@pytest.mark.parametrize(
    ("values", "warned"),
    [
        ({"api": {"open": True, "existingSecret": ""}}, "every client that reaches the master may start and stop jobs"),
        ({"autoscaling": {"provider": "hpa"}}, "has no metrics-server, without which an HPA never scales: aggregator"),
        (
            {"api": {"open": True, "existingSecret": "", "ingress": {"enabled": True, "host": "essp.example.org"}}},
            "all clients of essp.example.org",
        ),
        ({"networkPolicy": {"enabled": False}}, "may connect to any address"),
        ({"image": {"registry": ""}}, "image.registry is empty"),
        ({"api": {"ingress": {"enabled": True, "host": "a.example.com"}}}, r"networkPolicy.api.from"),
        ({"api": {"service": {"type": "LoadBalancer"}}}, r"networkPolicy.api.from"),
        ({"monitoring": {"monitors": {"enabled": True}}}, "networkPolicy.metrics.from"),
        ({"settings": {"traces": "http://collector:4318"}}, "the server named in settings.traces"),
        ({"pools": {"decoder": {"settings": {"traces": "http://collector:4318"}}}}, "networkPolicy.egress"),
        ({"pools": {"master": {"settings": {"mlflow": "http://mlflow:5000"}}}}, "the server named in settings.mlflow"),
    ],
)
def test_the_notes_warn_of_what_is_risky(helm: Helm, values: Object, warned: str) -> None:
    assert warned in notes(helm, **values).replace("\n", " ")


def test_the_notes_are_silent_where_the_way_is_open(helm: Helm) -> None:
    said = notes(helm, settings={"traces": "http://collector:4318"}, networkPolicy={"egress": [{}]})
    assert "WARNING" not in said


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_the_notes_are_there_for_all(helm: Helm, case: Path) -> None:
    assert "is installed as essp in training" in notes(helm, case)


def test_helm_test_asks_the_doctor(helm: Helm) -> None:
    pod = named(helm.render(), "Pod", "essp-doctor")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert container_of(pod)["args"] == ["doctor", "--server", "http://essp-master.training.svc:8080"]
    assert environment_of(pod, [])["ESSP_API_TOKEN"] == "<essp-api/token>"
    assert pod["spec"]["serviceAccountName"] == "essp-master", "the object store may know it by its account"
    assert pod["spec"]["automountServiceAccountToken"] is False


def test_the_service_leads_to_the_master(helm: Helm) -> None:
    objects = helm.render(next(case for case in CASES if case.stem == "secrets-values"))
    service = named(objects, "Service", "video-master")["spec"]
    port = service["ports"][0]
    container = container_of(named(objects, "Deployment", "video-master"))
    assert port["targetPort"] in {p["name"] for p in container["ports"]}
    assert str({p["name"]: p["containerPort"] for p in container["ports"]}["http"]) in container["args"]
    backend = named(objects, "HTTPRoute", "video")["spec"]["rules"][0]["backendRefs"][0]
    assert (backend["name"], backend["port"]) == ("video-master", port["port"])
