"""The definition of VideoJobs takes every job, and is as the API server wants it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import yaml
from jsonschema import Draft4Validator

from essp.demo.job import job_text, prediction_text
from essp_common.job.spec import parse_spec
from essp_master.video_jobs.resource import mirrored_spec
from tools.video_job_crd import CRD
from tools.written import ROOT

EXAMPLES = {path.stem: path.read_text() for path in (ROOT / "docs" / "examples").glob("*.yaml")}
JOBS = EXAMPLES | {
    "demo": job_text("s3://essp/demo", 4, 960),
    "prediction": prediction_text("s3://essp/demo"),
    "sweep and encoder": """
        name: wide
        output: s3://essp/wide
        data: {catalog: s3://essp/c.parquet, validation: null}
        streams: {rgb: {}, hog: {feature: hog}}
        trainers:
          rgb: {stream: rgb, sweep: {optimizer.lr: [0.1, 0.01]}, augment: {scales: [1, 0.8]}}
          hog: {stream: hog, model: fisher_vector, encoder: {centres: 16}}
        aggregation: {strategies: [average, {name: top_k, k: [1, 3]}]}
        limits: {budget: 1073741824}
    """,
}


@cache
def schema() -> Any:
    (version,) = yaml.load(CRD.read_text(), yaml.CSafeLoader)["spec"]["versions"]
    return version["schema"]["openAPIV3Schema"]["properties"]["spec"]


def strict(found: Any) -> Any:
    """The same for a validator of JSON schemas, and without fields that the API server does not know."""
    if not isinstance(found, dict):
        return found
    made = {name: strict(inner) for name, inner in found.items() if name not in ("properties", "enum", "default")}
    made |= {"enum": found["enum"]} if "enum" in found else {}
    if "properties" in found:
        made |= {"properties": {name: strict(inner) for name, inner in found["properties"].items()}}
        made["additionalProperties"] = False
    if found.get("x-kubernetes-int-or-string"):
        made["type"] = ["integer", "string"]
    if found.get("nullable") and "type" in found:
        made["type"] = [found["type"], "null"]
        made |= {"enum": [*found["enum"], None]} if "enum" in found else {}
    return made


@pytest.mark.parametrize("job", JOBS)
def test_every_job_is_a_video_job(job: str) -> None:
    """As somebody writes it, and as the master writes it for a job of the REST API."""
    validator = Draft4Validator(strict(schema()))
    given = yaml.safe_load(JOBS[job])
    for document in (given, mirrored_spec(parse_spec(yaml.safe_dump(given)))):
        assert [f"{'.'.join(map(str, e.path))}: {e.message}" for e in validator.iter_errors(document)] == []


def test_a_wrong_job_is_none() -> None:
    validator = Draft4Validator(strict(schema()))
    given = yaml.safe_load(JOBS["demo"])
    for wrong in ({"epochs": 0}, {"epohcs": 3}, {"output": None}, {"clip": {"frames": "many"}}):
        assert not validator.is_valid(given | wrong), wrong


def test_the_schema_is_structural() -> None:
    """No references, unions or closed mappings, and a bound for everything that rules compare."""

    def inner(found: Any, where: str = "spec") -> Iterator[tuple[str, Any]]:
        yield where, found
        for name in ("items", "additionalProperties"):
            if name in found:
                yield from inner(found[name], f"{where}.{name}")
        for name, field in found.get("properties", {}).items():
            yield from inner(field, f"{where}.{name}")

    for where, found in inner(schema()):
        assert not {"$ref", "$defs", "anyOf", "allOf", "oneOf", "const", "prefixItems", "title"} & found.keys(), where
        opened = "x-kubernetes-preserve-unknown-fields" in found or "x-kubernetes-int-or-string" in found
        assert isinstance(found.get("type"), str) or opened, where
        assert found.get("type") != "array" or "maxItems" in found, where
        assert "additionalProperties" not in found or "maxProperties" in found, where
