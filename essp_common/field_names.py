"""The names of job fields in the interfaces of ESSP, such as arguments of a function or options of a command.

A job built from arguments is checked like any other, so its errors name fields of the job. `renamed` replaces these
with the names that the user knows, given a mapping from fields and sections to names in the interface:

    {"data.catalog": "catalog", "clip.resize": "clip.size", "streams.loop.params": "params"}

The longest match applies, and the rest of the path is kept: `streams.loop.params.length` becomes `params.length`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel

from essp_common.errors import ConfigError

Names = Mapping[str, str]

_PATH = re.compile(r"""(?<![\w./'"-])[A-Za-z_]\w*(?:\.[\w-]+)++(?![\w/'"])""")
"""Matches the path of a field within a section, but no quoted values, file names and URIs."""


@contextmanager
def fields_named(names: Names, kind: type[BaseModel]) -> Iterator[None]:
    """Rename the fields in errors about a document of this kind that are raised in the `with` block."""
    try:
        yield
    except ConfigError as error:
        if names and type(error) is ConfigError:
            raise renamed(error, names, kind).with_traceback(error.__traceback__) from error.__cause__
        raise


def renamed(error: ConfigError, names: Names, kind: type[BaseModel]) -> ConfigError:
    """The same error about a document of this kind, with the field names of the interface."""
    if error.parts:
        heading = renamed_in_text(error.problem.partition("\n")[0], names, kind)
        return ConfigError.together([renamed(part, names, kind) for part in error.parts], heading)
    return ConfigError(renamed_in_text(error.problem, names, kind), field=name_of(error.field, names), code=error.code)


def renamed_in_text(text: str, names: Names, kind: type[BaseModel]) -> str:
    """The text with each field path of such a document replaced by its name in the interface.

    Fields without a section (`epochs`) are not replaced, because the same word may mean something else in a text.
    """

    def name(found: re.Match[str]) -> str:
        path = found.group()
        return name_of(path, names) if _is_field(path.split("."), kind) else path

    return _PATH.sub(name, text)


def name_of(field: str, names: Names) -> str:
    """The name of a field in the interface; the field itself if it has no other name."""
    known, rest = field, ""
    while known not in names:
        known, dot, last = known.rpartition(".")
        if not dot:
            return field
        rest = f".{last}{rest}"
    return (names[known] + rest).removeprefix(".")


def _is_field(path: Sequence[str], kind: Any) -> bool:
    """Whether a document of this kind can have this field."""
    if not path or kind is Any:
        return True
    first, *rest = path
    for each in _members(kind):
        if isinstance(each, type) and issubclass(each, BaseModel) and first in each.model_fields:
            return _is_field(rest, each.model_fields[first].annotation)
        if each is Any or get_origin(each) is dict:
            return each is Any or _is_field(rest, get_args(each)[1])
    return False


def _members(kind: Any) -> Sequence[Any]:
    """The types that a value may have."""
    kind = getattr(kind, "__origin__", kind) if hasattr(kind, "__metadata__") else kind  # without its constraints
    members = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return [member for member in members if member is not NoneType]
