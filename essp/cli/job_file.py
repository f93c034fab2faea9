"""The job file that a user names: read, checked, and with its paths as URIs.

Paths in it (`catalog: catalog.parquet`, `output: runs/first`) are meant from the folder that the file is in, so that a
folder with a job can be moved, and the command be called from anywhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from essp.uris import as_uri
from essp_common.errors import ConfigError
from essp_common.job.documents import text_of
from essp_common.job.spec import MOST_EPOCHS, PACKAGE, JobSpec, parse_spec

Epochs = Annotated[
    int | None,
    typer.Option(
        help="Train so many epochs, whatever the job file says; a job that has ended goes on if they are more.",
        min=1,
        max=MOST_EPOCHS,
    ),
]


def load_job(path: Path, epochs: int | None = None) -> JobSpec:
    """The job in a file. Raises `ConfigError`, one line for each field that is wrong.

    `epochs`: those to train in place of those in the file.
    """
    try:
        spec = parse_spec(text_of(path), str(path))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); `essp init` writes a job") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not a text file; `essp init` writes a job") from error
    if epochs is not None:
        if spec.predictor is not None:
            raise ConfigError(f"--epochs: {path} is a predict job, which trains nothing")
        spec = spec.model_copy(update={"epochs": epochs})
    return _placed(spec, path.absolute().parent)


def _placed(spec: JobSpec, folder: Path) -> JobSpec:
    """The job with URIs in place of paths."""

    def uri(text: str) -> str:
        return as_uri(text, folder) if text and not text.startswith(PACKAGE) else text

    changes: dict[str, object] = {
        "output": uri(spec.output),
        "data": spec.data.model_copy(update={"catalog": uri(spec.data.catalog)}),
        "trainers": {
            name: trainer.model_copy(update={"weights": trainer.weights and uri(trainer.weights)})
            for name, trainer in spec.trainers.items()
        },
    }
    if spec.predictor is not None:
        changes["predictor"] = spec.predictor.model_copy(update={"model": uri(spec.predictor.model)})
    return spec.model_copy(update=changes)
