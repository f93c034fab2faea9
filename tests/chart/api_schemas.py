"""What the API server would say of an object's shape: the schemas of Kubernetes, and of the operators' resources.

Those of Kubernetes are in the package kubernetes-validate, strict: an unknown field is an error. Those of operators are
in `custom_resources.json`, cut down to the fields that the chart uses, after each project's own description.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from tests.chart.rendering import Object

VERSIONS = ("1.32", "1.37")
"""The oldest that the chart supports, and the newest that there is a schema of."""

_CUSTOM = json.loads((Path(__file__).parent / "custom_resources.json").read_text(encoding="utf-8"))


def faults(made: Object, version: str) -> list[str]:
    """What is wrong with an object, for a version of Kubernetes."""
    found = _validator(made["apiVersion"], made["kind"], version).iter_errors(made)
    where = f"{made['kind']} {made['metadata']['name']}"
    return [f"{where}: {'.'.join(map(str, error.path))}: {error.message}" for error in found]


@cache
def _validator(api: str, kind: str, version: str) -> Draft202012Validator:
    custom = _CUSTOM.get(f"{api}/{kind}")
    if custom is not None:
        return Draft202012Validator({**custom, "$defs": _CUSTOM["$defs"]})
    group, _, number = api.rpartition("/")
    name = "-".join(part for part in (kind.lower(), group.partition(".")[0], number) if part)
    schema = json.loads((_folder(version) / f"{name}.json").read_text(encoding="utf-8"))
    return Draft202012Validator(schema, registry=_definitions(version))


@cache
def _definitions(version: str) -> Registry[Any]:
    text = (_folder(version) / "_definitions.json").read_text(encoding="utf-8")
    definitions = Resource.from_contents(json.loads(text), DRAFT202012)
    # Crawled once here, or else for each reference that is followed.
    registry: Registry[Any] = Registry().with_resource("_definitions.json", definitions).crawl()
    return registry


def _folder(version: str) -> Path:
    return Path(str(files("kubernetes_validate"))) / "kubernetes-json-schema" / f"v{version}.0-local-strict"
