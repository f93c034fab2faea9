"""The job file argument of a command, and the option that overrides its epochs."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated

import typer

from essp.job_file import read_job
from essp_common.errors import ConfigError
from essp_common.field_names import fields_named
from essp_common.job.fields import MOST_EPOCHS
from essp_common.job.spec import JobSpec

Epochs = Annotated[
    int | None,
    typer.Option(
        help="Epochs to train, instead of the number in the job file; a completed job continues if there are more.",
        min=1,
        max=MOST_EPOCHS,
    ),
]


_OPTIONS = {"epochs": "--epochs", "data.split_column": "--splits", "data.left_out": "--folds"}
"""Job field -> the option that sets it."""


def options_named(
    epochs: int | None = None, splits: str | None = None, folds: str | None = None
) -> AbstractContextManager[None]:
    """Have errors raised in the `with` block name fields of the job by their options, if these are given."""
    given = zip(_OPTIONS.items(), (epochs, splits, folds), strict=True)
    return fields_named({field: option for (field, option), value in given if value is not None}, JobSpec)


def load_job(path: Path, epochs: int | None = None) -> JobSpec:
    """Read the job in a file. Raises `ConfigError`, with one line for each wrong field.

    `epochs`: how many to train instead of the number in the file.
    """
    spec = read_job(path)
    if epochs is None:
        return spec
    if not spec.trainers:
        raise ConfigError(f"{path} has no trainers", field="--epochs", code="conflict")
    return spec.model_copy(update={"epochs": epochs})
