"""The job of `essp extract`: a job with `extract`, from a few words instead of a file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from essp_common.errors import ConfigError
from essp_common.job.network_limits import limits_of
from essp_common.job.settings import Setting, with_settings
from essp_common.job.spec import JobSpec
from essp_common.job.trainer_spec import AugmentSpec
from essp_common.validation import problems
from essp_engine.features.registry import frames_of

_CROP: int = AugmentSpec.model_fields["crop"].default
_SCALE: float = AugmentSpec.model_fields["evaluation_scale"].default
_SIDE = 256
"""Side of the frames that features without a network are computed from, as in a job file."""
_CLIP_FRAMES = 16
"""Frames of a clip for a network of clips that accepts any number."""
_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Asked:
    """What a user asks for. None: the default."""

    network: str | None = None
    weights: str | None = None
    """URI, or `package:NAME`."""
    model: str | None = None
    """URI of a fused model."""
    features: Sequence[str] = ("rgb",)
    every_s: float | None = None
    every_frames: int | None = None
    clips: int | None = None
    """Clips of each video, evenly spaced, instead of a distance."""
    frames: int | None = None
    stride: int | None = None
    size: int | None = None
    """Side of the frames."""
    crop: int | None = None
    """Side of what the network sees."""
    extract: Mapping[str, Any] | None = None
    """Further fields of `extract`."""


def extraction_job(
    asked: Asked, name: str, output: str, catalog: str, settings: Sequence[Setting] = (), side: int | None = None
) -> JobSpec:
    """The job. `settings`: other values for its fields. `side`: the only side that the network accepts.

    Raises `ConfigError`, which names fields of a job.
    """
    extract = {"network": asked.network, "weights": asked.weights, "model": asked.model, **(asked.extract or {})}
    document: dict[str, Any] = {
        "name": name,
        "output": output,
        "data": {"catalog": catalog},
        "sampling": {"kind": "uniform", **_distance(asked)},
        "extract": {field: value for field, value in extract.items() if value is not None},
        "limits": {"dead_ratio": 1.0},  # each bad video has an error of its own
    }
    if asked.model is None:
        crop = asked.crop or side or min(_CROP, asked.size or _CROP)
        size = asked.size or (math.ceil(crop / _SCALE) if asked.network else _SIDE)
        if asked.network is not None:
            document["extract"]["crop"] = crop
        document["clip"] = {
            "frames": asked.frames or frames_for(asked.network, asked.features),
            **({} if asked.stride is None else {"stride": asked.stride}),
            "resize": {"mode": "crop", "height": size, "width": size},
        }
        document["streams"] = {feature: {"feature": feature} for feature in asked.features}
    else:
        _refuse_beside_model(asked)
    try:
        return JobSpec.model_validate(with_settings(document, settings))
    except ValidationError as error:
        raise ConfigError.together(problems(error, JobSpec)) from error


def _distance(asked: Asked) -> dict[str, Any]:
    given = {"every_s": asked.every_s, "every_frames": asked.every_frames, "clips_per_video": asked.clips}
    found = {field: value for field, value in given.items() if value is not None}
    if len(found) > 1:
        first, second, *_ = found
        raise ConfigError(
            f"sampling.{first} gives the clips of a video, too; give one of them",
            field=f"sampling.{second}",
            code="conflict",
        )
    return found or {"every_s": _EVERY_S}


def frames_for(network: str | None, features: Sequence[str] = ("rgb",)) -> int:
    """As many frames as the network or the features need."""
    limits = None if network is None else limits_of(network).clip_frames
    if limits is None:
        try:
            return max(frames_of(feature, {}) for feature in features)
        except ConfigError as error:
            raise error.within("streams") from error
    least, most = limits
    return min(max(least, _CLIP_FRAMES), most)


def _refuse_beside_model(asked: Asked) -> None:
    given = {
        "streams": tuple(asked.features) != ("rgb",),
        "clip.frames": asked.frames,
        "clip.stride": asked.stride,
        "clip.resize": asked.size,
        "extract.crop": asked.crop,
    }
    for field in (field for field, value in given.items() if value):
        raise ConfigError("the model has its own; leave it out", field=field, code="conflict")
