"""A fused model of which there is the manifest only: enough for everybody but the predictor."""

from __future__ import annotations

from collections.abc import Mapping

from essp_common.artifacts.fused_model import FusedModel, Member, write_model
from essp_common.artifacts.manifest import ModelDescription
from essp_common.job.clip_spec import ClipSpec, StreamSpec
from essp_common.job.feature_layout import COLOURS
from essp_common.wiring import open_store

SMALL = ModelDescription(
    name="small",
    feature="rgb",
    layout=COLOURS,
    channels=3,
    classes=("a", "b"),
    dropout=0.5,
    crop=48,
    evaluation_scale=0.875,
)
"""A network for frames, of the two classes that all models here have."""


def manifest_at(output: str, clip: ClipSpec, streams: Mapping[str, StreamSpec], weights: Mapping[str, float]) -> str:
    """Write it as the model of the job with this output; the output. `weights`: stream -> weight of its one member."""
    model = FusedModel(
        job="trained",
        classes=SMALL.classes,
        clip=clip,
        clips_per_video=3,
        streams=dict(streams),
        members=tuple(_member(stream, weight) for stream, weight in weights.items()),
        strategy="average",
        rule="mean",
        strategies=(),
        validation=None,
        test=None,
        versions={},
    )
    write_model(open_store(output), model)
    return output


def _member(stream: str, weight: float) -> Member:
    return Member(
        trainer=stream, stream=stream, weight=weight, model=SMALL, file="x", sha256="", checkpoint="", epoch=0
    )
