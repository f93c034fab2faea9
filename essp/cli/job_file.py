"""The job argument of a command, and the options that change fields of the job."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated

import typer

from essp.job_file import read_job
from essp_common.errors import ConfigError
from essp_common.field_names import fields_named
from essp_common.job.fields import MOST_EPOCHS
from essp_common.job.spec import JobSpec
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores

JobFile = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="The job file (YAML or JSON), which `essp init` writes; or the output of a job, for that job as it ran.",
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Another value for a field of the job, as in trainers.rgb.optimizer.lr=0.02; may be repeated. Values are "
        "YAML; trainers.NAME=null leaves a trainer out.",
    ),
]
Named = Annotated[
    str | None,
    typer.Option(
        "--name", help="Another name for the job, and an output of that name next to the one in the job file."
    ),
]
Epochs = Annotated[
    int | None,
    typer.Option(
        help="Epochs to train, instead of the number in the job file; a completed job continues if there are more.",
        min=1,
        max=MOST_EPOCHS,
    ),
]
Fresh = Annotated[
    bool,
    typer.Option(
        "--fresh", help="Begin again: remove what earlier jobs have written to the output, and no other files."
    ),
]
YesFresh = Annotated[
    bool, typer.Option("--yes", "-y", help="With --fresh: do not ask before the output of another job is removed.")
]


_OPTIONS = {"epochs": "--epochs", "data.split_column": "--splits", "data.left_out": "--folds", "name": "--name"}
"""Job field -> the option that sets it."""


def options_named(
    epochs: int | None = None, splits: str | None = None, folds: str | None = None, name: str | None = None
) -> AbstractContextManager[None]:
    """Have errors raised in the `with` block name fields of the job by their options, if these are given."""
    given = zip(_OPTIONS.items(), (epochs, splits, folds, name), strict=True)
    return fields_named({field: option for (field, option), value in given if value is not None}, JobSpec)


def load_job(
    job: Path | str, epochs: int | None = None, sets: Sequence[str] | None = None, name: str | None = None
) -> JobSpec:
    """Read the job in a file or an output. Raises `ConfigError`, with one line for each wrong field.

    `epochs`: how many to train instead of the number in the file. `sets`, `name`: the values of `Sets` and `Named`.
    """
    with options_named(name=name):
        spec = read_job(job, sets or (), name, Stores(Settings().stores))
    if epochs is None:
        return spec
    if not spec.trainers:
        raise ConfigError(f"{job} has no trainers", field="--epochs", code="conflict")
    if any(given.startswith("epochs=") for given in sets or ()):
        raise ConfigError("epochs is set by --set, too; give one of them", field="--epochs", code="conflict")
    return spec.model_copy(update={"epochs": epochs})


def options_again(epochs: int | None, sets: Sequence[str] | None, name: str | None) -> str:
    """These options as they are given on a command line, each after a space."""
    given = [f"--set {shlex.quote(text)}" for text in sets or ()]
    given += [] if name is None else [f"--name {shlex.quote(name)}"]
    given += [] if epochs is None else [f"--epochs {epochs}"]
    return "".join(f" {option}" for option in given)
