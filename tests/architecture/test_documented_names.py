"""What the documents name of ESSP's interfaces is there: metrics, REST calls, Python, job fields and chart values.

Commands, options, settings and files are looked up in `test_documents.py`.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

import essp
from essp_common import distribution
from essp_common.job.spec import JobSpec
from tests.architecture.test_documents import DOCUMENTS, ROOT, code_of, offences, text_of, without_generated
from tools.chart_reference import SCHEMA
from tools.openapi import DESCRIPTION
from tools.python_reference import PAGE

HISTORY = ROOT / "CHANGELOG.md"
"""Names things that are gone."""
_MADE_BY_PROMETHEUS = re.compile(r"_(total|count|bucket|sum)$")


@cache
def metrics() -> set[str]:
    """The names that code gives to metrics; and those of files and folders, which look alike."""
    files = [path for folder in ("essp*", "services", "charts") for path in ROOT.glob(f"{folder}/**/*")]
    code = [path.read_text(encoding="utf-8") for path in files if path.suffix == ".py"]
    names = {part for path in files for part in path.relative_to(ROOT).with_suffix("").parts}
    archive = distribution.NAME.replace("-", "_")  # as in essp_video-1.2.3.tar.gz
    return set(re.findall(r'"(essp_[a-z0-9_]+)"', "".join(code))) | names | {archive}


def unknown_metrics(text: str) -> Iterator[str]:
    for name in re.findall(r"\bessp_[a-z0-9_]+\b", text):
        if not {name, _MADE_BY_PROMETHEUS.sub("", name)} & metrics():
            yield name


@cache
def calls() -> dict[str, set[str]]:
    """Of each method, the patterns of its paths."""
    found: dict[str, set[str]] = {}
    for path, methods in json.loads(DESCRIPTION.read_text(encoding="utf-8"))["paths"].items():
        for method in methods:
            found.setdefault(method.upper(), set()).add(re.sub(r"\{[^}]+\}", "[^/]+", path))
    return found


def unknown_calls(text: str) -> Iterator[str]:
    for method, path in re.findall(r"\b(GET|PUT|POST|DELETE|PATCH) (/v1/[\w/.{}:-]*[\w}])(?![\w\[])", text):
        if not any(re.fullmatch(pattern, path) for pattern in calls()[method]):
            yield f"{method} {path}"


def unknown_python(text: str) -> Iterator[str]:
    """Names of the package `essp`, and keywords of its functions and classes."""
    for block in re.findall(r"^ *```python\n(.*?)^ *```", text, flags=re.DOTALL | re.MULTILINE):
        for node in ast.walk(ast.parse(textwrap.dedent(block))):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "essp" and not hasattr(essp, node.attr):
                yield f"essp.{node.attr}"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                found = getattr(essp, node.func.attr, None) if ast.unparse(node.func.value) == "essp" else None
                known = inspect.signature(found).parameters.values() if found else ()
                named = {each.name for each in known}
                if named and all(each.kind is not each.VAR_KEYWORD for each in known):
                    yield from (f"{node.func.attr}({word.arg}=)" for word in node.keywords if word.arg not in named)


Known = Mapping[str, Any]
"""Name of a field -> what is known of those below it; `ANY` stands for names that people choose, None for a value."""
ANY = "*"


@cache
def values() -> dict[str, Any]:
    """The chart's schema."""
    schema: dict[str, Any] = json.loads(SCHEMA.read_text(encoding="utf-8"))
    return schema


def known_values(part: dict[str, Any]) -> Known | None:
    """The fields that a part of the chart's schema allows. None: any, or it is no object."""
    if "$ref" in part:
        part = {**values()["$defs"].get(part["$ref"].rpartition("/")[2], {}), **part}
    parts = [known for each in part.get("allOf", ()) if (known := known_values(each)) is not None]
    found = {name: below for known in parts for name, below in known.items()}
    for name, field in part.get("properties", {}).items():
        if field:
            found[name] = _settings() if name == "settings" else known_values(field)
    if isinstance(others := part.get("additionalProperties"), dict):
        found[ANY] = known_values(others)
    return found if found and (parts or others is not None) else None


