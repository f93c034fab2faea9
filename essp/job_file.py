"""The job file that a user names, or a file with part of a job: read, checked, and with its paths turned into URIs.

Paths in it (`catalog: catalog.parquet`, `output: runs/first`) are relative to the folder of the file, so a folder with
a job can be moved and used from anywhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from essp.uris import as_uri
from essp_common.errors import ConfigError
from essp_common.job.documents import read_yaml, text_of
from essp_common.job.spec import JobSpec, parse_spec
from essp_common.job.trainer_spec import PACKAGE, names_place

_PLACES = ("catalog", "records", "records_validation", "records_test")


def read_job(path: Path) -> JobSpec:
    """Read the job in a file. Raises `ConfigError`, with one line for each wrong field."""
    return _placed(parse_spec(_text(path, "`essp init` writes a job"), str(path)), path.absolute().parent)


def read_part(path: Path) -> dict[str, Any]:
    """Read a file with part of a job, with URIs instead of paths. Raises `ConfigError` if it is not part of a job."""
    part = read_yaml(_text(path, "write the fields to change as in a job file"), str(path))
    if not isinstance(part, dict):
        raise ConfigError(f"{path}: is not a mapping of the fields to change; write them as in a job file", code="type")
    return placed_part(part, path.absolute().parent)


def _text(path: Path, advice: str) -> str:
    try:
        return text_of(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); {advice}", code="unreadable") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not a text file; {advice}", code="unreadable") from error


def placed_part(part: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A part of a job with URIs instead of paths relative to `folder`. Only `trainers.NAME.weights` is converted,
    because no other path can be changed."""
    trainers = part.get("trainers")
    if not isinstance(trainers, dict):
        return part
    return part | {"trainers": {name: _placed_trainer(trainer, folder) for name, trainer in trainers.items()}}


def _placed_trainer(trainer: Any, folder: Path) -> Any:
    """`trainer`: the value in the file, of any type."""
    weights = trainer.get("weights") if isinstance(trainer, dict) else None
    if isinstance(weights, str) and names_place(weights):
        return trainer | {"weights": as_uri(weights, folder)}
    return trainer


def _placed(spec: JobSpec, folder: Path) -> JobSpec:
    """The job with URIs instead of paths."""

    def uri(text: str) -> str:
        return as_uri(text, folder) if text and not text.startswith(PACKAGE) else text

    changes: dict[str, object] = {
        "output": uri(spec.output),
        "data": spec.data.model_copy(update={name: uri(getattr(spec.data, name)) for name in _PLACES}),
        "trainers": {
            name: trainer.model_copy(update={"weights": trainer.weights and uri(trainer.weights)})
            for name, trainer in spec.trainers.items()
        },
    }
    if spec.predictor is not None:
        changes["predictor"] = spec.predictor.model_copy(update={"model": uri(spec.predictor.model)})
    return spec.model_copy(update=changes)
