"""The dashboard and the alerts ask for metrics, and labels, that there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from prometheus_client.metrics_core import Metric

from essp_common.job.status import JobState, JobStatus, PhaseReport
from essp_common.job.usage import PoolUsage, Usage
from essp_common.runtime import metrics
from essp_master.api.exposition import JobCollector, PoolCollector, UsageCollector
from tests.chart.rendering import CASES, Helm, named, of_kind, pod_of, pool_of
from tools.chart_reference import CHART

DOCS = Path(__file__).parents[2] / "docs"
SCRAPED = {"namespace", "pod", "service", "instance", "container", "endpoint"}
"""Labels that Prometheus adds to what it reads, by the monitors of the chart."""

_METRIC = re.compile(r"\b(essp_\w+|up)\b(?:\{([^}]*)\})?")
_GROUPING = re.compile(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)")


def known() -> dict[str, set[str]]:
    """Every series of ESSP with its labels."""
    found = {"up": {"job"}}
    for collector in {c for c in vars(metrics).values() if hasattr(c, "_labelnames")}:
        (family,) = collector.describe()
        found |= {name: set(collector._labelnames) | extra for name, extra in _series(family)}
    pools: Any = [SimpleNamespace(name="decoder", replicas=2, wanted=3, ready=1)]
    ranks = {("ucf101", "rgb"): 2}
    figures = dict.fromkeys(PoolUsage.model_fields, 1) | {"pool": "decoder"}
    usage = UsageCollector(Usage(pools=(PoolUsage.model_validate(figures),), processes=()))
    for collected in (JobCollector(lambda: [job_status()]), PoolCollector(lambda: pools, lambda: ranks), usage):
        for family in collected.collect():
            for sample in family.samples:
                found[sample.name] = set(sample.labels)
    return found


def _series(family: Metric) -> Iterator[tuple[str, set[str]]]:
    if family.type == "counter":
        yield f"{family.name}_total", set()
    elif family.type == "histogram":
        yield f"{family.name}_bucket", {"le"}
        yield f"{family.name}_sum", set()
        yield f"{family.name}_count", set()
    else:
        yield family.name, set()


def job_status() -> Any:
    """The status of a job, with whatever the collector looks at."""

    class Anything:
        def __init__(self, **known: Any) -> None:
            self.__dict__.update(known)

        def __getattr__(self, name: str) -> Any:
            return 0.0

    fields = {name: Anything() for name in JobStatus.model_fields}
    counts = JobStatus.model_fields["counts"].annotation
    assert counts is not None
    dumped = dict.fromkeys(counts.model_fields, 1)
    fields["counts"] = Anything(model_dump=lambda: dumped)
    report = PhaseReport(purpose="validation", epoch=0, metrics={"loss": 1.0, "top1": 0.5})
    trainer = Anything(name="rgb", data_wait_ratio=0.5, purpose="train", reports=[report])
    own = {"name": "ucf101", "state": JobState.RUNNING, "trainers": [trainer], "backlog": {"decoder": 1}}
    return Anything(**{**fields, **own})


def faults(expression: str, series: dict[str, set[str]]) -> list[str]:
    """Metrics and labels of an expression that do not exist."""
    found = []
    used: set[str] = set()
    for name, matchers in _METRIC.findall(expression):
        if name not in series:
            found.append(f"no metric {name}")
            continue
        used |= series[name]
        labels = {part.partition("=")[0].rstrip("!").strip() for part in matchers.split(",") if "=" in part}
        found += [f"{name} has no label {label}" for label in labels - series[name] - SCRAPED]
    for group in _GROUPING.findall(expression):
        labels = {label.strip() for label in group.split(",")}
        found += [f"nothing here has the label {label}" for label in labels - used - SCRAPED]
    if expression.count("(") != expression.count(")") or expression.count("{") != expression.count("}"):
        found.append("brackets do not match")
    return found


CORE = {
    "essp_units_total": {"stage", "outcome"},
    "essp_unit_duration_seconds_bucket": {"stage", "le"},
    "essp_inflight_units": {"stage"},
    "essp_cache_bytes": {"state"},
    "essp_job_budget_bytes": {"job"},
    "essp_job_outstanding_bytes": {"job"},
    "essp_job_backlog_clips": {"job", "what"},
    "essp_last_progress_timestamp_seconds": {"stage"},
    "essp_failures_total": {"stage", "kind"},
    "essp_retries_total": {"stage", "kind"},
    "essp_job_seeds_total": {"job", "outcome"},
    "essp_job_state": {"job", "state"},
    "essp_job_epoch": {"job", "trainer"},
    "essp_job_loss": {"job", "trainer", "purpose"},
    "essp_job_top1": {"job", "trainer", "purpose"},
    "essp_job_ranks": {"job", "trainer"},
    "essp_pool_size": {"pool"},
    "essp_pool_wanted": {"pool"},
    "essp_pool_pending": {"pool"},
    "essp_pool_cpu_cores": {"pool"},
    "essp_pool_memory_bytes": {"pool"},
    "essp_pool_disk_free_bytes": {"pool"},
    "essp_pool_gpu_busy_ratio": {"pool"},
    "essp_api_request_duration_seconds_bucket": {"method", "route", "status", "le"},
    "essp_leader": set(),
    "essp_build_info": {"version"},
}
"""What whoever runs ESSP must be able to see: work, time, load, memory, credits, what waits, when something last moved,
what failed, was full, came twice, what became of each job and training, sizes and ranks, how fast the master answers,
who leads, and which version it is."""


def test_the_core_set_is_exported() -> None:
    series = known()
    assert {name: series.get(name) for name in CORE} == CORE
    text = (DOCS / "kubernetes.md").read_text(encoding="utf-8")
    assert not [name for name in CORE if name.removesuffix("_bucket") not in text]


def test_what_the_documents_name_is_exported() -> None:
    series = {name.removesuffix("_bucket") for name in known()} | set(known())
    packages = {"essp_common", "essp_engine", *(path.name for path in (DOCS.parent / "services").iterdir())}
    for document in DOCS.rglob("*.md"):
        named_there = set(re.findall(r"`(essp_[a-z_]+)[`{]", document.read_text(encoding="utf-8")))
        assert named_there - packages <= series, document


def test_no_metric_is_declared_that_nobody_counts() -> None:
    declared = {name for name, value in vars(metrics).items() if hasattr(value, "_labelnames")}
    modules = [
        path
        for folder in ("essp", "essp_common", "essp_engine", "services")
        for path in (DOCS.parent / folder).rglob("*.py")
    ]
    counted = {name for path in modules for name in re.findall(r"\b([A-Z_]+)\.labels\b", path.read_text("utf-8"))}
    assert declared - counted == set()


def alerts(helm: Helm) -> list[dict[str, Any]]:
    (made,) = of_kind(helm.render(next(case for case in CASES if "hpa" in case.stem)), "PrometheusRule")
    return [rule for group in made["spec"]["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CHART / "files" / "dashboard.json").read_text(encoding="utf-8"))
    return found


def test_alerts_ask_for_what_there_is(helm: Helm) -> None:
    series = known()
    assert {rule["alert"]: wrong for rule in alerts(helm) if (wrong := faults(rule["expr"], series))} == {}


def test_alerts_are_about_this_release_and_say_what_to_do(helm: Helm) -> None:
    names = [rule["alert"] for rule in alerts(helm)]
    assert len(set(names)) == len(names)
    for rule in alerts(helm):
        assert rule["expr"].count('namespace="training"') == len(_METRIC.findall(rule["expr"]))
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
        labels = {label for text in rule["annotations"].values() for label in re.findall(r"\$labels\.(\w+)", text)}
        assert labels <= SCRAPED.union(*(known()[name] for name, _ in _METRIC.findall(rule["expr"])))
    assert any('service="essp-master"' in rule["expr"] for rule in alerts(helm))


def test_the_dashboard_asks_for_what_there_is() -> None:
    series = known()
    variables = {variable["name"] for variable in dashboard()["templating"]["list"]}
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"].replace("$__rate_interval", "5m")
            assert faults(expression, series) == [], panel["title"]
            assert set(re.findall(r"\$(\w+)", expression)) <= variables
            legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert legend <= set().union(*(series[name] for name, _ in _METRIC.findall(expression)))
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            asked = variable["query"]["query"].removeprefix("label_values(").removesuffix(")")
            expression, _, label = asked.rpartition(", ")
            assert faults(expression, series) == []
            assert label in series[_METRIC.findall(expression)[0][0]] | SCRAPED


@pytest.mark.parametrize(
    "wrong",
    [
        "essp_job_clip",
        "essp_units",
        'essp_units_total{pool="decoder"}',
        "sum by (job) (essp_units_total)",
        "rate(essp_units_total[5m]",
    ],
)
def test_a_wrong_expression_is_noticed(wrong: str) -> None:
    assert faults(wrong, known())


def test_the_dashboard_fits_its_grid() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken
        assert all(x < 24 for x, _ in cells)
        taken |= cells


def test_grafana_and_prometheus_find_them(helm: Helm) -> None:
    objects = helm.render(next(case for case in CASES if "hpa" in case.stem))
    board = named(objects, "ConfigMap", "essp-dashboard")
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(board["data"]["essp.json"]) == dashboard()
    for made in of_kind(objects, "ServiceMonitor", "PodMonitor", "PrometheusRule"):
        assert made["metadata"]["labels"]["release"] == "prometheus"


def test_monitors_read_ports_that_are_there(helm: Helm) -> None:
    objects = helm.render(next(case for case in CASES if "hpa" in case.stem))
    (workers,) = of_kind(objects, "PodMonitor")
    (master,) = of_kind(objects, "ServiceMonitor")
    ports = {port["name"] for port in pod_of(pool_of(objects, "decoder"))["spec"]["containers"][0]["ports"]}
    assert {endpoint["port"] for endpoint in workers["spec"]["podMetricsEndpoints"]} == ports
    service = named(objects, "Service", "essp-master")
    assert {endpoint["port"] for endpoint in master["spec"]["endpoints"]} == {
        p["name"] for p in service["spec"]["ports"]
    }
    # `job` is a label of the master's own metrics.
    assert all(endpoint["honorLabels"] for endpoint in master["spec"]["endpoints"])


def test_the_alert_file_is_a_rule_file_by_itself() -> None:
    rules = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text(encoding="utf-8"))
    assert [group["name"] for group in rules["groups"]] == ["essp.jobs", "essp.flow"]
