"""The structure that the documents promise holds: torch-free processes, sizes, words, generated code."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from setuptools import find_packages

from essp_common import topics
from essp_common.distribution import EXTRAS
from essp_common.job.spec import JobSpec
from tools import chart_reference, cli_reference, job_reference, messages, rest_reference
from tools.written import drifted

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(
    p
    for folder in ("essp", "essp_common", "essp_engine", "services")
    for p in (ROOT / folder).rglob("*.py")
    if "pb" not in p.parts
)
FORBIDDEN_NAMES = {"utils.py", "helpers.py", "common.py", "manager.py", "misc.py"}


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def trees(paths: Iterable[Path], *words: str) -> Iterator[tuple[Path, ast.Module]]:
    """The syntax of the modules that have one of these words. To parse all of them would take a second."""
    for path in paths:
        if any(word in text_of(path) for word in words):
            yield path, ast.parse(text_of(path))


_LOADED = """
import importlib, sys
modules, heavy = {modules!r}, {heavy!r}
for module in modules:
    importlib.import_module(module)
    if brought := sorted(heavy & sys.modules.keys()):
        print(module, *brought)
        break
"""


def brought(modules: list[str], heavy: set[str]) -> str:
    """The first of these modules with which a process loads something heavy, and what; empty if none does."""
    code = _LOADED.format(modules=modules, heavy=heavy)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.processes
def test_processes_run_without_torch() -> None:
    """Import strings are invisible to the import linter, so look at what a process has really loaded."""
    services = [f"essp_{service}.main" for service in ("decoder", "extractor", "master", "aggregator")]
    assert brought(services, {"torch", "torchvision"}) == ""


@pytest.mark.processes
def test_strategies_of_aggregation_are_looked_at_without_what_fits_them() -> None:
    """The master checks the parameters of all, and its image has none of these."""
    heavy = {"torch", "scipy", "sklearn", "threadpoolctl"}
    code = (
        "import sys; from essp_engine.aggregation import registry; made = [registry.create(n, {}) for n in "
        f"registry.names()]; print(len(made) > 10, sorted({heavy} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split(maxsplit=1) == ["True", "[]\n"]


@pytest.mark.processes
def test_command_line_starts_light() -> None:
    """`essp --help` and `essp validate` load neither torch nor any client library, and nothing that draws or
    decodes."""
    heavy = {"torch", "kafka", "redis", "boto3", "cv2", "matplotlib", "av"}
    assert brought(["essp.cli.main", "essp.cli.validate"], heavy) == ""


@pytest.mark.processes
def test_a_decoders_child_starts_light() -> None:
    """It is started for each of a decoder's processes, again when it crashes, and for each job in one process."""
    heavy = {"asyncio", "boto3", "http.client", "prometheus_client", "pydantic", "ssl"}
    assert brought(["essp_engine.decoding.child"], heavy) == ""


def test_shares_are_written_in_one_way() -> None:
    """`12.3 %`, by `essp_common.quantities.percent`: Python's own `%` in a format leaves the space out."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, tree in trees([*SOURCES, *(ROOT / "benchmarks").glob("*.py")], "%}")
        for node in ast.walk(tree)
        if isinstance(node, ast.FormattedValue)
        and isinstance(node.format_spec, ast.JoinedStr)
        and ast.unparse(node.format_spec).rstrip("'\"").endswith("%")
    ]
    assert found == []


def test_generated_messages_are_current() -> None:
    assert drifted(messages.current()) == []


@pytest.mark.parametrize("reference", [cli_reference, job_reference, rest_reference], ids=lambda of: of.PAGE.name)
def test_reference_is_current(reference: Any) -> None:
    """`make docs` writes what has changed. That of Python is tested with its docstrings (tests/flow/test_help.py)."""
    assert reference.PAGE.read_text(encoding="utf-8") == reference.page()


def test_references_of_the_chart_are_current() -> None:
    assert drifted(chart_reference.current()) == []


def test_modules_say_what_they_are() -> None:
    said = re.compile(r'(\s|#.*\n)*r?"""\s*\S')
    assert [path for path in SOURCES if text_of(path).strip() and not said.match(text_of(path))] == []


def test_a_list_of_files_in_a_package_has_all_of_them() -> None:
    lists = [path for path in SOURCES if path.name == "__init__.py" and re.search(r"^\w+\.py  ", text_of(path), re.M)]
    assert len(lists) > 5
    for path in lists:
        named = {path.name, *re.findall(r"\b\w+\.py\b", text_of(path))}
        assert {module.name for module in path.parent.glob("*.py")} <= named, path


def test_modules_are_nouns_of_the_domain() -> None:
    assert [path for path in SOURCES if path.name in FORBIDDEN_NAMES] == []


@pytest.mark.parametrize("service", ["master", "decoder", "extractor", "trainer", "aggregator", "predictor"])
def test_service_has_the_common_shape(service: str) -> None:
    folder = ROOT / "services" / f"essp_{service}"
    assert {"main.py", "config.py", "service.py", "README.md"} <= {p.name for p in folder.iterdir()}
    assert (folder / "main.py").read_text().count("\n") <= 60


def test_documented_topics_are_the_topics() -> None:
    documented = topics.__doc__ or ""
    for topic in topics.FIXED:
        assert f"    {topic} " in documented


