"""The weights that networks start from: they must exist, and must be those of the same network."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from essp_common.artifacts import layout
from essp_common.artifacts.checkpoint_files import BadCheckpoint
from essp_common.artifacts.extraction import Extraction, extraction_of
from essp_common.artifacts.fused_model import FusedModel
from essp_common.artifacts.removal import job_at
from essp_common.artifacts.trained import folder_of, trained
from essp_common.errors import ConfigError, NotFound, PermanentError
from essp_common.job.spec import JobSpec
from essp_common.job.trainer_spec import PACKAGE, weights_of
from essp_common.validation import refuse
from essp_common.wiring import Stores


def check_weights(spec: JobSpec, stores: Stores, resuming: Collection[str]) -> None:
    """Raises `ConfigError` for the weights of trainers that begin. `resuming`: trainers that do not need weights, since
    they have a checkpoint."""
    refuse(_problems(spec, stores, resuming))


def scored_with(spec: JobSpec, stores: Stores, model: FusedModel | None) -> FusedModel | Extraction | None:
    """What predictors compute from the clips of a job; None: they do not work on it. `model`: from `model_of`.

    Raises `ConfigError` for weights that cannot be read.
    """
    extract, field = spec.extract, "extract.weights"
    if extract is None:
        return model
    try:
        return extraction_of(extract, stores, model)
    except NotFound as error:
        remedy = _remedy(stores, extract.weights or "", extract.network or "")
        raise ConfigError(f"{error}; {remedy}", field=field, code="not_found") from error
    except (ConfigError, PermanentError) as error:
        raise ConfigError.at(field, error) from error


def _problems(spec: JobSpec, stores: Stores, resuming: Collection[str]) -> Iterator[ConfigError]:
    for name, trainer in spec.trainers.items():
        if name in resuming or trainer.weights is None or trainer.weights.startswith(PACKAGE):
            continue  # packaged weights are where the trainer runs
        try:
            _check_start(spec, trainer.model, trainer.weights, stores)
        except (ConfigError, NotFound, BadCheckpoint) as error:
            yield ConfigError.at(f"trainers.{name}.weights", error)


def _check_start(spec: JobSpec, network: str, weights: str, stores: Stores) -> None:
    if weights == spec.output or weights.startswith(f"{spec.output}/"):
        raise ConfigError(
            f"{weights} is in the output of this job, whose trainers run at the same time; train these weights in "
            "another job first",
            code="conflict",
        )
    other = trained(stores, weights)
    if other is None:
        store, key = stores.resolve(weights)
        try:
            store.head(key)
        except NotFound as error:
            raise NotFound(f"{error}; {_remedy(stores, weights, network)}") from error
    elif (model := other.manifest.model.name) != network:
        raise ConfigError(f"{weights} contains weights of {model}, not {network}; set model: {model}", code="conflict")


def _remedy(stores: Stores, weights: str, network: str) -> str:
    """What to do about weights that are not there."""
    if (named := folder_of(weights)) is not None:
        return f"no job has {named[0]} as its output; first run the job that trains {named[1]}"
    other = job_at(stores.under(weights))
    if other is None or not other.trainers:
        return weights_of(network)
    folders = ", ".join(f"{weights}/{layout.TRAINERS}{name}" for name in other.trainers)
    return f"it is the output of a job; name one of its trainers: {folders}"
