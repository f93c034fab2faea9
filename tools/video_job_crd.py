"""`python -m tools.video_job_crd --write`: make the custom resource `VideoJob` in `charts/essp/crds/`.

Its `spec` is a job (`essp_common/job/spec.py`), so that no field, bound or explanation can differ. The API server wants
a structural schema: without references, unions and `additionalProperties: false`. Where types are united it checks
nothing, and the master does, as it checks everything that a schema cannot say. Fields have no defaults here: the API
server would write them into each object, and a job means something else by a field that it gives than by one that it
leaves out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from essp_common.job.spec import JobSpec
from essp_common.quantities import parse_bytes
from essp_master.video_jobs.resource import GROUP, KIND, PLURAL, SHORT, VERSION
from tools.written import ROOT, settle

CRD = ROOT / "charts" / "essp" / "crds" / "videojobs.yaml"

_CHANGES = ("epochs", "priority", "limits", "aggregation", "streams", "trainers")
"""The fields of a job of which something may change after its start; the master says what
(`essp_common/job/changes.py`, `essp_engine/preflight/output.py`)."""
_CHANGES_OF_TRAINERS = ("optimizer", "device", "threads", "checkpoint", "stop")
_ANYTHING = {"x-kubernetes-preserve-unknown-fields": True}
_KEPT = ("type", "pattern", "enum", "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_NAME = "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
_LONGEST_TEXT = 2048
"""Of a text without a bound of its own: the API server has to know what comparing two of them costs."""
_MOST = 1024
"""Of a list or a mapping without a bound of its own."""

_PAUSED = """True: issue nothing more, until it is false again; a job that has not started yet does not start. While the
field is there, requests of the REST API that say otherwise are refused; without it, `essp job pause` and `resume`
decide."""
_JOB_NAME = """The job's name, by which `essp job` and the REST API know it. Default: the name of the VideoJob."""
_OUTPUT = "It has to be a URI of a store that the installation knows, such as s3://results/run1."

_CONDITION = """Ready: the job does what this VideoJob says. Progressing: clips are on their way. Degraded: something
keeps it from progress as intended, and the message says what. Complete: it is done."""
_STATUS = {
    "observedGeneration": ("integer", "The generation of the VideoJob that this status is about."),
    "acceptedGeneration": ("integer", "The generation of the VideoJob whose fields the job has."),
    "phase": ("string", "Pending, Queued, Running, Paused, Completed, Failed, Stopped, Refused, or Stopping."),
    "message": ("string", "Why it is in this phase; empty if there is nothing to say."),
    "startTime": ("string", "When the job was first started. From then on most of its fields cannot change."),
    "completionTime": ("string", "When it ended."),
    "epoch": ("string", "The epoch that the slowest trainer is in, of all: 3/10."),
    "rate": ("string", "Clips per second that all trainers process: 142 clips/s."),
    "clipsDone": ("integer", "Clips that all trainers have processed."),
    "clips": ("integer", "All clips of the job."),
    "bottleneck": ("string", "What limits its rate."),
    "top1": (
        "string",
        "Top-1 accuracy of the fused model; before there is one, of the best trainer on validation: 71.3 %.",
    ),
    "score": ("string", "The figure by which the job is judged, with its name: mAP 0.412 of fused on test."),
    "output": ("string", "Where its checkpoints, reports and results are."),
    "model": ("string", "Where its fused model, or its predictions, are."),
}
_TIMES = ("startTime", "completionTime")
_COLUMNS = (
    ("Phase", ".status.phase", 0),
    ("Epoch", ".status.epoch", 0),
    ("Rate", ".status.rate", 0),
    ("Top-1", ".status.top1", 0),
    ("Age", ".metadata.creationTimestamp", 0),
    ("Message", ".status.message", 1),
    ("Bottleneck", ".status.bottleneck", 1),
)


class _Schema(GenerateJsonSchema):
    """Marks sizes, which may be texts such as 256MiB."""

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        found = super().function_before_schema(schema)
        return {"bytes": True} if schema["function"]["function"] is parse_bytes else found


