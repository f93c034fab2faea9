"""The images as far as they can be judged without docker, and the health check that runs in them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from essp_common.runtime.metrics import MetricsServer
from tests.compose.rules import load
from tests.harness.waiting import LONGEST_S

ROOT = Path(__file__).resolve().parents[2]
HEALTHY = ROOT / "docker" / "healthy.py"


def stages() -> dict[str, list[str]]:
    """The instructions of each stage, lines joined, those of the stages below it first."""
    text = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    found: dict[str, list[str]] = {}
    name = ""
    for line in filter(None, map(str.strip, text.splitlines())):
        if match := re.fullmatch(r"FROM (\S+) AS (\S+)", line):
            below, name = match.groups()
            found[name] = [*found.get(below, [])]
        elif name:
            found[name].append(line)
    return found


TARGETS = {name: lines for name, lines in stages().items() if any(line.startswith("CMD") for line in lines)}


def test_every_target_is_described() -> None:
    head = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8").partition("ARG ")[0]
    assert TARGETS.keys() == set(re.findall(r"^#   ([\w-]+)  ", head, re.MULTILINE))


@pytest.mark.parametrize("target", TARGETS)
def test_target_runs_as_nobody_with_a_health_check_and_a_version(target: str) -> None:
    lines = TARGETS[target]
    assert [line for line in lines if line.startswith("USER")][-1] == "USER 10001:10001"
    assert any(line.startswith("HEALTHCHECK") for line in lines)
    (finish,) = [place for place, line in enumerate(lines) if "sh /finish.sh" in line]
    assert lines[finish - 1] == "ARG VERSION", "which finish.sh compares with the package"
    assert any("org.opencontainers.image.revision=$REVISION" in line for line in lines)
    assert any("org.opencontainers.image.version=$VERSION" in line for line in lines)
    assert 'ENTRYPOINT ["tini", "--", "essp"]' in lines


@pytest.mark.parametrize("target", ["master", "video", "servers"])
def test_target_is_checked_to_hold_no_torch(target: str) -> None:
    assert any(line.endswith("finish.sh without-torch") for line in TARGETS[target])


def test_every_package_has_its_version_from_the_constraints() -> None:
    installs = [line for lines in TARGETS.values() for line in lines if "pip --python" in line and " install " in line]
    assert installs
    assert all("--constraint /constraints.txt" in line for line in installs)
    pinned = {line.partition("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert {"torch", "av", "redis", "kafka-python", "boto3", "setuptools"} <= pinned


def extras(target: str) -> set[str]:
    groups = [group for line in TARGETS[target] for group in re.findall(r"\*\.whl\)\[([\w,]+)\]", line)]
    return {extra for group in groups for extra in group.split(",")}


def test_master_has_what_its_settings_need() -> None:
    """`ESSP_MLFLOW` and `ESSP_TENSORBOARD` end a master that lacks it; the chart and the compose file offer both."""
    assert {"master", "kubernetes", "tracking", "tracing", "cluster"} <= extras("master")


def test_extras_that_are_installed_exist() -> None:
    named = {extra for target in TARGETS for extra in extras(target)}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert named
    assert named <= project["optional-dependencies"].keys()


def test_what_is_copied_is_not_ignored() -> None:
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    kept = [rule[1:] for rule in rules if rule.startswith("!")]
    assert rules[0] == "*"
    lines = [line for name in ("wheels", *TARGETS) for line in stages()[name]]
    copied = {path for line in lines if line.startswith("COPY") for path in line.split()[1:-1]}
    copied |= {path for line in lines for path in re.findall(r"type=bind,source=([^,/][^,]*)", line)}
    assert {"essp", "essp_common", "essp_engine", "services", "docker/finish.sh"} <= copied
    for path in copied:
        assert (ROOT / path).exists()
        assert any(fnmatch(path, rule) for rule in kept), path


def test_compose_builds_targets_that_exist() -> None:
    built = {service["build"]["target"] for service in load()["services"].values() if "build" in service}
    assert built == {"master", "video", "demo", "torch-cpu"}
    assert built <= TARGETS.keys()


def healthy(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-S", str(HEALTHY), *arguments]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=LONGEST_S)


@pytest.mark.parametrize("ready", [True, False])
def test_health_is_what_the_service_says(ready: bool) -> None:
    server = MetricsServer(0, lambda: ready, host="127.0.0.1")
    try:
        by_variable = healthy(ESSP_METRICS_PORT=str(server.port))
        by_argument = healthy(str(server.port), ESSP_METRICS_PORT="1")
    finally:
        server.close()
    assert by_variable.returncode == by_argument.returncode == (0 if ready else 1)
    assert ("200" if ready else "503") in by_variable.stdout


def test_nobody_there_is_unhealthy(unused_port: int) -> None:
    done = healthy(str(unused_port))
    assert done.returncode == 1
    assert f"port {unused_port}" in done.stdout
