"""Runs helm on the chart, as users do, and gives the objects that it makes.

`tools/helm.py` has the binary.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.harness.waiting import LONGEST_S
from tools import helm
from tools.chart_reference import CHART

CASES = sorted((CHART / "ci").glob("*-values.yaml"))
MINIMAL = CHART / "ci" / "minimal-values.yaml"

Object = dict[str, Any]
"""One object of Kubernetes."""


class Refused(Exception):
    """Helm took the values for wrong; its message says why."""


class Helm:
    """The helm binary, and what it makes of this chart."""

    def __init__(self, binary: Path) -> None:
        self._binary = binary
        self._rendered: dict[tuple[Path, str], list[Object]] = {}

    @classmethod
    def unpacked(cls, folder: Path) -> Helm:
        """The binary, put into a folder."""
        return cls(helm.unpacked(folder))

    def run(self, *args: str, values: Object | None = None) -> str:
        """Standard output of a command over the chart. Raises `Refused` with standard error."""
        command = [str(self._binary), *args]
        if values is not None:
            command += ["--values", "-"]
        done = subprocess.run(
            command,
            input=json.dumps(values or {}),
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
            env={**os.environ, "GOGC": "off"},  # a tenth of a second is too short to collect garbage
        )
        if done.returncode:
            raise Refused(done.stdout + done.stderr)
        return done.stdout

    def render(self, case: Path = MINIMAL, **values: Any) -> list[Object]:
        """All objects of a release `essp` in the namespace `training`; `values` go before those of the case."""
        asked = (case, json.dumps(values, sort_keys=True))
        if asked not in self._rendered:
            self._rendered[asked] = parsed(self.run(*_template(case), values=values))
        return copy.deepcopy(self._rendered[asked])

    def upgrade(self, server: str, case: Path = MINIMAL, **values: Any) -> list[Object]:
        """The same, of a release in the cluster whose API server is at this URL: what is there can be looked up."""
        there = ("--dry-run=server", "--is-upgrade", "--disable-openapi-validation", "--kube-apiserver", server)
        return parsed(self.run(*_template(case), *there, values=values))


def _template(case: Path) -> tuple[str, ...]:
    return ("template", "essp", str(CHART), "--namespace", "training", "--values", str(case))


def parsed(text: str) -> list[Object]:
    """The objects of a stream of documents."""
    return [made for made in yaml.load_all(text, yaml.CSafeLoader) if made]


def of_kind(objects: list[Object], *kinds: str) -> list[Object]:
    """The objects of some kinds."""
    return [made for made in objects if made["kind"] in kinds]


def named(objects: list[Object], kind: str, name: str) -> Object:
    """The one object of that kind and name."""
    found = [made for made in of_kind(objects, kind) if made["metadata"]["name"] == name]
    assert len(found) == 1, f"{kind} {name}: {[made['metadata']['name'] for made in of_kind(objects, kind)]}"
    return found[0]


def templates(objects: list[Object]) -> list[Object]:
    """What the master makes at run time, as the chart gives it to it."""
    return [
        parsed(text)[0]
        for made in of_kind(objects, "ConfigMap")
        for name, text in made.get("data", {}).items()
        if name in ("extractor-deployment.yaml", "trainer-job.yaml")
    ]


def workloads(objects: list[Object]) -> list[Object]:
    """Everything that makes pods, or is one."""
    return of_kind(objects, "Deployment", "Job", "CronJob", "Pod") + templates(objects)


def pod_of(workload: Object) -> Object:
    """A workload's pod: `metadata` and `spec`."""
    if workload["kind"] == "Pod":
        return workload
    made = workload["spec"]["jobTemplate"] if workload["kind"] == "CronJob" else workload
    found: Object = made["spec"]["template"]
    return found


def labels_of(workload: Object) -> dict[str, str]:
    """The labels of a workload's pods."""
    found: dict[str, str] = pod_of(workload)["metadata"]["labels"]
    return found


def pool_of(objects: list[Object], name: str) -> Object:
    """The workload of one pool."""
    found = [w for w in workloads(objects) if labels_of(w).get("essp.dev/pool") == name]
    assert len(found) == 1, name
    return found[0]


def container_of(workload: Object) -> Object:
    """A workload's only container."""
    (found,) = pod_of(workload)["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def environment_of(workload: Object, objects: list[Object]) -> dict[str, str]:
    """What a workload's process finds in its environment; what comes from a Secret or a field is `<name/key>`."""
    container = container_of(workload)
    found: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        found |= named(objects, "ConfigMap", source["configMapRef"]["name"])["data"]
    for variable in container.get("env", ()):
        origin = variable.get("valueFrom", {})
        if "secretKeyRef" in origin:
            found[variable["name"]] = f"<{origin['secretKeyRef']['name']}/{origin['secretKeyRef']['key']}>"
        elif "fieldRef" in origin:
            found[variable["name"]] = f"<{origin['fieldRef']['fieldPath']}>"
        else:
            found[variable["name"]] = variable["value"]
    return found