def structural(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON schema as the API server wants it."""
    told = _description(schema)
    if "$ref" in schema:
        found = structural(definitions[schema["$ref"].rpartition("/")[2]], definitions)
        return found | told
    if "bytes" in schema:
        return {"x-kubernetes-int-or-string": True} | told
    if (united := schema.get("anyOf")) is not None:
        of = [one for one in united if one.get("type") != "null"]
        found = structural(of[0], definitions) if len(of) == 1 else dict(_ANYTHING)
        return found | told | ({"nullable": True} if len(of) < len(united) else {})
    if not isinstance(schema.get("type"), str):
        return _ANYTHING | told
    found = {name: schema[name] for name in _KEPT if name in schema} | told
    if "const" in schema:
        found["enum"] = [schema["const"]]
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        value = schema.get(exclusive, schema.get(bound))
        if value is None or (schema["type"] == "integer" and abs(value) >= 2**63):
            continue  # the API server has bounds as floats, and 2**63 - 1 is none
        found |= {bound: value} | ({exclusive: True} if exclusive in schema else {})
    return found | _within(schema, definitions)


def _within(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """What a list or a mapping has in it, and how much of it."""
    match schema["type"]:
        case "string" if "enum" not in schema and "const" not in schema:
            return {"maxLength": schema.get("maxLength", _LONGEST_TEXT)}
        case "array":
            items: Mapping[str, Any] = schema.get("items") or next(iter(schema.get("prefixItems", ())), {})
            return {"items": structural(items, definitions), "maxItems": schema.get("maxItems", _MOST)}
        case "object" if "properties" in schema:
            fields = {name: structural(field, definitions) for name, field in schema["properties"].items()}
            return {"properties": fields} | ({"required": schema["required"]} if "required" in schema else {})
        case "object" if isinstance(values := _values(schema), dict):
            most = schema.get("maxProperties", _MOST)
            return {"additionalProperties": structural(values, definitions), "maxProperties": most}
        case "object":
            return dict(_ANYTHING)
    return {}


def _values(schema: Mapping[str, Any]) -> Any:
    """The schema of a mapping's values; names that have a pattern are checked by the master."""
    return next(iter(schema.get("patternProperties", {}).values()), schema.get("additionalProperties"))


def _description(schema: Mapping[str, Any]) -> dict[str, Any]:
    words = " ".join(str(schema.get("description", "")).split())
    default = schema.get("default")
    if default is not None and not isinstance(default, dict) and default != "":
        words = f"{words} Default: {json.dumps(default)}.".strip()
    return {"description": words} if words else {}


def _of_job() -> dict[str, Any]:
    """The schema of `spec`."""
    schema = JobSpec.model_json_schema(schema_generator=_Schema)
    found = structural(schema, schema["$defs"])
    fields = found["properties"]
    fields["name"]["description"] = _JOB_NAME
    fields["output"]["description"] += f" {_OUTPUT}"
    fields["trainers"]["maxProperties"] = fields["consumers"]["maxProperties"] = 64
    fields["paused"] = {"type": "boolean", "description": " ".join(_PAUSED.split())}
    return found | {"required": ["output"], "description": "The job, with the fields of a job file."}


def _seen(schema: Mapping[str, Any]) -> bool:
    """Whether rules see a field: not if its type, or that of what it contains, is open."""
    return "type" in schema and all(
        _seen(schema[inner]) for inner in ("items", "additionalProperties") if inner in schema
    )


def _rules(job: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """What the API server refuses by itself. Nothing is fixed before the job has started: what the master refused can
    be mended. `job`: the schema of `spec`."""
    yield {
        "rule": f"self.metadata.name.matches('{_NAME}')",
        "message": "the name of a VideoJob has at most 63 lower-case letters, digits and hyphens",
    }
    began = "has(oldSelf.status) && has(oldSelf.status.startTime)"
    for field in JobSpec.model_fields:
        if field not in _CHANGES:
            yield _rule(field, f"!({began}) || ({_same('self.spec', 'oldSelf.spec', field)})", "cannot change")
    default = JobSpec.model_fields["epochs"].default
    now, before = (f"(has({one}.spec.epochs) ? {one}.spec.epochs : {default})" for one in ("self", "oldSelf"))
    yield _rule("epochs", f"!({began}) || {now} >= {before}", "can only grow")
    same_stream = "self.spec.streams[name] == oldSelf.spec.streams[name]"
    yield _rule("streams", f"!({began}) || {_kept('streams', same_stream)}", "can be added, but not changed")
    new, old = "self.spec.trainers[name]", "oldSelf.spec.trainers[name]"
    trainer = job["properties"]["trainers"]["additionalProperties"]["properties"]
    fixed = [field for field in trainer if field not in _CHANGES_OF_TRAINERS and _seen(trainer[field])]
    same_trainer = " && ".join(f"({_same(new, old, field)})" for field in fixed)
    changes = f"can be added, and of those that are there only {', '.join(_CHANGES_OF_TRAINERS)} can change"
    yield _rule("trainers", f"!({began}) || {_kept('trainers', same_trainer)}", changes)


def _same(one: str, other: str, field: str) -> str:
    return f"has({one}.{field}) == has({other}.{field}) && (!has({one}.{field}) || {one}.{field} == {other}.{field})"


def _kept(group: str, same: str) -> str:
    """What is in a mapping as before is the same. What is gone may never have been accepted: the master knows."""
    there = f"oldSelf.spec.{group}.all(name, !(name in self.spec.{group}) || ({same}))"
    return f"(!has(oldSelf.spec.{group}) || !has(self.spec.{group}) || {there})"


def _rule(field: str, rule: str, what: str) -> dict[str, str]:
    message = f"{field}: {what} once the job has started; a job that differs needs a name and an output of its own"
    return {"rule": rule, "message": message, "fieldPath": f".spec.{field}", "reason": "FieldValueInvalid"}


def _of_status() -> dict[str, Any]:
    fields: dict[str, Any] = {
        name: {"type": kind, "description": words} | ({"format": "date-time"} if name in _TIMES else {})
        for name, (kind, words) in _STATUS.items()
    }
    texts = {name: {"type": "string"} for name in ("type", "status", "reason", "message")}
    texts["status"] = {"type": "string", "enum": ["True", "False", "Unknown"]}  # type: ignore[dict-item]
    rest = {"lastTransitionTime": {"type": "string", "format": "date-time"}, "observedGeneration": {"type": "integer"}}
    fields["conditions"] = {
        "description": " ".join(_CONDITION.split()),
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {"type": "object", "required": ["type", "status"], "properties": texts | rest},
    }
    return {"type": "object", "description": "How the job is doing.", "properties": fields}


def definition() -> dict[str, Any]:
    """The custom resource definition."""
    job = _of_job()
    schema = {
        "type": "object",
        "description": "A job of ESSP: a training, a prediction, or clips for loops of your own.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": job,
            "status": _of_status(),
        },
        "x-kubernetes-validations": list(_rules(job)),
    }
    columns = [
        {"name": name, "jsonPath": path, "type": "date" if name == "Age" else "string", "priority": priority}
        for name, path, priority in _COLUMNS
    ]
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": columns,
        "schema": {"openAPIV3Schema": schema},
    }
    names = {"kind": KIND, "listKind": f"{KIND}List", "plural": PLURAL, "singular": KIND.lower(), "shortNames": [SHORT]}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}", "labels": {"app.kubernetes.io/part-of": "essp"}},
        "spec": {
            "group": GROUP,
            "names": names | {"categories": ["all"]},
            "scope": "Namespaced",
            "versions": [version],
        },
    }


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def text() -> str:
    """The file in the chart."""
    head = "# Made by `python -m tools.video_job_crd --write`, from the fields of a job.\n"
    return head + yaml.dump(definition(), Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


if __name__ == "__main__":
    settle({CRD: text()})
