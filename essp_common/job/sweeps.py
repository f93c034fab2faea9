"""A sweep: one trainer of a job file that is expanded into several, each with other settings.

It is expanded while the job is parsed, before any code reads the trainers. So the master, `essp validate` and `essp
run` see the same trainers, and the expanded job is stored. Each member keeps its own values in its `sweep`, as lists of
one; expanding it again changes nothing. The stored job does not name sweeps: trainers belong to the same sweep
(`sweeps_of`) if they are numbered like its members and differ only in the swept fields.

Fields that cannot be swept, values that are not lists, and grids that are too large raise `ValueError`, which names the
trainer.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Mapping
from typing import Any, TypeGuard, get_args

from pydantic import BaseModel

from essp_common.job.trainer_spec import RATE, TrainerSpec
from essp_common.validation import suggested, wrong

_NUMBERED = re.compile(r"-[1-9][0-9]*$")
_FIXED = {
    "sweep": "a sweep has no sweeps",
    "keep": "it is of the sweep, and the same for all of its members",
    "weights": "paths are not swept; write a trainer for each file",
}


def expanded(trainers: Mapping[Any, Any], kind: type[BaseModel], seed: int, most: int) -> dict[Any, Any]:
    """The trainers of a document, with each sweep replaced by one trainer for each combination of its values.

    `kind`: the model that validates trainers. `seed`: the seed of the first member of a sweep that does not set one;
    the next members count up from it. `most`: the largest number of trainers in a job.
    """
    found: dict[Any, Any] = {}
    for name, trainer in trainers.items():
        sweep = trainer.get("sweep") if isinstance(trainer, dict) else getattr(trainer, "sweep", None)
        members = _members(name, trainer, sweep, kind, seed, most) if isinstance(sweep, Mapping) and sweep else None
        for member, settings in (members or {name: trainer}).items():
            if member in found or (member != name and member in trainers):
                raise wrong(
                    f"makes a trainer {member!r}, and there is one; rename it",
                    field=f"trainers.{name}.sweep",
                    code="conflict",
                )
            found[member] = settings
    return found


def sweeps_of(trainers: Mapping[str, TrainerSpec]) -> dict[str, tuple[str, ...]]:
    """Name of each sweep, as in the job file -> its members, among expanded trainers.

    A sweep with a single value has one member, which has the name of the sweep.
    """
    alike: dict[tuple[str, str], list[str]] = {}
    for name, trainer in trainers.items():
        if trainer.sweep:
            alike.setdefault((_NUMBERED.sub("", name), _unswept_settings(trainer)), []).append(name)
    found: dict[str, tuple[str, ...]] = {}
    for (base, _), members in alike.items():
        found[base if len(members) > 1 and base not in found else members[0]] = tuple(members)
    return found


def _unswept_settings(trainer: TrainerSpec) -> str:
    """The settings that all members of a sweep share: without their seeds, and without what users may change for each
    one."""
    settings = trainer.model_dump(mode="json", exclude={"seed": True, "sweep": True, "optimizer": set(RATE)})
    for field in trainer.sweep:
        *sections, last = field.split(".")
        inner = settings
        for section in sections:
            inner = inner.get(section) or {}  # a section that may be null can also be swept as a whole
        inner.pop(last, None)
    return json.dumps([sorted(trainer.sweep), settings], sort_keys=True)


def words(sweep: Mapping[str, tuple[Any, ...]]) -> dict[str, str]:
    """Field -> the value of a member, as text."""
    return {
        field: values[0] if isinstance(values[0], str) else json.dumps(values[0]) for field, values in sweep.items()
    }


def label_of(trainer: str, settings: Mapping[str, str]) -> str:
    """A member and its settings, for example `rgb-2 (optimizer.lr 0.03)`; without settings its name."""
    told = ", ".join(f"{field} {value}" for field, value in settings.items())
    return f"{trainer} ({told})" if told else trainer


def _members(
    name: str, trainer: Any, sweep: Mapping[str, Any], kind: type[BaseModel], seed: int, most: int
) -> dict[str, dict[str, Any]]:
    where = f"trainers.{name}.sweep"
    for field, values in sweep.items():
        if problem := _unswept(field, kind) or _unlisted(values):
            raise wrong(problem, field=f"{where}.{field}", code="conflict")
    if (count := math.prod(map(len, sweep.values()))) > most:
        product = " x ".join(str(len(values)) for values in sweep.values())
        raise wrong(
            f"{product} values make {count} trainers, and a job has {most} at most; try fewer values, or make "
            "several jobs",
            field=where,
            code="conflict",
        )
    given = trainer.model_dump(exclude_unset=True) if isinstance(trainer, BaseModel) else trainer
    members: dict[str, dict[str, Any]] = {}
    for number, combination in enumerate(itertools.product(*sweep.values())):
        chosen = dict(zip(sweep, combination, strict=True))
        settings = {**given, "sweep": {field: [value] for field, value in chosen.items()}}
        if count > 1 and settings.get("seed") is None:
            settings["seed"] = (seed + number) % 2**63
        for field, value in chosen.items():
            settings = _with(settings, field, value, f"trainers.{name}")
        members[name if count == 1 else f"{name}-{number + 1}"] = settings
    return members


def _unswept(field: Any, kind: type[BaseModel]) -> str:
    """Why a field cannot be swept; empty if it can."""
    if field in _FIXED:
        return _FIXED[field]
    head, _, rest = str(field).partition(".")
    if head not in kind.model_fields:
        return f"there is no such field; {suggested(head, kind.model_fields)}"
    inner = kind.model_fields[head].annotation
    section = next((part for part in get_args(inner) or (inner,) if _is_section(part)), None)
    if rest:
        return f"{head} has no fields" if section is None else _unswept(rest, section)
    if section is inner:  # a section that may be null can also be swept as a whole
        return f"{head} is a section; name a field of it, as in {head}.NAME"
    return ""


def _is_section(part: Any) -> TypeGuard[type[BaseModel]]:
    return isinstance(part, type) and issubclass(part, BaseModel)


def _unlisted(values: Any) -> str:
    """Why a list of values cannot be tried; empty if it can."""
    if not isinstance(values, list | tuple) or not values:
        return "must be a list of values to try, as in [0.1, 0.03]"
    twice = [value for number, value in enumerate(values) if value in values[:number]]
    return f"{twice[0]!r} is there twice" if twice else ""


def _with(settings: dict[str, Any], field: str, value: Any, where: str) -> dict[str, Any]:
    """The settings with this value at a dotted field."""
    head, _, rest = field.partition(".")
    if not rest:
        return {**settings, head: value}
    inner = settings.get(head)
    if inner is None:
        inner = {}
    if isinstance(inner, BaseModel):
        inner = inner.model_dump(exclude_unset=True)
    if not isinstance(inner, dict):
        raise wrong("must be a mapping of fields", field=f"{where}.{head}", code="type")
    return {**settings, head: _with(inner, rest, value, f"{where}.{head}")}
