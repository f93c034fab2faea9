"""The field types of a job specification: names, URIs, sizes, and parameter values."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from essp_common.objects.uris import checked_uri
from essp_common.quantities import parse_bytes

ByteSize = Annotated[int, Field(gt=0, le=2**50), BeforeValidator(parse_bytes)]
"""A number of bytes, or a text such as `256MiB`."""
MOST_EPOCHS = 10_000
MOST_READERS = 64
"""Trainers (or predicted streams) and extracted streams of one job, together."""


def plain_name(name: str) -> str:
    """Return the name. Raises `ValueError` if topics, keys and URLs cannot contain it."""
    if not re.fullmatch(_NAME, name):
        raise ValueError(
            f"{name!r} is not a name: 1 to 63 lower-case letters, digits, `-` and `_`, a letter or digit first and last"
        )
    return name


def name_or_path(name: str) -> str:
    """Return the name of a network or a loss, or the path of one in a package. Raises `ValueError` for anything else.

    Whether a path may be imported is decided by the settings (`essp_common.job.registered`).
    """
    if re.fullmatch(_OF_LIBRARY, name) and len(name) <= _LONGEST_PATH:
        return name
    if ":" not in name and "." not in name:
        return plain_name(name)
    if len(name) > _LONGEST_PATH or not re.fullmatch(_PATH, name):
        raise ValueError(f"{name[:_LONGEST_PATH]!r} is not a path; write package.module:NAME")
    return name


_NAME = r"^[a-z0-9]([-a-z0-9_]{0,61}[a-z0-9])?$"
_PATH = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$"
_OF_LIBRARY = r"^(timm:[A-Za-z0-9_.]+|hf:[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)?)$"
"""A model of timm, or a family or repository of Hugging Face."""
_LONGEST_PATH = 200
Name = Annotated[str, AfterValidator(plain_name), WithJsonSchema({"type": "string", "pattern": _NAME})]
NameOrPath = Annotated[
    str,
    AfterValidator(name_or_path),
    WithJsonSchema({"type": "string", "pattern": f"{_NAME}|{_PATH}|{_OF_LIBRARY}", "maxLength": _LONGEST_PATH}),
]
Uri = Annotated[str, AfterValidator(checked_uri)]
"""A URI without query, fragment, `..` or percent-encoding; in a job file also a path."""
Label = Annotated[str, Field(max_length=200)]
"""A name from outside ESSP, such as the name of a split."""


def plain_values(value: Any) -> Any:
    """Return a JSON value. Raises `ValueError` if it contains something that messages cannot carry, such as
    infinity."""
    if isinstance(value, dict):
        if unlike := [key for key in value if not isinstance(key, str)]:
            raise ValueError(f"{unlike[0]!r} is not a name; write it in quotes")
        return {key: plain_values(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_values(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("numbers must be finite")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("whole numbers have to fit into 64 bits")
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise ValueError(f"{value!r} is not a text, number, list or mapping")


ParamValue = StrictBool | StrictInt | StrictFloat | Annotated[StrictStr, Field(max_length=200)]
"""A parameter value of a strategy."""
Params = Annotated[dict[str, Any], BeforeValidator(plain_values)]
Grid = Annotated[dict[str, tuple[Any, ...]], BeforeValidator(plain_values)]


class Section(BaseModel):
    """A part of a job: unknown fields are refused, values stay as they are, and the text below a field describes it."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _words_that_yaml_reads_otherwise(cls, given: Any) -> Any:
        """Restore words that YAML turns into other types, if the field accepts only certain words: `parallel: off` is
        false to YAML, and `subsampling: 420` is a number."""
        if not isinstance(given, dict):
            return given
        meant = {
            name: word
            for name, field in cls.model_fields.items()
            if (value := given.get(name, ...)) is None or isinstance(value, int)
            if (word := _word_meant(value, field.annotation)) is not None
        }
        return given | meant if meant else given

    @field_validator("*", mode="before")
    @classmethod
    def _yes_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse true as a number: `epochs: yes` would be 1. False is accepted, because `ema: off` means 0."""
        if value is True and info.field_name is not None:
            kinds = _kinds(cls.model_fields[info.field_name].annotation)
            if bool not in kinds and (int in kinds or float in kinds):
                raise PydanticCustomError("int_type" if int in kinds else "float_type", "Input should be a number")
        return value


def _word_meant(value: int | None, annotation: Any) -> str | None:
    """The word of a choice that YAML reads as this value; None if there is none, or if the value itself is allowed."""
    choices, kinds = choices_of(annotation), _kinds(annotation)
    if not choices or bool in kinds or value in choices or (value is None and NoneType in kinds):
        return None
    words = _WRITTEN[value] if value is None or isinstance(value, bool) else (str(value),)
    return next((word for word in words if word in choices), None)


def choices_of(annotation: Any) -> list[Any]:
    """The allowed values of a field; empty if it is not a choice."""
    return [choice for kind in _kinds(annotation) for choice in _choices(kind)]


def _kinds(annotation: Any) -> Sequence[Any]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _choices(kind: Any) -> Sequence[Any]:
    if get_origin(kind) is Literal:
        return get_args(kind)
    return tuple(kind) if isinstance(kind, type) and issubclass(kind, StrEnum) else ()


_WRITTEN: dict[bool | None, tuple[str, ...]] = {
    False: ("off", "no", "false"),
    True: ("on", "yes", "true"),
    None: ("null", "none"),
}
