"""What the chart says of its values, made from where it is known: `python -m tools.chart_reference --write`.

The settings in `values.schema.json` come from the settings classes of the services, so that no name, default or
explanation can differ; the tables in the chart's README come from the schema and `values.yaml`. Templates cannot read
`values.yaml`; they have `files/defaults.json`.
"""

from __future__ import annotations

import ast
import copy
import inspect
import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from essp_aggregator.config import AggregatorSettings
from essp_common.runtime.config import Settings
from essp_decoder.config import DecoderSettings
from essp_extractor.config import ExtractorSettings
from essp_master.config import MasterSettings
from essp_predictor.config import PredictorSettings
from essp_trainer.config import TrainerSettings
from tools.written import ROOT, between, cell, settle

CHART = ROOT / "charts" / "essp"
SCHEMA = CHART / "values.schema.json"
README = CHART / "README.md"
DEFAULTS = CHART / "files" / "defaults.json"

SETTINGS: dict[str, type[Settings]] = {
    "common": Settings,
    "master": MasterSettings,
    "decoder": DecoderSettings,
    "extractor": ExtractorSettings,
    "trainer": TrainerSettings,
    "aggregator": AggregatorSettings,
    "predictor": PredictorSettings,
}

SET_BY_CHART = frozenset(
    {"bus", "cache", "tenant", "stores", "partitions", "metrics_port", "worker", "features"}
    | {"api_token", "api_token_file", "api_open", "api_hosts", "trial_servers"}
    | {"bus_user", "bus_password", "drained_exit", "supervised", "rank_restarts", "ranks"}
    | {"pools", "pool_sizes", "namespace", "release", "templates", "lease", "url", "video_jobs", "video_jobs_team"}
)
"""Settings that follow from other values or come from Secrets, and what makes no sense in a cluster."""

_BEGIN, _END = "<!-- values: made by `make docs` -->", "<!-- end of values -->"


def explanations(kind: type[Settings]) -> dict[str, str]:
    """The docstring under each field, of the class and those it inherits from."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not issubclass(base, Settings):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
                found[field.target.id] = " ".join(str(ast.literal_eval(text.value)).split())
    return found


def settings_schema(kind: type[Settings]) -> dict[str, Any]:
    """What `settings` of a pool may hold."""
    described = kind.model_json_schema()
    explained = explanations(kind)
    properties = {}
    for name, field in described["properties"].items():
        if name not in SET_BY_CHART:
            own = _inlined(field, described.get("$defs", {}))
            if explained.get(name):
                own = {"description": explained[name], **own}
            properties[name] = own
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _inlined(field: Any, definitions: dict[str, Any]) -> Any:
    """A field's schema by itself: no titles, and what it refers to in its place."""
    if isinstance(field, list):
        return [_inlined(part, definitions) for part in field]
    if not isinstance(field, dict):
        return field
    if "$ref" in field:
        field = {**definitions[field["$ref"].rpartition("/")[2]], **{k: v for k, v in field.items() if k != "$ref"}}
    return {key: _inlined(value, definitions) for key, value in field.items() if key != "title"}


def with_settings(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema, with the settings as the services have them now."""
    schema = copy.deepcopy(schema)
    for name, kind in SETTINGS.items():
        schema["$defs"][f"{name}Settings"] = settings_schema(kind)
    return schema


def tables(schema: dict[str, Any], values: dict[str, Any]) -> str:
    """The README's tables: every value, and every setting."""
    lines = ["## Values", "", "| value | default | |", "|---|---|---|"]
    for path, field, default in _walk(schema, schema, values, ""):
        lines.append(f"| `{path}` | {_shown(default)} | {_told(field)} |")
    lines += ["", "## What a pool has", ""]
    lines += [
        "In `poolDefaults`, `pools.NAME` and `extraPools.NAME` alike; the defaults are those of `poolDefaults`.",
        "",
    ]
    lines += ["| value | default | |", "|---|---|---|"]
    for path, field, default in _walk(schema["$defs"]["pool"], schema, values["poolDefaults"], ""):
        lines.append(f"| `{path}` | {_shown(default)} | {_told(field)} |")
    common = schema["$defs"]["commonSettings"]["properties"]
    for name in SETTINGS:
        fields = schema["$defs"][f"{name}Settings"]["properties"]
        own = {field: told for field, told in fields.items() if name == "common" or field not in common}
        title = "every process" if name == "common" else f"a pool of the service {name}, besides those of every process"
        lines += ["", f"## Settings of {title}", "", "| setting | default | |", "|---|---|---|"]
        lines += [f"| `{field}` | {_shown(told.get('default'))} | {_told(told)} |" for field, told in own.items()]
    return "\n".join(lines)


def _walk(
    part: dict[str, Any], schema: dict[str, Any], values: Any, path: str
) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Every value below `part`, with its schema and its default; objects with fields of their own are opened."""
    for name, field in part["properties"].items():
        if field is False or field.get("deprecated"):
            continue
        where = f"{path}.{name}" if path else name
        default = values.get(name) if isinstance(values, dict) else None
        if "properties" in field and "allOf" not in field:
            yield where, field, None
            yield from _walk(field, schema, default, where)
        elif path == "pools":
            yield where, field, default
        else:
            yield where, field, None if name == "poolDefaults" else default


def _shown(default: Any) -> str:
    if default is None or default in ("", [], {}):
        return ""
    return f"`{json.dumps(default) if not isinstance(default, str) else default}`"


def _told(field: dict[str, Any]) -> str:
    text: str = field.get("description", "")
    if field.get("enum"):
        text += " One of " + ", ".join(f"`{v}`" for v in field["enum"] if v) + "."
    return cell(text)


def current() -> dict[Path, str]:
    """What the files should hold."""
    schema = with_settings(json.loads(SCHEMA.read_text(encoding="utf-8")))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    return {
        DEFAULTS: json.dumps(values, indent=2, ensure_ascii=False) + "\n",
        SCHEMA: json.dumps(schema, indent=2, ensure_ascii=False) + "\n",
        README: between(README.read_text(encoding="utf-8"), _BEGIN, f"\n\n{tables(schema, values)}\n\n", _END),
    }


if __name__ == "__main__":
    settle(current())
