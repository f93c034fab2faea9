"""The job file that a user names, or a file with part of a job: read, checked, and with its paths turned into URIs.

Paths in it (`catalog: catalog.parquet`, `output: runs/first`) are relative to the folder of the file, so a folder with
a job can be moved and used from anywhere. Paths in settings (`--set data.catalog=other.parquet`) are relative to the
working folder, like other paths on a command line.

Instead of a file, users may name the output of a job: then it is that job, as it ran.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from essp.uris import as_uri, shown
from essp_common.artifacts import layout
from essp_common.artifacts.removal import holder_of
from essp_common.errors import ConfigError
from essp_common.job.documents import read_yaml, text_of
from essp_common.job.settings import Setting, parse_settings, with_settings
from essp_common.job.spec import JobSpec, job_document, spec_of
from essp_common.job.trainer_spec import PACKAGE, names_place
from essp_common.wiring import Stores

_PLACES = ("catalog", "records", "records_validation", "records_test")
_ADVICE = "`essp init` writes a job"
_PLACE_FIELDS = {
    ("output",),
    ("predictor", "model"),
    ("extract", "model"),
    ("extract", "weights"),
    *(("data", field) for field in _PLACES),
}


def read_job(
    path: Path | str, given: Sequence[str] = (), name: str | None = None, stores: Stores | None = None
) -> JobSpec:
    """Read the job in a file, or the job that an output holds. Raises `ConfigError`, with one line for each wrong
    field.

    `path`: also the URI of an output. `given`: settings that replace fields, as in `trainers.rgb.optimizer.lr=0.02`.
    `name`: names the job, and its output next to the one in the file. `stores`: where outputs are.
    """
    settings = placed_settings(given)
    where = str(path)
    ran = "://" in where or os.path.isdir(where)
    if ran:
        document, folder = _ran(where, stores or Stores(("file:///",))), Path.cwd()
    else:
        document, folder = job_document(_text(Path(path), _ADVICE), where), Path(path).absolute().parent
    document = with_settings(document, settings)
    if name is not None:
        document = _named(document, name, {setting.path for setting in settings})
    spec = _placed(spec_of(document, f"{where}, with these settings," if settings else where), folder)
    if ran and name is None and ("output",) not in {setting.path for setting in settings}:
        _check_place(spec, where)
    return spec


def placed_settings(given: Sequence[str]) -> list[Setting]:
    """Settings, as in `trainers.rgb.optimizer.lr=0.02`, with URIs instead of paths. Raises `ConfigError`."""
    return [_placed_setting(setting) for setting in parse_settings(given)]


def _check_place(spec: JobSpec, output: str) -> None:
    """Raise `ConfigError` for an output that was moved or copied: its job would continue at the old place."""
    if spec.output.rstrip("/") != as_uri(output).rstrip("/"):
        raise ConfigError(
            f"{output} was moved or copied: its job has the output {shown(spec.output)}, and continues only there; "
            "move it back, or train again under another name (--name NAME)",
            field="output",
            code="conflict",
        )


def _ran(output: str, stores: Stores) -> dict[str, Any]:
    """The job whose output this is, as a document."""
    try:
        holder = holder_of(stores.under(as_uri(output)))
    except ConfigError as error:
        raise ConfigError(f"{output}: {error}", code=error.code) from error
    if holder is None:
        raise ConfigError(
            f"{output} has no {layout.SPEC}, so it is not the output of a job; name a job file, or such an output "
            f"({_ADVICE})",
            code="not_found",
        )
    return holder.spec.model_dump(mode="json", exclude_unset=True)


def _named(document: dict[str, Any], name: str, given: set[tuple[str, ...]]) -> dict[str, Any]:
    """The job with this name, and an output of this name next to the one that it had."""
    if ("name",) in given:
        raise ConfigError("name is set, too; give one of them", field="--name", code="conflict")
    output = document.get("output")
    if ("output",) in given or not isinstance(output, str):  # or missing, which is reported when the job is checked
        return {**document, "name": name}
    folder, slash, last = output.rstrip("/").rpartition("/")
    if folder.endswith(("/", ":")) and "://" in output:  # a bucket as a whole
        raise ConfigError(
            f"there is nothing next to the output {output}; give --set output=URI, too", field="--name", code="conflict"
        )
    if last in (".", ".."):
        raise ConfigError(
            f"there is nothing next to the output {output!r}; give --set output=PATH, too",
            field="--name",
            code="conflict",
        )
    return {**document, "name": name, "output": f"{folder}{slash}{name}"}


def _placed_setting(setting: Setting) -> Setting:
    """The setting with a URI instead of a path."""
    value = setting.value
    if setting.path in _PLACE_FIELDS and isinstance(value, str) and value and not value.startswith(PACKAGE):
        return Setting(setting.path, as_uri(value))
    if setting.path[:1] == ("trainers",):
        return _placed_weights(setting)
    return setting


def _placed_weights(setting: Setting) -> Setting:
    rest, value = setting.path[2:], setting.value
    if rest == ("weights",) and isinstance(value, str) and names_place(value):
        return Setting(setting.path, as_uri(value))
    return Setting(setting.path, _placed_trainer(value, Path())) if not rest else setting


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
        "data": spec.data.model_copy(
            update={name: uri(text) for name in _PLACES if (text := getattr(spec.data, name))}
        ),
        "trainers": {
            name: trainer.model_copy(update={"weights": uri(trainer.weights)} if trainer.weights else {})
            for name, trainer in spec.trainers.items()
        },
    }
    changes = {name: value for name, value in changes.items() if value}
    if spec.predictor is not None:
        changes["predictor"] = spec.predictor.model_copy(update={"model": uri(spec.predictor.model)})
    if spec.extract is not None:
        places = {name: uri(text) for name in ("model", "weights") if (text := getattr(spec.extract, name))}
        changes["extract"] = spec.extract.model_copy(update=places)
    return spec.model_copy(update=changes)
