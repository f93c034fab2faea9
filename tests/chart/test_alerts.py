"""Which alerts fire when, as Prometheus itself decides, and that each has a section that says what to do."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

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
