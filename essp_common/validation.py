"""Turns pydantic's errors into `ConfigError`s for users: which field is wrong, what it must be, and what it is.

One error for each problem, `trainers.rgb.batchsize: there is no such field; did you mean batch_size?`. pydantic's own
messages speak of inputs, parsing and types; they are used only for an error that this module's table lacks.
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
"""Errors that need no value beside them."""
_UNSHOWN = (dict, list, tuple)
"""Values too long to repeat."""
MOST_PROBLEMS = 20
"""Of a document that are listed. Each takes a look at all names that it may have meant."""
_MOST_TOLD = 3
"""Problems of a document that nobody has written by hand."""
_MOST_SHOWN = 100
"""Characters of a value that are repeated."""


def suggested(name: str, known: Iterable[str], there: str = "there are: ") -> str:
    """What to say of a name that there is not: all that there are, and the one that was probably meant."""
    names = list(known)
    near = get_close_matches(name, names, n=1)
    return f"{there}{', '.join(names) or 'none'}" + (f" (did you mean {near[0]}?)" if near else "")


def wrong(problem: str, *, field: str = "", code: ConfigCode = "conflict") -> PydanticCustomError:
    """What a validator of a model raises for a value that is sound by itself and does not fit the others.

    `field`: the one to change, within the model; it reaches the user as that of the whole document.
    """
    said = f"{field}: {problem}" if field else problem
    return PydanticCustomError("wrong", "{said}", {"said": said, "problem": problem, "field": field, "code": code})


def problems(error: ValidationError, kind: type[BaseModel]) -> list[ConfigError]:
    """Each problem of a document of this kind, up to the most that people read; the last one counts the others."""
    found = error.errors()
    errors = [_problem(each, kind) for each in found[:MOST_PROBLEMS]]
    if len(found) > MOST_PROBLEMS:
        errors.append(ConfigError(f"and {len(found) - MOST_PROBLEMS} more problems"))
    return errors


def unreadable(where: str, error: ValidationError, kind: type[BaseModel]) -> str:
    """What to say of a document that ESSP itself wrote, and that this version cannot read."""
    said = "; ".join(map(str, problems(error, kind)[:_MOST_TOLD]))
    if any(found["type"] == "json_invalid" for found in error.errors()):
        return f"{where} is damaged: {said}; restore it from a backup"
    return f"{where} was written by another version of ESSP: {said}; use that version"


def shown(value: object) -> str:
    """A value as messages repeat it: in one line, and not whole if it is long."""
    text = repr(value).replace("\n", " ")
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]} ..."


def requirement(found: ErrorDetails) -> str:
    """What a value has to be, without the value itself."""
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
    """What pydantic calls a kind of error, in the words of `ConfigError`."""
    if kind.endswith(("_type", "_parsing", "_from_float")):
        return "type"
    if kind.startswith(("greater_", "less_", "too_")) or kind == "string_too_long":
        return "range"
    return cast(ConfigCode, _CODES.get(kind, "invalid"))


def _unknown(found: ErrorDetails, kind: type[BaseModel]) -> str | None:
    """The words for a field that there is not, with the one that was probably meant."""
    if found["type"] != "extra_forbidden":
        return None
    section = _section(kind, found["loc"][:-1])
    names = list(section.model_fields) if section is not None else []
    near = get_close_matches(str(found["loc"][-1]), names, n=1)
    meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}" if names else "remove it"
    return f"there is no such field; {meant}"


def _section(kind: Any, location: Sequence[int | str]) -> type[BaseModel] | None:
    """The model that a place in a document of this kind is described by."""
    for part in location:
        model = _model_in(kind)
        if model is not None and part in model.model_fields:
            kind = model.model_fields[str(part)].annotation
        elif get_origin(kind) in (dict, Mapping):
            kind = get_args(kind)[1]
    return _model_in(kind)


def _model_in(kind: Any) -> type[BaseModel] | None:
    """The model that an annotation names, also as `Model | None`."""
    return next((k for k in (kind, *get_args(kind)) if isinstance(k, type) and issubclass(k, BaseModel)), None)