def _settings() -> Known:
    """Of any service."""
    kinds = [kind for name, kind in values()["$defs"].items() if name.endswith("Settings")]
    return {name: None for kind in kinds for name in kind["properties"]}


def known_fields(model: type[BaseModel]) -> Known:
    """The fields of a job, or of a part of one."""
    return {name: _known_of(field.annotation) for name, field in model.model_fields.items()}


def _known_of(annotation: Any) -> Known | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return known_fields(annotation)
    parts = getattr(annotation, "__args__", ())
    inner = [found for part in parts if (found := _known_of(part)) is not None]
    if not inner:
        return None
    merged = {name: below for found in inner for name, below in found.items()}
    return {ANY: merged} if getattr(annotation, "__origin__", None) is dict else merged


@cache
def documented() -> list[Known]:
    """What a piece of YAML may be: a job, the chart's values, or a pool of them."""
    fields, pool = known_values(values()), known_values(values()["$defs"]["pool"])
    assert fields is not None
    assert pool is not None
    return [known_fields(JobSpec), fields, pool]


def unknown_fields(text: str) -> Iterator[str]:
    """Of pieces of YAML whose first names are those of a job, of the chart's values or of a pool."""
    for code in code_of(text):
        read = _read(code)
        missing = [list(_missing(read, known)) for known in documented() if read and set(read) <= set(known)]
        if missing and all(missing):
            yield f"{missing[0]} in {code}"


def _read(code: str) -> dict[str, Any]:
    """A piece of YAML as the fields that it has, `a.b: c` like `a: {b: c}`; `..` stands for what readers fill in."""
    if not re.search(r":(\s|$)", code):
        return {}
    try:
        found = yaml.safe_load(textwrap.dedent(code).replace("..", "_"))
    except yaml.YAMLError:
        return {}
    nested: dict[str, Any] = {}
    for path, value in found.items() if isinstance(found, dict) else ():
        first, *others = str(path).split(".")
        for name in reversed(others):
            value = {name: value}
        nested[first] = value
    return nested


def _missing(read: Mapping[str, Any], known: Known) -> Iterator[str]:
    for name, value in read.items():
        if name not in known and ANY not in known:
            yield name
        below = known.get(name, known.get(ANY))
        if isinstance(value, dict) and below is not None:
            yield from (f"{name}.{field}" for field in _missing(value, below))


FINDERS = (unknown_metrics, unknown_calls, unknown_python, unknown_fields)


def unknown_names(path: Path) -> list[str]:
    text = without_generated(text_of(path))
    finders = [find for find in FINDERS if (find, path) != (unknown_python, PAGE)]  # it has signatures, not code
    return [name for find in finders for name in find(text)]


def test_what_documents_name_is_there() -> None:
    assert offences(unknown_names, [path for path in DOCUMENTS if path != HISTORY]) == {}


@pytest.mark.parametrize(
    ("find", "text"),
    [
        (unknown_metrics, "`essp_never_counted_total`"),
        (unknown_calls, "`DELETE /v1/pools`"),
        (unknown_calls, "`GET /v1/jobs/NAME/nothing`."),
        (unknown_python, "```python\nessp.Lorder()\n```"),
        (unknown_python, "```python\nessp.Clip(framez=3)\n```"),
        (unknown_fields, "```yaml\nclip: {framez: 3}\n```"),
        (unknown_fields, "`trainers: {rgb: {batch: 3}}`"),
        (unknown_fields, "`limits.budgets: 1`"),
        (unknown_fields, "`monitoring: {rulez: {enabled: true}}`"),
        (unknown_fields, "`pools.decoder: {settings: {burzt: 1}}`"),
        (unknown_fields, "`topologySpreadConstraints: []` and `gpu: {number: 1}`"),
    ],
)
def test_what_is_not_there_is_found(find: Callable[[str], Iterator[str]], text: str) -> None:
    assert len(list(find(text))) == 1
