"""The rules of `rules.py` hold for every set of values, and none of them would miss what it is there for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chart import rules
from tests.chart.rendering import CASES, Helm, Object, container_of, environment_of, named, of_kind, pod_of, pool_of
from tests.chart.rules import Rule
from tools.chart_reference import CHART

Damage = Callable[[list[Object]], object]


@pytest.mark.parametrize("rule", rules.ALL, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_it_holds(helm: Helm, case: Path, rule: Rule) -> None:
    assert rule(helm.render(case)) == []


@pytest.mark.parametrize("case", ["minimal", "with-servers", "training"])
def test_what_a_user_sets_replaces_what_the_chart_tells(helm: Helm, case: str) -> None:
    names = "AWS_ACCESS_KEY_ID", "AWS_SHARED_CREDENTIALS_FILE", "MASTER_PORT"
    own = [{"name": name, "value": value} for value in ("former", "mine") for name in names]
    pools = {"master": {"env": own}, "decoder": {"env": own}}
    settings = {"log_format": "json", "log_level": "DEBUG"}
    extra = {"extraPools": {"ucf-rgb": {"env": own}}} if case == "training" else {}
    objects = helm.render(CHART / "ci" / f"{case}-values.yaml", settings=settings, pools=pools, **extra)
    assert rules.told_once(objects) == []
    told = [environment_of(pool_of(objects, "decoder"), objects)]
    if case == "training":
        told += [environment_of(pool_of(objects, "ucf-rgb"), objects)]
    if case == "with-servers":
        told += [environment_of(named(objects, "CronJob", "essp-demo"), objects)]
        assert (told[-1]["ESSP_LOG_FORMAT"], told[-1]["ESSP_LOG_LEVEL"]) == ("text", "DEBUG")
    assert {environment[name] for environment in told for name in names} == {"mine"}


def decoder(objects: list[Object]) -> Object:
    found: Object = pod_of(pool_of(objects, "decoder"))["spec"]
    return found


def process(objects: list[Object]) -> Object:
    return container_of(pool_of(objects, "decoder"))


def policy(objects: list[Object], name: str = "essp-decoder") -> Object:
    found: Object = named(objects, "NetworkPolicy", name)["spec"]
    return found


DAMAGES: dict[str, tuple[Rule, Damage]] = {
    "runAsNonRoot dropped": (rules.restricted, lambda o: decoder(o)["securityContext"].pop("runAsNonRoot")),
    "runs as root": (rules.restricted, lambda o: decoder(o)["securityContext"].update(runAsUser=0)),
    "no seccomp": (rules.restricted, lambda o: decoder(o)["securityContext"].pop("seccompProfile")),
    "host network": (rules.restricted, lambda o: decoder(o).update(hostNetwork=True)),
    "host path": (rules.restricted, lambda o: decoder(o)["volumes"].append({"name": "h", "hostPath": {"path": "/"}})),
    "writable root": (
        rules.restricted,
        lambda o: process(o)["securityContext"].update(readOnlyRootFilesystem=False),
    ),
    "privilege escalation": (
        rules.restricted,
        lambda o: process(o)["securityContext"].pop("allowPrivilegeEscalation"),
    ),
    "capabilities": (rules.restricted, lambda o: process(o)["securityContext"]["capabilities"].update(add=["NET_RAW"])),
    "hook as root": (
        rules.restricted,
        lambda o: pod_of(named(o, "Job", "essp-setup"))["spec"]["securityContext"].pop("runAsNonRoot"),
    ),
    "no memory limit": (rules.limited, lambda o: process(o)["resources"]["limits"].pop("memory")),
    "no CPU asked": (rules.limited, lambda o: process(o)["resources"]["requests"].pop("cpu")),
    "shm beyond memory": (rules.limited, lambda o: decoder(o)["volumes"][1]["emptyDir"].update(sizeLimit="64Gi")),
    "unlimited tmp": (rules.limited, lambda o: decoder(o)["volumes"][0]["emptyDir"].pop("sizeLimit")),
    "no liveness": (rules.probed, lambda o: process(o).pop("livenessProbe")),
    "liveness by readiness": (rules.probed, lambda o: process(o)["livenessProbe"]["httpGet"].update(path="/readyz")),
    "probe of no port": (rules.probed, lambda o: process(o)["readinessProbe"]["httpGet"].update(port="http")),
    "other pod label": (
        rules.selected,
        lambda o: pod_of(pool_of(o, "decoder"))["metadata"]["labels"].update({"essp.dev/pool": "decoders"}),
    ),
    "selects two pools": (
        rules.selected,
        lambda o: [
            named(o, "Deployment", "essp-decoder")["spec"]["selector"]["matchLabels"].pop(label)
            for label in ("essp.dev/pool", "app.kubernetes.io/component")
        ],
    ),
    "service of another": (
        rules.selected,
        lambda o: named(o, "Service", "essp-master")["spec"]["selector"].update({"app.kubernetes.io/component": "m"}),
    ),
    "policy of nobody": (rules.selected, lambda o: policy(o)["podSelector"]["matchLabels"].update({"a": "b"})),
    "budget of nobody": (
        rules.selected,
        lambda o: named(o, "PodDisruptionBudget", "essp-decoder")["spec"]["selector"]["matchLabels"].update({"a": "b"}),
    ),
    "spread by others": (
        rules.selected,
        lambda o: decoder(o)["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"].update({"a": "b"}),
    ),
    "no such account": (rules.bound, lambda o: decoder(o).update(serviceAccountName="nobody")),
    "no configuration": (rules.bound, lambda o: o.remove(named(o, "ConfigMap", "essp"))),
    "decoder with a token": (rules.tokenless, lambda o: decoder(o).update(automountServiceAccountToken=True)),
    "token by default": (rules.tokenless, lambda o: decoder(o).pop("automountServiceAccountToken")),
    "account with a token": (
        rules.tokenless,
        lambda o: named(o, "ServiceAccount", "essp-decoder").pop("automountServiceAccountToken"),
    ),
    "no budget": (rules.available, lambda o: o.remove(named(o, "PodDisruptionBudget", "essp-decoder"))),
    "budget that blocks": (
        rules.available,
        lambda o: named(o, "PodDisruptionBudget", "essp-decoder")["spec"].update(maxUnavailable=0),
    ),
    "one pod kept": (
        rules.available,
        lambda o: named(o, "PodDisruptionBudget", "essp-master").update(
            spec={
                "minAvailable": 1,
                "selector": named(o, "PodDisruptionBudget", "essp-master")["spec"]["selector"],
            }
        ),
    ),
    "a size beside its scaler": (
        rules.unsized,
        lambda o: named(o, "Deployment", "essp-decoder")["metadata"]["labels"].update({"essp.dev/scaled-by": "master"}),
    ),
    "setup tried in vain": (rules.retried, lambda o: named(o, "Job", "essp-setup")["spec"].pop("podFailurePolicy")),
    "a rule of another container": (
        rules.retried,
        lambda o: container_of(named(o, "Job", "essp-setup")).update(name="other"),
    ),
    "told twice": (rules.told_once, lambda o: process(o)["env"].append({"name": "ESSP_METRICS_PORT", "value": "1"})),
    "killed too early": (rules.graceful, lambda o: decoder(o).update(terminationGracePeriodSeconds=30)),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_it_notices(helm: Helm, what: str) -> None:
    rule, damage = DAMAGES[what]
    objects = helm.render()
    damage(objects)
    assert rule(objects) != []


def test_every_rule_was_seen_to_notice_something() -> None:
    assert {rule for rule, _ in DAMAGES.values()} == set(rules.ALL)


def test_security_is_no_value(helm: Helm) -> None:
    """Whatever is in `poolDefaults`, the security of a pod is not: nothing in the schema names it."""
    schema = (CHART / "values.schema.json").read_text(encoding="utf-8")
    for field in ("runAsNonRoot", "readOnlyRootFilesystem", "allowPrivilegeEscalation", "capabilities", "privileged"):
        assert f'"{field}"' not in schema
    assert of_kind(helm.render(), "NetworkPolicy")
