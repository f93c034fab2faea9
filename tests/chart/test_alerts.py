"""Which alerts fire when, by Prometheus' own `promtool`, and that each has a section that says what to do."""

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

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)"
)


def rules() -> list[dict[str, Any]]:
    found = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text(encoding="utf-8"))
    return [rule for group in found["groups"] for rule in group["rules"]]


def verdict(folder: Path, changed: dict[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    """What promtool says of the cases, where one of the rules is another."""
    found = [changed if changed and rule["alert"] == changed["alert"] else rule for rule in rules()]
    (folder / "alerts.yaml").write_text(yaml.safe_dump({"groups": [{"name": "essp", "rules": found}]}), "utf-8")
    cases = yaml.safe_load(CASES.read_text(encoding="utf-8")) | {"rule_files": ["alerts.yaml"]}
    (folder / CASES.name).write_text(yaml.safe_dump(cases), encoding="utf-8")
    command = ["promtool", "test", "rules", CASES.name]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LONGEST_S)


@needs_promtool
def test_they_fire_when_they_should_and_not_before(tmp_path: Path) -> None:
    done = verdict(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.lane("promises")
@needs_promtool
def test_an_alert_that_asks_for_something_else_is_noticed(tmp_path: Path) -> None:
    """The cases can fail: with the last comparison of any alert turned round, they do."""
    unnoticed = []
    for rule in rules():
        last = list(re.finditer(" (!=|==|>) ", rule["expr"]))[-1]
        other = {"!=": "==", "==": "!=", ">": "<"}[last.group(1)]
        turned = {**rule, "expr": f"{rule['expr'][: last.start(1)]}{other}{rule['expr'][last.end(1) :]}"}
        if "FAILED" not in verdict(tmp_path, turned).stderr:
            unnoticed.append(rule["alert"])
    assert unnoticed == []


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
