"""What helm makes of the chart is what an API server takes, whatever the values."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chart.api_schemas import VERSIONS, faults
from tests.chart.rendering import CASES, Helm, of_kind, parsed, templates
from tools.chart_reference import CHART

KINDS = {
    "ConfigMap", "CronJob", "Deployment", "HTTPRoute", "HorizontalPodAutoscaler", "Ingress", "Job", "KafkaTopic",
    "NetworkPolicy", "PersistentVolumeClaim", "Pod", "PodDisruptionBudget", "PodMonitor", "PrometheusRule", "Role",
    "RoleBinding", "ScaledObject", "Secret", "Service", "ServiceAccount", "ServiceMonitor",
}  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_helm_has_nothing_to_object_to(helm: Helm, case: Path) -> None:
    assert "0 chart(s) failed" in helm.run("lint", "--strict", str(CHART), "--values", str(case))


@pytest.mark.parametrize("version_of_kubernetes", VERSIONS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_every_object_fits_its_schema(helm: Helm, case: Path, version_of_kubernetes: str) -> None:
    objects = helm.render(case)
    wrong = [fault for made in objects + templates(objects) for fault in faults(made, version_of_kubernetes)]
    assert wrong == []


def test_the_cases_show_every_kind_of_object(helm: Helm) -> None:
    assert {made["kind"] for case in CASES for made in helm.render(case)} == KINDS


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_names_are_unique_and_short_enough(helm: Helm, case: Path) -> None:
    names = [(made["kind"], made["metadata"]["name"]) for made in helm.render(case)]
    assert len(set(names)) == len(names)
    assert all(len(name) <= 63 for _, name in names)


def test_long_names_leave_room_for_what_comes_behind(helm: Helm) -> None:
    pool = {"service": "trainer", "training": {"job": "a", "trainer": "b"}}
    command = ("template", "r" * 53, str(CHART), "--values", str(CASES[1]))
    objects = parsed(helm.run(*command, values={"extraPools": {"p" * 24: pool}}))
    assert all(len(found["metadata"]["name"]) <= 63 for found in objects)
    # A pod of an indexed Job is host <job>-<index>, of at most 64 ranks.
    jobs = [job for job in of_kind(objects, "Job") if "p" * 24 in job["metadata"]["name"]]
    assert [len(job["metadata"]["name"]) <= 63 - len("-63") for job in jobs] == [True]
