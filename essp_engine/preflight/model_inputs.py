"""Gives a job that uses a fused model the inputs that its model was trained on: the same frames, sizes and features.

A model would score any other inputs, too, and the scores would look plausible. So a job without `clip` or `streams`
gets those of its model, and a job with them must have the same. Only the codec in the cache may differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from essp_common.artifacts.fused_model import FusedModel, open_model
from essp_common.errors import ConfigError, PermanentError
from essp_common.job.clip_spec import ClipSpec, StreamSpec
from essp_common.job.spec import JobSpec, PredictorSpec
from essp_common.validation import refuse
from essp_common.wiring import Stores

_STORED = "codec"
_REMEDY = "leave out `clip` and `streams`, which default to those of the model"


def model_of(spec: JobSpec, stores: Stores) -> FusedModel | None:
    """The fused model that a job names; None: it names none. Raises `ConfigError` if the model cannot be read."""
    if spec.fused_model is None:
        return None
    field, uri = spec.fused_model
    try:
        return open_model(stores, uri)[1]
    except (ConfigError, PermanentError) as error:
        raise ConfigError.at(field, error) from error


def with_inputs(spec: JobSpec, model: FusedModel | None) -> JobSpec:
    """The job with `clip` and `streams` of its model, where it does not give them; other jobs as they are, except that
    a job that extracts uses all frames of a clip, if it does not say how many.

    Raises one `ConfigError` for all fields that differ from those of the model.
    """
    if model is None:
        return _with_all_frames(spec)
    needed = {member.stream: model.streams[member.stream] for member in model.deciding}
    given = spec.model_fields_set
    problems = [*_of_records(spec, model), *(_of_highlight(spec.predictor, model) if spec.predictor else ())]
    if "clip" in given:
        problems += _differing("clip", spec.clip, model.clip)
    if "streams" in given:
        problems += _of_streams(spec.streams, needed)
    refuse(problems)
    clip, sampling = spec.clip if "clip" in given else model.clip, spec.sampling
    if clip.of_whole_video and "clips_per_video" not in sampling.model_fields_set:
        sampling = sampling.model_copy(update={"clips_per_video": 1})
    streams = spec.streams if "streams" in given else needed
    return spec.model_copy(update={"clip": clip, "sampling": sampling, "streams": streams})


def _with_all_frames(spec: JobSpec) -> JobSpec:
    if spec.extract is None or spec.extract.model is not None:
        return spec
    streams = {
        name: stream.model_copy(update={"params": {"frames": spec.clip.of(stream.view).frames, **stream.params}})
        if stream.feature == "rgb"
        else stream
        for name, stream in spec.streams.items()
    }
    return spec.model_copy(update={"streams": streams})


def _of_records(spec: JobSpec, model: FusedModel) -> Iterator[ConfigError]:
    if spec.data.records and model.clip.frames != 1:
        yield ConfigError(
            f"the model was trained on clips of {model.clip.frames} frames, and a record (data.records) is one frame; "
            "use a model that was trained on clips of one frame, or classify videos (data.catalog)",
            field=spec.fused_model[0] if spec.fused_model else "",
            code="conflict",
        )


def _of_highlight(predictor: PredictorSpec, model: FusedModel) -> Iterator[ConfigError]:
    if predictor.highlight is None:
        return
    if model.rule is None:
        yield ConfigError(
            f"the model was fused by {model.label}, which itself weighs clips; leave it out",
            field="predictor.highlight",
            code="conflict",
        )
    elif predictor.highlight.weight == "actionness" and model.background is None:
        yield ConfigError(
            "actionness needs a model that was trained with sampling.background; use contrast",
            field="predictor.highlight.weight",
            code="conflict",
        )


def _of_streams(given: dict[str, StreamSpec], needed: dict[str, StreamSpec]) -> Iterator[ConfigError]:
    if missing := sorted(needed.keys() - given.keys()):
        yield ConfigError(f"the model needs {', '.join(missing)}; {_REMEDY}", field="streams", code="missing")
    for name in sorted(given.keys() - needed.keys()):
        yield ConfigError(f"the model has no such stream; {_REMEDY}", field=f"streams.{name}", code="unknown")
    for name in sorted(needed.keys() & given.keys()):
        yield from _differing(f"streams.{name}", given[name], needed[name])


def _differing(where: str, given: ClipSpec | StreamSpec, trained: ClipSpec | StreamSpec) -> Iterator[ConfigError]:
    for field, ours, theirs in _fields(where, given.model_dump(), trained.model_dump()):
        if ours != theirs:
            yield ConfigError(
                f"{_shown(ours)}, but the model was trained with {_shown(theirs)}; {_REMEDY}",
                field=field,
                code="conflict",
            )


def _shown(value: Any) -> str:
    return "not given" if value is None else repr(value)


def _fields(where: str, given: dict[str, Any], trained: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name in sorted((given.keys() | trained.keys()) - {_STORED}):
        ours, theirs = given.get(name), trained.get(name)
        if isinstance(ours, dict) and isinstance(theirs, dict):
            yield from _fields(f"{where}.{name}", ours, theirs)
        else:
            yield f"{where}.{name}", ours, theirs
