"""A predict job sees what its model was trained on: the same frames of a clip at the same size, the same features.

A model gives scores for other inputs as well, and they look like good ones. So a job that leaves `clip` or `streams`
out gets those of its model, and one that gives them has to give the same. Only how values are stored in the cache may
differ.
"""

from __future__ import annotations

from typing import Any

from essp_common.artifacts.fused_model import FusedModel, open_model
from essp_common.errors import ConfigError, PermanentError
from essp_common.job.clip_spec import ClipSpec, StreamSpec
from essp_common.job.spec import JobSpec, PredictorSpec
from essp_common.wiring import Stores

_STORED = "codec"
_REMEDY = "leave `clip` and `streams` out, and they are taken from the model"


def with_inputs_of_model(spec: JobSpec, stores: Stores) -> JobSpec:
    """The job with `clip` and `streams` of its model where it has none of its own; a training job as it is.

    Raises `ConfigError`, which names the field, if there is no model, or if the model was trained on other inputs.
    """
    if spec.predictor is None:
        return spec
    model = _model(spec.predictor.model, stores)
    _check_highlight(spec.predictor, model)
    needed = {member.stream: model.streams[member.stream] for member in model.deciding}
    given = spec.model_fields_set
    if "clip" in given:
        _compare("clip", spec.clip, model.clip)
    if "streams" in given:
        _compare_streams(spec.streams, needed)
    return spec.model_copy(
        update={
            "clip": spec.clip if "clip" in given else model.clip,
            "streams": spec.streams if "streams" in given else needed,
        }
    )


def _model(uri: str, stores: Stores) -> FusedModel:
    try:
        return open_model(stores, uri)[1]
    except (ConfigError, PermanentError) as error:
        raise ConfigError(f"predictor.model: {error}") from error


def _check_highlight(predictor: PredictorSpec, model: FusedModel) -> None:
    if predictor.highlight is None:
        return
    if model.rule is None:
        raise ConfigError(
            f"predictor.highlight: the model was fused by {model.label}, which itself weighs clips; leave it out"
        )
    if predictor.highlight.weight == "actionness" and model.background is None:
        raise ConfigError(
            "predictor.highlight.weight: actionness needs a model that was trained with sampling.background; use "
            "contrast"
        )


def _compare_streams(given: dict[str, StreamSpec], needed: dict[str, StreamSpec]) -> None:
    if missing := sorted(needed.keys() - given.keys()):
        raise ConfigError(f"streams: the model needs {', '.join(missing)}; {_REMEDY}")
    if unknown := sorted(given.keys() - needed.keys()):
        raise ConfigError(f"streams.{unknown[0]}: the model has no such stream; {_REMEDY}")
    for name, stream in needed.items():
        _compare(f"streams.{name}", given[name], stream)


def _compare(where: str, given: ClipSpec | StreamSpec, trained: ClipSpec | StreamSpec) -> None:
    """Raises `ConfigError` for the first field that differs."""
    for field, ours, theirs in _fields(where, given.model_dump(), trained.model_dump()):
        if ours != theirs:
            raise ConfigError(f"{field}: {_shown(ours)}, but the model was trained with {_shown(theirs)}; {_REMEDY}")


def _shown(value: Any) -> str:
    return "not given" if value is None else repr(value)


def _fields(where: str, given: dict[str, Any], trained: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    found: list[tuple[str, Any, Any]] = []
    for name in sorted((given.keys() | trained.keys()) - {_STORED}):
        ours, theirs = given.get(name), trained.get(name)
        if isinstance(ours, dict) and isinstance(theirs, dict):
            found += _fields(f"{where}.{name}", ours, theirs)
        else:
            found.append((f"{where}.{name}", ours, theirs))
    return found
