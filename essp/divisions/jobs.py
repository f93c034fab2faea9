"""Creates a job for each division of a data set: for each of several splits, or with each group left out in turn.

    runs/ucf            --splits 1,2,3       runs/ucf/split-1, runs/ucf/split-2, runs/ucf/split-3
    runs/ut             --folds group        runs/ut/fold-seq1, runs/ut/fold-seq2, ...

The jobs differ in `name`, `output` and the division of `data`, which always has test videos. Otherwise they are
ordinary jobs: each has its own checkpoints, resumes by itself, and can be audited. The names depend only on the
division, so the same command finds the jobs again.

A trainer that starts from a trainer of another job may have seen videos that are used for testing here. If the other
job was run with divisions, too, each division therefore starts from the corresponding one. Starting from a job on the
same catalog without divisions is rejected.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from essp_common.artifacts.removal import job_at
from essp_common.artifacts.trained import folder_of
from essp_common.catalog.file import read_catalog
from essp_common.catalog.source_columns import GROUP, values_of
from essp_common.errors import ConfigError, NotFound
from essp_common.job.data_spec import DataSpec
from essp_common.job.fields import plain_name
from essp_common.job.spec import JobSpec
from essp_common.job.trainer_spec import TrainerSpec
from essp_common.validation import problems
from essp_common.wiring import Stores

_NUMBERED = "split_"
"""Prefix of the columns that a number refers to."""
_LONGEST = 24
"""Maximum length of a value within a name."""


@dataclass(frozen=True)
class Division:
    """One division of a data set, and its job."""

    name: str
    """Name of its folder in the output."""
    label: str
    """Name for display."""
    spec: JobSpec


def of_splits(spec: JobSpec, splits: str, stores: Stores) -> tuple[Division, ...]:
    """A job for each of these splits. `1,2,3` refers to the columns `split_1`, `split_2`, `split_3`; other names are
    columns.

    Raises `ConfigError` if the job cannot have such splits. Preflight checks whether the catalog has the columns.
    """
    named = [name.strip() for name in splits.split(",")]
    if "" in named or len(set(named)) < len(named):
        raise ConfigError(f"{splits}: name each split once, with commas between, as in 1,2,3", field="--splits")
    columns = {name: f"{_NUMBERED}{name}" if name.isdigit() else name for name in named}
    return tuple(
        _division(spec, f"split-{_plain(name)}", name, {"split_column": column}, "--splits", stores)
        for name, column in columns.items()
    )


def of_folds(spec: JobSpec, column: str, stores: Stores) -> tuple[Division, ...]:
    """A job for each value of a catalog column. It is tested on the videos with that value and trained on all others.

    Raises `ConfigError` if the catalog lacks the column, or if the column has fewer than two values.
    """
    try:
        catalog = read_catalog(*stores.resolve(spec.data.catalog), (GROUP, "extra"))
    except NotFound as error:
        raise ConfigError(
            f"{error}; make one with `essp catalog build`", field="data.catalog", code="not_found"
        ) from error
    every = values_of(catalog.rows, column, "--folds")
    usable = catalog.rows.usable.tolist()
    values = sorted({value for value, used in zip(every, usable, strict=True) if value and used}, key=_counting)
    if len(values) < 2:
        raise ConfigError(
            f"{column}: the videos have {'one value' if values else 'no value'} there, and one must be left "
            "out while others stay; give each video a group, or another column, and build the catalog again",
            field="--folds",
            code="range",
        )
    return tuple(
        _division(spec, f"fold-{_plain(value)}", value, {"left_out": {column: value}}, "--folds", stores)
        for value in values
    )


def _counting(value: str) -> tuple[str, str]:
    """A sort key for natural order: seq2 before seq10."""
    return re.sub("[0-9]+", lambda number: number[0].zfill(20), value), value


def _division(
    spec: JobSpec, name: str, label: str, changes: Mapping[str, object], option: str, stores: Stores
) -> Division:
    if not spec.trainers:
        raise ConfigError("is for a job with trainers, and this one has none", field=option, code="unsupported")
    if spec.data.split_column or spec.data.left_out:
        raise ConfigError(
            "the job file has a division already (data.split_column, data.left_out); leave it out there",
            field=option,
            code="conflict",
        )
    given = spec.data.model_dump(exclude_unset=True)
    try:
        job = plain_name(f"{spec.name}-{name}")
        data = DataSpec.model_validate({**given, "test": spec.data.test or "test", **changes})
    except ValidationError as error:
        raise ConfigError.at(option, ConfigError.together(problems(error, DataSpec)).within("data")) from error
    except ValueError as error:
        raise ConfigError(str(error), field=option) from error
    divided = spec.model_copy(update={"name": job, "output": f"{spec.output}/{name}", "data": data})
    trainers = {
        trainer: settings.model_copy(update={"weights": _start(divided, name, trainer, settings, option, stores)})
        for trainer, settings in spec.trainers.items()
    }
    return Division(name, label, divided.model_copy(update={"trainers": trainers}))


def _start(spec: JobSpec, name: str, trainer: str, settings: TrainerSpec, option: str, stores: Stores) -> str | None:
    """The weights from which a trainer of a division starts."""
    found = folder_of(settings.weights or "")
    if found is None:
        return settings.weights
    output, other_trainer = found
    other = job_at(stores.under(output))
    if other is None:
        return f"{output}/{name}/trainers/{other_trainer}"
    if other.data.catalog == spec.data.catalog:
        raise ConfigError(
            f"job {other.name} was trained on the same catalog in one division, so it has "
            f"seen videos that others test on; run that job with the same {option}, too, and each division starts from "
            "its own",
            field=f"trainers.{trainer}.weights",
            code="conflict",
        )
    return settings.weights


def _plain(value: str) -> str:
    """A value in a form for names and folders. Different values have different results."""
    plain = re.sub(r"[^a-z0-9]+", "-", value.lower()).strip("-")[:_LONGEST].strip("-")
    return plain if plain == value else "-".join(filter(None, (plain, f"{zlib.crc32(value.encode()):08x}")))
