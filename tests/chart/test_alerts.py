"""Which alerts fire when, and that each has a section that says what to do.

The cases are `promtool`'s; where it is installed it runs them, too, and everywhere `promql.py` does.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart import promql
from tests.harness.waiting import LONGEST_S
from tools.chart_reference import CHART

CASES = Path(__file__).with_name("alerts.test.yaml")
RUNBOOK = Path(__file__).parents[2] / "docs" / "alerts.md"


def rules() -> list[dict[str, Any]]:
    found = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text(encoding="utf-8"))
    return [rule for group in found["groups"] for rule in group["rules"]]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
def test_they_fire_when_they_should_and_not_before() -> None:
    done = subprocess.run(["promtool", "test", "rules", str(CASES)], capture_output=True, text=True, timeout=LONGEST_S)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("case", yaml.safe_load(CASES.read_text(encoding="utf-8"))["tests"], ids=lambda c: c["name"])
def test_they_fire_in_each_case(case: dict[str, Any]) -> None:
    series = [promql.series_of(given["series"], given["values"]) for given in case["input_series"]]
    checks = {int(check["eval_time"].removesuffix("m")): check for check in case["promql_expr_test"]}
    for minute, fire in promql.firing(rules(), series, max(checks)):
        for check in (c for c in case["promql_expr_test"] if c["eval_time"] == f"{minute}m"):
            found = promql.parse(check["expr"])([(labels, [1.0] * (minute + 1)) for labels in fire], minute)
            assert found == {
                promql.series_of(sample["labels"], "")[0] - {(promql.NAME, "")}: sample["value"]
                for sample in check["exp_samples"]
            }, f"{check['expr']} at {minute} min"


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_that_asks_for_something_else_is_noticed(rule: dict[str, Any]) -> None:
    """The cases and what runs them can fail: with the last comparison of an alert turned round, they do."""
    last = list(re.finditer(" (!=|==|>) ", rule["expr"]))[-1]
    other = {"!=": "==", "==": "!=", ">": "<"}[last.group(1)]
    turned = {**rule, "expr": f"{rule['expr'][: last.start(1)]}{other}{rule['expr'][last.end(1) :]}"}
    fire = []
    for changed in (rule, turned):
        fired = []
        for case in yaml.safe_load(CASES.read_text(encoding="utf-8"))["tests"]:
            series = [promql.series_of(given["series"], given["values"]) for given in case["input_series"]]
            fired.append([set(found) for _, found in promql.firing([changed], series, 55)])
        fire.append(fired)
    assert fire[0] != fire[1]


def test_each_was_seen_to_fire() -> None:
    checks = [check for case in yaml.safe_load(CASES.read_text())["tests"] for check in case["promql_expr_test"]]
    labels = " ".join(sample["labels"] for check in checks for sample in check["exp_samples"])
    assert set(re.findall(r'alertname="(\w+)"', labels)) == {rule["alert"] for rule in rules()}


def test_each_has_a_section_that_says_what_to_do() -> None:
    sections = re.findall(
        r"^## (\w+)\n\n(Critical|Warning|Info)\. \S", RUNBOOK.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert sections == [(rule["alert"], rule["labels"]["severity"].title()) for rule in rules()]
    for rule in rules():
        assert rule["annotations"]["runbook"] == f"docs/alerts.md#{rule['alert'].lower()}"