def test_example_jobs_are_valid() -> None:
    examples = sorted((ROOT / "docs" / "examples").glob("*.yaml"))
    assert examples
    for example in examples:
        JobSpec.model_validate(yaml.safe_load(example.read_text(encoding="utf-8")))


def test_every_installed_import_name_begins_with_essp() -> None:
    """So that folders of the user's own, such as `services` or `tests`, are never hidden or taken for ESSP's."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    finder = project["tool"]["setuptools"]["packages"]["find"]
    found = {name for where in finder["where"] for name in find_packages(str(ROOT / where), include=finder["include"])}
    rooms = {path.parent.name for path in ROOT.glob("services/*/__init__.py")} | {"essp", "essp_common", "essp_engine"}
    assert {name.partition(".")[0] for name in found} == rooms
    assert all(name.startswith("essp") for name in rooms)


BROUGHT = {"anyio": "fastapi", "h11": "uvicorn", "pydantic_core": "pydantic", "urllib3": "kubernetes"}
"""Libraries that come with a dependency and have no line of their own -> that dependency."""
CORE = {"google": "protobuf", "yaml": "pyyaml"}
"""Import names of required libraries that are called otherwise on the index."""


def test_each_library_that_is_imported_is_declared() -> None:
    """The environment of developers has them all. A stranger has those that `pyproject.toml` names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = {re.split(r"[>=\[]", line)[0].replace("-", "_") for line in project["dependencies"]}
    line = re.compile(r"^\s*(?:from (\w+)[\w.]* import |import (\w+)[\w.]*(?: as \w+)?$)", re.MULTILINE)
    imported = {a or b for path in SOURCES for a, b in line.findall(path.read_text(encoding="utf-8"))}
    others = {name for name in imported if not name.startswith("essp")} - sys.stdlib_module_names - {"_typeshed"}
    declared = {*required, *EXTRAS, *BROUGHT}
    assert {name for name in others if CORE.get(name, name) not in declared} == set()


def test_the_oldest_protobuf_that_may_be_installed_loads_the_generated_code() -> None:
    """It refuses code of a generator that is newer than itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (oldest,) = [re.findall(r"[0-9.]+", line)[0] for line in project["project"]["dependencies"] if "protobuf" in line]
    generated = (ROOT / "essp_common/pb/v1/messages_pb2.py").read_text(encoding="utf-8")
    assert re.search(rf"# Protobuf Python Version: {oldest}(\.0)?\n", generated)


def test_one_module_reads_and_writes_parquet() -> None:
    """The one that keeps pyarrow's threads away from what Python holds."""
    users = {path.relative_to(ROOT).as_posix() for path in SOURCES if "pyarrow.parquet" in path.read_text("utf-8")}
    assert users == {"essp_common/objects/tables.py"}


OWN_THREADS = {
    "essp/api/streaming.py": "the error of a unit is raised by who waits for it",
    "essp/bench/pipeline.py": "raised by who takes the next batch",
    "essp/bench/trace.py": "a measurement",
    "essp/cli/doctor.py": "a finding is the answer to each error",
    "essp/embedded/composition.py": "raised by who waits for the job",
    "essp/records/feeder.py": "raised by who takes the next records",
    "essp/records/pieces.py": "raised by who takes the next piece",
    "essp/servers/guard.py": "ends with its parent, whatever happens",
    "essp_common/bus/kafka_subscription.py": "raised by the next poll",
    "essp_common/runtime/child_process.py": "ends the process",
    "essp_common/runtime/metrics.py": "each request has a guard of the standard library's",
    "essp_common/runtime/process.py": "the first error ends all services, and is raised",
    "essp_common/runtime/unbroken.py": "raised by who waits",
    "essp_engine/worker/loop.py": "raised by the worker",
    "essp_engine/loading/device_feed.py": "raised by who takes the next batch",
    "essp_engine/loading/prefetch.py": "raised by who takes the next batch",
    "services/essp_trainer/releases.py": "raised by the next release",
}
"""Who starts threads past `essp_common/runtime/threads.py`, and why their errors do not pass unseen."""


def test_no_thread_can_end_unseen() -> None:
    """A new one is `lasting` or `guarded`, or somebody raises its error, and says so here."""
    started = re.compile(r"\b(?:threading\.)?Thread\(target=")
    found = {str(path.relative_to(ROOT)) for path in SOURCES if started.search(path.read_text())}
    assert found - {"essp_common/runtime/threads.py"} == OWN_THREADS.keys()


def test_tests_wait_as_long_as_a_slow_machine_takes() -> None:
    """For what has to come, `LONGEST_S`, or `until`: a figure of their own fails on a machine that is slower still."""
    figure = r"(?:[3-9]|[1-9]\d)(?:\.\d+)?\)"
    waits = re.compile(rf"\.(?:wait|result|join)\({figure}|\b(?:acquire|Barrier|NotebookClient)\(.*\btimeout={figure}")
    paths = [path for path in sorted((ROOT / "tests").rglob("*.py")) if path.relative_to(ROOT).parts[1] != "install"]
    assert [str(path.relative_to(ROOT)) for path in paths if waits.search(text_of(path))] == []
