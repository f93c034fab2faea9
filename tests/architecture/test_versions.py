"""The version and the supported Pythons stand in pyproject.toml; every other file that names them agrees with it."""

from __future__ import annotations

import json
import re
import tomllib

import pytest
import yaml

from tests.architecture.test_documents import DOCUMENTS, ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
VERSION = PROJECT["version"]
_OF_AN_IMAGE = re.compile(r"essp-(?:master|video|trainer|demo):(\d+\.\d+\.\d+)")
HISTORY = {ROOT / "CHANGELOG.md", ROOT / "benchmarks" / "README.md"}
"""Name the versions of their time."""


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_files_of_one_version_have_that_of_the_project() -> None:
    chart, citation = yaml.safe_load(read("charts/essp/Chart.yaml")), yaml.safe_load(read("CITATION.cff"))
    said = {
        "version of the chart": chart["version"],
        "appVersion of the chart": chart["appVersion"],
        "CITATION.cff": citation["version"],
        "docs/openapi.json (make docs)": json.loads(read("docs/openapi.json"))["info"]["version"],
        "docker/Dockerfile": re.findall(r"VERSION=(\d[\w.]*)", read("docker/Dockerfile"))[0],
        "docker-compose.yml": re.findall(r"VERSION: (\d[\w.]*),", read("docker-compose.yml"))[0],
    }
    assert {name: version for name, version in said.items() if version != VERSION} == {}


def test_images_are_named_with_this_version() -> None:
    examples = [path for folder in ("charts", "docker") for path in (ROOT / folder).rglob("*") if path.is_file()]
    files = {*DOCUMENTS, *examples, ROOT / "docker-compose.yml"} - HISTORY
    named = {str(path.relative_to(ROOT)): _OF_AN_IMAGE.findall(path.read_text(encoding="utf-8")) for path in files}
    assert sum(map(len, named.values())) > 10
    assert {name: tags for name, tags in named.items() if set(tags) - {VERSION}} == {}


def test_the_changelog_has_this_version_or_leads_to_it() -> None:
    headings = re.findall(r"^## (.*)$", read("CHANGELOG.md"), flags=re.MULTILINE)
    assert headings[0] == "Unreleased"
    released = headings[1:]
    assert [heading for heading in released if not re.fullmatch(r"\d+\.\d+\.\d+ - \d{4}-\d\d-\d\d", heading)] == []
    dates = {heading.partition(" - ")[0]: heading.partition(" - ")[2] for heading in released}
    assert VERSION not in dates or str(yaml.safe_load(read("CITATION.cff"))["date-released"]) == dates[VERSION]


@pytest.mark.parametrize(("subject", "is_refused"), [("a" * 72, False), ("a" * 73, True)])
def test_the_hook_refuses_long_subjects(subject: str, is_refused: bool) -> None:
    hooks = yaml.safe_load(read(".pre-commit-config.yaml"))["repos"][0]["hooks"]
    (pattern,) = [hook["entry"] for hook in hooks if hook.get("stages") == ["commit-msg"]]
    message = f"{subject}\n\n{'b' * 100}\n"
    assert (re.search(pattern, message, re.MULTILINE | re.DOTALL) is not None) == is_refused


def test_pythons_are_the_same_everywhere() -> None:
    """Those of the classifiers are tested, and the oldest is the one that pip demands."""
    pythons = [word for each in PROJECT["classifiers"] if (word := each.rpartition(" :: ")[2]).startswith("3.")]
    tested = yaml.safe_load(read(".github/workflows/ci.yaml"))["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert pythons == tested
    assert PROJECT["requires-python"] == f">={pythons[0]}"
    told = re.findall(r"^\| Python \| (.*?);", read("docs/support.md"), flags=re.MULTILINE)
    assert re.findall(r"3\.\d+", told[0]) == pythons


def test_workflows_call_verbs_that_exist_and_name_actions_exactly() -> None:
    """An action named by a branch, or by a major version alone, may change under a release."""
    verbs = set(re.findall(r"^([a-z-]+):", read("Makefile"), flags=re.MULTILINE))
    for path in (ROOT / ".github" / "workflows").glob("*.y*ml"):
        workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert workflow["permissions"] == {"contents": "read"}, path.name
        for job in workflow["jobs"].values():
            steps = job.get("steps", ())
            matrix = job.get("strategy", {}).get("matrix", {})
            lines = [step["run"] for step in steps if "run" in step]
            called = {word for line in lines for word in re.findall(r"\bmake ([a-z-]+)", line)}
            called |= set(matrix.get("verb", ())) if any("make ${{ matrix.verb }}" in line for line in lines) else set()
            assert called <= verbs, path.name
            used = [step["uses"] for step in steps if "uses" in step]
            assert [name for name in used if not re.search(r"@v\d+\.\d+\.\d+$|@[0-9a-f]{40}$", name)] == []
