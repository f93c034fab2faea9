"""Single fields of a job, set on a command line: `trainers.rgb.optimizer.lr=0.02`.

Fields are named as in messages about a job, with dots (`field_paths.py`), and values are YAML. A setting replaces what
the job file says, as if the file had been edited, so the result is checked like any other job file. `null` for a name
in `trainers`, `streams` or `consumers` removes it from the job.

An unknown field is reported when the job is checked. An unknown trainer, stream or consumer must be found here: a job
file may contain any name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

from essp_common.errors import ConfigError
from essp_common.field_paths import PATH, joined, parts_of
from essp_common.job.documents import read_yaml
from essp_common.validation import shown, suggested

_GIVEN = re.compile(rf"({PATH})=(.*)", re.DOTALL)
_MAKES = {"trainers": "stream", "consumers": "stream", "streams": "feature"}
"""Section of names -> the field that a new name needs. Without it, the name is assumed to be misspelled."""
_DEFAULT: dict[str, dict[str, Any]] = {"streams": {"rgb": {}}}
"""The names in a section that a job file leaves out."""


class Setting(NamedTuple):
    """A field, and the value it is set to."""

    path: tuple[str, ...]
    value: Any

    @property
    def field(self) -> str:
        """The field with dots."""
        return joined(self.path)


def parse_settings(given: Sequence[str]) -> tuple[Setting, ...]:
    """Parse settings, as in `["epochs=3", "trainers.rgb.optimizer.lr=0.02"]`.

    Raises `ConfigError` for what is not of the form FIELD=VALUE, for values that are not YAML, and for a field that is
    set twice.
    """
    found: list[Setting] = []
    for text in given:
        if not (matched := _GIVEN.fullmatch(text)):
            raise ConfigError(
                f"{shown(text)}: write FIELD=VALUE, as in trainers.rgb.optimizer.lr=0.001; a name with dots in it "
                "stands in double quotes"
            )
        field, value = matched.groups()
        setting = Setting(parts_of(field), read_yaml(value, field))
        for other in found:
            if other.path[: len(setting.path)] == setting.path:
                again = "is set twice" if other.path == setting.path else f"replaces {other.field}, which is set, too"
                raise ConfigError(f"{again}; give it once", field=setting.field, code="conflict")
        found.append(setting)
    return tuple(found)


def with_settings(document: Mapping[str, Any], settings: Sequence[Setting]) -> dict[str, Any]:
    """The job file `document` with these fields set. `document` stays as it is, even if parts of it are one object, as
    after YAML's aliases.

    Raises `ConfigError` for unknown trainers, streams and consumers, and for fields within a value that has none.
    """
    found = dict(document)
    for setting in settings:
        _check_name(document, setting, settings)
        removes = setting.value is None and len(setting.path) == 2 and setting.path[0] in _MAKES
        found = _without(found, setting.path) if removes else _set(found, setting.path, setting)
    return found


def changes_of(document: dict[str, Any], settings: Sequence[Setting]) -> dict[str, Any]:
    """The part of a job file `document` with these fields added, for a running job, which checks their names itself."""
    for setting in settings:
        document = _set(document, setting.path, setting)
    return document


def _without(document: Mapping[str, Any], path: Sequence[str]) -> dict[str, Any]:
    group, name = path
    return {**document, group: {key: value for key, value in (document.get(group) or {}).items() if key != name}}


def _set(section: Mapping[str, Any], path: Sequence[str], setting: Setting) -> dict[str, Any]:
    name, *rest = path
    if not rest:
        return {**section, name: setting.value}
    inner = section.get(name)
    if inner is None:
        inner = {}
    if not isinstance(inner, Mapping):
        where = joined(setting.path[: len(setting.path) - len(rest)])
        kind = "a list; set it as a whole" if isinstance(inner, list) else f"the value {shown(inner)}, without fields"
        raise ConfigError(f"{where} is {kind}", field=setting.field, code="conflict")
    return {**section, name: _set(inner, rest, setting)}


def _check_name(document: Mapping[str, Any], setting: Setting, settings: Sequence[Setting]) -> None:
    """Raise `ConfigError` if a setting is about a trainer, stream or consumer that neither the file nor a setting
    makes."""
    if len(setting.path) < 2 or setting.path[0] not in _MAKES:
        return
    group, name = setting.path[:2]
    known = document.get(group, _DEFAULT.get(group, {}))
    if not isinstance(known, Mapping) or name in known:
        return
    makes = ((group, name), (group, name, _MAKES[group]))
    if any(one.path in makes and one.value is not None for one in settings):
        return
    sweep = name.rpartition("-")[0]
    if name in (f"{sweep}-{number}" for number in range(1, 100)) and sweep in known:
        told = f"it is one of sweep {sweep}; set {joined((group, sweep, *setting.path[2:]))} for all of the sweep"
    elif set(name) & set("*?["):
        told = f"name each by itself; there are: {', '.join(map(str, known))}"
    else:
        near = get_close_matches(name, map(str, known), n=1)
        path = joined((group, near[0], *setting.path[2:])) if near else ""
        told = f"{suggested(name, map(str, known))}" if not near else f"did you mean {path}?"
        told += "" if near else f"; a new one needs {joined((group, name, _MAKES[group]))}, too"
    raise ConfigError(
        f"the job file has no {group.removesuffix('s')} {shown(name)}; {told}", field=setting.field, code="unknown"
    )
