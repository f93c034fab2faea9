"""Turns pydantic's errors into `ConfigError`s for users: which field is wrong, what is required, and the given value.

One error for each problem: `trainers.rgb.batchsize: there is no such field; did you mean batch_size?`. pydantic's own
messages are about inputs, parsing and types; they are used only for errors that are missing from this module's table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from essp_common.errors import ConfigCode, ConfigError
from essp_common.field_paths import joined

_WORDS = {
    "missing": "is required",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be text",
    "string_pattern_mismatch": "has to match {pattern}",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "list_type": "must be a list, as in [a, b]",
    "tuple_type": "must be a list, as in [a, b]",
    "dict_type": "must be a mapping, as in {{a: 1}}",
    "model_type": "must be a mapping of fields",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be {ge} or more",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be {le} or less",
    "string_too_long": "may have {max_length} characters",
    "too_short": "needs {min_length} or more",
    "too_long": "takes {max_length} at most",
}
_CODES = {
    "missing": "missing",
    "extra_forbidden": "unknown",
    "literal_error": "unknown",
    "enum": "unknown",
    "json_invalid": "unreadable",
}
_SAID = frozenset({"missing", "extra_forbidden", "value_error", "json_invalid"})
"""Errors whose message does not repeat the value."""
_UNSHOWN = (dict, list, tuple)
"""Values too long to repeat."""
MOST_PROBLEMS = 20
"""Problems of a document that are listed. Suggesting a name for each means comparing it with all known names."""
_MOST_TOLD = 3
"""Problems listed for a document that was not written by hand."""
_DEEPEST = 4
"""Levels of sections that are searched for an unknown field."""
_MOST_SHOWN = 100
"""Characters of a value that are repeated."""


def suggested(name: str, known: Iterable[str], there: str = "there are: ") -> str:
    """The message for an unknown name: all known names, and the closest one."""
    names = list(known)
    near = get_close_matches(name, names, n=1)
    return f"{there}{', '.join(names) or 'none'}" + (f" (did you mean {near[0]}?)" if near else "")


def wrong(problem: str, *, field: str = "", code: ConfigCode = "conflict") -> PydanticCustomError:
    """The error that a model's validator raises for a value that is valid by itself but conflicts with others.

    `field`: the field to change, within the model; users see its path in the whole document.
    """
    said = f"{field}: {problem}" if field else problem
    return PydanticCustomError("wrong", "{said}", {"said": said, "problem": problem, "field": field, "code": code})


def refuse(problems: Iterable[ConfigError]) -> None:
    """Raise all problems as one `ConfigError`, if there are any.

    A sweep may have hundreds of trainers with the same problem, so only the first `MOST_PROBLEMS` are listed.
    """
    errors = list(problems)
    if len(errors) > MOST_PROBLEMS:
        errors[MOST_PROBLEMS:] = [ConfigError(f"and {len(errors) - MOST_PROBLEMS} more problems")]
    if errors:
        raise ConfigError.together(errors)


def problems(error: ValidationError, kind: type[BaseModel]) -> list[ConfigError]:
    """Each problem of a document of this kind, up to `MOST_PROBLEMS`; a last entry counts the rest."""
    found = error.errors()
    errors = [_problem(each, kind) for each in found[:MOST_PROBLEMS]]
    if len(found) > MOST_PROBLEMS:
        errors.append(ConfigError(f"and {len(found) - MOST_PROBLEMS} more problems"))
    return errors


def unreadable(where: str, error: ValidationError, kind: type[BaseModel]) -> str:
    """The message for a document that ESSP itself wrote and that this version cannot read."""
    said = "; ".join(map(str, problems(error, kind)[:_MOST_TOLD]))
    if any(found["type"] == "json_invalid" for found in error.errors()):
        return f"{where} is damaged: {said}; restore it from a backup"
    return f"{where} was written by another version of ESSP: {said}; use that version"


def shown(value: object) -> str:
    """A value for messages: in one line, and cut if it is long."""
    text = repr(value).replace("\n", " ")
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]} ..."


def requirement(found: ErrorDetails) -> str:
    """What a value must be, without the value itself."""
    text = _WORDS.get(found["type"])
    if text is not None:
        return text.format_map(found.get("ctx", {}))
    return found["msg"].removeprefix("Value error, ").replace("Input should", "has to")


def _problem(found: ErrorDetails, kind: type[BaseModel]) -> ConfigError:
    place = joined(part for part in found["loc"] if part != "[key]")
    if found["type"] == "wrong":
        given = found["ctx"]
        error = ConfigError(given["problem"], field=given["field"], code=given["code"])
        return error.within(place) if place else error
    text = _unknown(found, kind) or requirement(found)
    value = found["input"]
    if found["type"] not in _SAID and not isinstance(value, _UNSHOWN):
        text += f", got {'nothing' if value is None else shown(value)}"
    if found["type"] == "string_type" and isinstance(value, int | float):
        text += f" ({'yes, no, on and off' if isinstance(value, bool) else 'numbers'} go in quotes)"
    return ConfigError(text, field=place, code=code_of(found["type"]))


def code_of(kind: str) -> ConfigCode:
    """The `ConfigCode` for a pydantic error type."""
    if kind.endswith(("_type", "_parsing", "_from_float")):
        return "type"
    if kind.startswith(("greater_", "less_", "too_")) or kind == "string_too_long":
        return "range"
    return cast(ConfigCode, _CODES.get(kind, "invalid"))


def _unknown(found: ErrorDetails, kind: type[BaseModel]) -> str | None:
    """The message for an unknown field, with the closest known one; None for other errors."""
    if found["type"] != "extra_forbidden":
        return None
    section = _section(kind, found["loc"][:-1])
    names = list(section.model_fields) if section is not None else []
    near = get_close_matches(str(found["loc"][-1]), names, n=1)
    inner = () if near or section is None else _deeper(section, str(found["loc"][-1]))
    place = joined([*found["loc"][:-1], *inner]) if inner else near[0] if near else ""
    meant = f"did you mean {place}?" if place else f"there are {', '.join(names)}" if names else "remove it"
    return f"there is no such field; {meant}"


def _section(kind: Any, location: Sequence[int | str]) -> type[BaseModel] | None:
    """The model that describes a location in a document of this kind."""
    for part in location:
        model = _model_in(kind)
        if model is not None and part in model.model_fields:
            kind = model.model_fields[str(part)].annotation
        elif get_origin(kind) in (dict, Mapping):
            kind = get_args(kind)[1]
    return _model_in(kind)


def _deeper(section: type[BaseModel], name: str) -> tuple[str, ...]:
    """The path within a section to the nearest field with this name in a section below it; NAME stands for any name.
    Empty if there is none."""
    level: list[tuple[tuple[str, ...], type[BaseModel]]] = [((), section)]
    for _ in range(_DEEPEST):
        below = []
        for path, model in level:
            if path and name in model.model_fields:
                return (*path, name)
            for field, info in model.model_fields.items():
                kind: Any = info.annotation
                names: tuple[str, ...] = (field,)
                if get_origin(kind) in (dict, Mapping):
                    kind, names = get_args(kind)[1], (field, "NAME")
                if (inner := _model_in(kind)) is not None:
                    below.append(((*path, *names), inner))
        level = below
    return ()


def _model_in(kind: Any) -> type[BaseModel] | None:
    """The model in an annotation, also in `Model | None`."""
    return next((k for k in (kind, *get_args(kind)) if isinstance(k, type) and issubclass(k, BaseModel)), None)
