"""The job file that a user names: read, checked, and with its paths as URIs.

Paths in it (`catalog: catalog.parquet`, `output: runs/first`) are meant from the folder that the file is in, so that a
folder with a job can be moved, and be used from anywhere.
"""

from __future__ import annotations

from pathlib import Path

from essp.uris import as_uri
from essp_common.errors import ConfigError
from essp_common.job.documents import text_of
from essp_common.job.spec import JobSpec, parse_spec
from essp_common.job.trainer_spec import PACKAGE

_PLACES = ("catalog", "records", "records_validation", "records_test")


def read_job(path: Path) -> JobSpec:
    """The job in a file. Raises `ConfigError`, one line for each field that is wrong."""
    try:
        spec = parse_spec(text_of(path), str(path))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); `essp init` writes a job") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not a text file; `essp init` writes a job") from error
    return _placed(spec, path.absolute().parent)


def _placed(spec: JobSpec, folder: Path) -> JobSpec:
    """The job with URIs in place of paths."""

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
