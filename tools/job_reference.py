"""`python -m tools.job_reference --write`: make `docs/job.md` from the specification's own docstrings."""

from __future__ import annotations

import inspect
import json
import typing

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from essp_common.job.spec import JobSpec
from tools.written import ROOT, cell, settle

PAGE = ROOT / "docs" / "job.md"
HEAD = """# The fields of a job

Made from `essp_common/job/spec.py` and its sections by `make docs`; `essp init` writes a file to start from, and
`essp validate` checks one, and names all that is wrong with it. Unknown fields are refused. Sizes are numbers of bytes
or texts such as `256MiB`.
"""


def page() -> str:
    """The whole page."""
    return HEAD + "".join(_section(model, path) for path, model in _models(JobSpec, ""))


def _models(model: type[BaseModel], path: str) -> list[tuple[str, type[BaseModel]]]:
    found: list[tuple[str, type[BaseModel]]] = [(path, model)]
    for name, field in model.model_fields.items():
        for inner in _inner_models(field.annotation):
            keyed = typing.get_origin(field.annotation) is dict
            found += _models(inner, f"{path}.{name}".lstrip(".") + (".NAME" if keyed else ""))
    return found


def _inner_models(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in typing.get_args(annotation) for model in _inner_models(part)]


def _section(model: type[BaseModel], path: str) -> str:
    rows = [
        f"| `{name}` | {_default(field)} | {cell(' '.join((field.description or '').split()))} |"
        for name, field in model.model_fields.items()
        if not field.exclude  # what is written otherwise, as the model's docstring says
    ]
    title = f"`{path}`" if path else "Top level"
    about = inspect.cleandoc(model.__doc__ or "")
    return f"\n## {title}\n\n{about}\n\n| field | default | meaning |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if isinstance(value, BaseModel) or (isinstance(value, dict) and value):
        return "see below"
    return f"`{json.dumps(to_jsonable_python(value))}`"


if __name__ == "__main__":
    settle({PAGE: page()})
