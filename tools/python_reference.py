"""`python -m tools.python_reference --write`: make `docs/python.md` from the docstrings of what `import essp` offers.

Signatures come from the objects, and prose from their docstrings. Public names without a docstring, or without an
example in it, are an error, and so are fields that are described below them, where `help` does not look.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import essp
from tools.written import COLUMNS, ROOT, settle

PAGE = ROOT / "docs" / "python.md"
HEAD = """# Python reference

Made from the docstrings by `make docs`: what `help(essp)` shows, as a page.
"""
SECTIONS: dict[str, tuple[str, ...]] = {
    "Training loops": (
        "Loader",
        "Clip",
        "Sampling",
        "Targets",
        "Budget",
        "Limits",
        "Mix",
        "to_hf_iterable",
        "Records",
        "RecordSampling",
        "SharedRecords",
        "Batch",
        "BatchTargets",
    ),
    "Frames and features": ("decode", "stream", "Stream", "Window", "compute_feature", "features"),
    "Catalogs": ("open_catalog", "Catalog", "VideoRow"),
    "Vectors of many videos": ("load_features", "Features"),
    "Models": ("predict", "VideoPrediction", "Segment", "load_model", "Model", "StreamModel", "Network"),
    "Errors": ("EsspError", "ConfigError", "PermanentError", "BadVideo", "NotFound"),
}
MADE_BY_FUNCTIONS = ("Stream",)
"""Classes whose constructor is not for users."""


def page() -> str:
    """The whole page. Raises `ValueError` for what is public and not described."""
    listed = [name for names in SECTIONS.values() for name in names]
    if sorted(listed) != sorted(essp.__all__):
        raise ValueError(f"SECTIONS and essp.__all__ differ in {sorted(set(listed) ^ set(essp.__all__))}")
    parts = [HEAD, _prose(_doc(essp), ())]
    for title, names in SECTIONS.items():
        parts.append(f"## {title}\n")
        parts += [_entry(name, getattr(essp, name)) for name in names]
    return "\n".join(parts).rstrip() + "\n"


def undescribed(name: str) -> str | None:
    """What is missing in the description of a public name; None: nothing."""
    text = "\n".join(_doc(found) for found in _described(getattr(essp, name)))
    if not text.strip():
        return "has no docstring"
    if inspect.isclass(found := getattr(essp, name)) and (fields := list(_said_below_fields(found))):
        return f"describes {', '.join(fields)} below the field; do that in the docstring of the class"
    return None if re.search(r"^    \S", text, flags=re.MULTILINE) else "has no example in its docstring"


def _described(found: Any) -> list[Any]:
    own = inspect.isclass(found) and "__init__" in vars(found) and not is_dataclass(found)
    return [found, found.__init__] if own else [found]


def _entry(name: str, found: Any) -> str:
    if missing := undescribed(name):
        raise ValueError(f"essp.{name} {missing}")
    text = [f"### `essp.{name}`\n"]
    if not inspect.isclass(found):
        return "\n".join([*text, _signature(f"essp.{name}", found), _prose_of(found)])
    if not (issubclass(found, Exception) or name in MADE_BY_FUNCTIONS):
        text.append(_signature(f"essp.{name}", found))
    text += [_prose_of(described) for described in _described(found)]
    for member, value, is_property in _members(found):
        text.append(f"#### `{name}.{member}`\n")
        if is_property:
            text.append(f"```python\n{member}: {inspect.signature(value).return_annotation}\n```\n")
        else:
            text.append(_signature(member, value))
        text.append(_prose_of(value))
    return "\n".join(text)


def _members(found: type) -> Iterator[tuple[str, Any, bool]]:
    """Public methods and properties (True) of a class, as it writes them; then those that it inherits."""
    homes = [home for home in found.__mro__ if home is found or home.__module__.partition(".")[0] == essp.__name__]
    written = {name: value for home in reversed(homes) for name, value in vars(home).items()}
    own = list(vars(found))
    for name, value in sorted(written.items(), key=lambda member: member[0] not in own):
        if isinstance(value, classmethod | staticmethod):
            value = value.__func__
        is_property = isinstance(value, property | cached_property)
        if isinstance(value, property):
            value = value.fget
        elif isinstance(value, cached_property):
            value = value.func
        if not name.startswith("_") and inspect.isfunction(value) and value.__doc__:
            yield name, value, is_property


def _signature(name: str, found: Callable[..., Any]) -> str:
    """As a block of code, an argument a line where it is long; `self` and `cls` are left out."""
    signature = inspect.signature(found)
    parameters = [value for key, value in signature.parameters.items() if key not in ("self", "cls")]
    written = [_parameter(value) for value in parameters]
    for kind, mark, after in ((inspect.Parameter.KEYWORD_ONLY, "*", 0), (inspect.Parameter.POSITIONAL_ONLY, "/", 1)):
        places = [place for place, value in enumerate(parameters) if value.kind is kind]
        if places:
            written.insert((places[-1] if after else places[0]) + after, mark)
    returned = "" if inspect.isclass(found) else f" -> {signature.return_annotation}"
    text = f"{name}({', '.join(written)}){returned}"
    if len(text) > COLUMNS:
        lines = "".join(f"    {each},\n" for each in written)
        text = f"{name}(\n{lines}){returned}"
    return f"```python\n{text}\n```\n"


def _parameter(value: inspect.Parameter) -> str:
    stars = "*" if value.kind is value.VAR_POSITIONAL else "**" if value.kind is value.VAR_KEYWORD else ""
    default = "" if value.default is value.empty else f" = {value.default!r}"
    kind = getattr(value.annotation, "__forward_arg__", value.annotation)  # a named tuple has references
    return f"{stars}{value.name}: {str(kind).strip(chr(39))}{default}"


def _prose_of(found: Any) -> str:
    parameters: tuple[str, ...] = ()
    if callable(found) and not (inspect.isclass(found) and issubclass(found, Exception)):
        parameters = tuple(inspect.signature(found).parameters)
    return _prose(_doc(found), parameters)


def _doc(found: Any) -> str:
    """Its docstring as it is written, without the margin: what follows the first line may be an example alone, whose
    lines are all deeper."""
    if inspect.ismodule(found):
        return inspect.cleandoc(found.__doc__ or "")
    text = ast.get_docstring(_source(found), clean=False) or ""
    return "\n".join(line.removeprefix(" " * 4) for line in text.splitlines()).strip()


def _source(found: Any) -> ast.ClassDef | ast.FunctionDef:
    [tree] = ast.parse(textwrap.dedent(inspect.getsource(found))).body
    if not isinstance(tree, ast.ClassDef | ast.FunctionDef):
        raise TypeError(f"{found} is neither a class nor a function")
    return tree


def _prose(text: str, parameters: tuple[str, ...]) -> str:
    """A docstring as Markdown: examples as code, what it says of each parameter as a list."""
    blocks: list[str] = []
    for block in re.split(r"\n\s*\n", text):
        if block.startswith("    "):
            code = textwrap.dedent(block)
            if blocks and blocks[-1].endswith("\n```") and not blocks[-1].startswith("- "):
                blocks[-1] = blocks[-1][: -len("\n```")] + f"\n\n{code}\n```"
            else:
                blocks.append(f"```python\n{code}\n```")
        elif _argument(block, parameters):
            blocks.append(_listed(block, parameters))
        else:
            blocks.append(block)
    return "\n\n".join(blocks) + "\n" if blocks else ""


def _argument(line: str, parameters: tuple[str, ...]) -> re.Match[str] | None:
    """Whether a line begins to describe parameters: `frames, stride: ...`."""
    found = re.match(r"(\w+(?:, \w+)*): ", line)
    return found if found and all(name in parameters for name in found[1].split(", ")) else None


def _listed(block: str, parameters: tuple[str, ...]) -> str:
    items: list[str] = []
    for line in block.splitlines():
        if found := _argument(line, parameters):
            names = ", ".join(f"`{name}`" for name in found[1].split(", "))
            items.append(f"- {names}: {line[found.end() :]}")
        else:
            items[-1] += f" {line.strip()}"
    return "\n".join(textwrap.fill(item, COLUMNS, subsequent_indent="  ", break_on_hyphens=False) for item in items)


def _said_below_fields(found: Any) -> Iterator[str]:
    """Names of the fields of a class that have a string below them, which `help` does not show."""
    body = _source(found).body if is_dataclass(found) or issubclass(found, tuple) else []
    for statement, following in pairwise(body):
        if isinstance(statement, ast.AnnAssign) and isinstance(following, ast.Expr):
            yield ast.unparse(statement.target)


if __name__ == "__main__":
    settle({PAGE: page()})
