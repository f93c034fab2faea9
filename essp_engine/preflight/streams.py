"""What the decoders and extractors of a job make of its videos: the sizes of its clips, and what its streams give.

Errors name the stream, since a job may use one feature twice; all streams that cannot be made are named at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from essp_common.catalog.view import CatalogView
from essp_common.errors import ConfigError
from essp_common.job.feature_layout import FeatureLayout
from essp_common.job.spec import JobSpec
from essp_common.messages.recipe import recipe_of
from essp_common.pb.v1.messages_pb2 import Resize
from essp_engine.features.declared import DeclaredFeature
from essp_engine.features.port import ArraySpec, Needs
from essp_engine.features.registry import frames_of, layout_of, needs_of, output_of
from essp_engine.preflight.refusal import refuse
from essp_engine.video.geometry import GRAY, frame_shape, output_size

_AXES = 4
"""Of a picture: `(T, H, W, C)`."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream as its consumers get it."""

    feature: str
    layout: FeatureLayout
    """How its values are read."""
    needs: Needs
    """What it is computed from."""
    made: Mapping[ArraySpec, ArraySpec]
    """For each size of clips: a clip, as features see it -> the values that are made of it."""

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of its values, one for each size of clips."""
        return tuple(values.shape for values in self.made.values())

    @property
    def is_picture(self) -> bool:
        """Whether a network here can learn from it: `(T, H, W, C)`, and not a descriptor."""
        return self.layout.values != "descriptor" and all(len(shape) == _AXES for shape in self.shapes)


def decoded_clips(spec: JobSpec, view: CatalogView) -> dict[ArraySpec, ArraySpec]:
    """The clips that decoders make of these videos, one for each size: as features see them -> as the cache has them.

    Frames that are kept as YUV 4:2:0 are seen as RGB. Raises `ConfigError` for sizes that cannot be.
    """
    resize = recipe_of(spec).resize
    channels = 1 if resize.pixels == GRAY else 3
    alike = resize.mode in (Resize.EXACT, Resize.CROP)
    clips = {}
    for (height, width), video in (view.a_size if alike else view.sizes).items():
        name = view.rows.text("id", video)
        if not (alike or height):
            raise ConfigError(
                f"{spec.clip.resize.mode} keeps the size of each image, and the size of a record that is a file "
                f"({name}) is not known; use crop or exact, or build the records as numbers (essp records build "
                "--encode raw)",
                field="clip.resize.mode",
                code="conflict",
            )
        seen = ArraySpec((spec.clip.frames, *output_size(resize, height, width), channels), "uint8")
        try:
            stored = frame_shape(resize, height, width)
        except ConfigError as error:
            raise ConfigError(f"{error.problem} (video {name})", field=error.field, code=error.code) from error
        clips[seen] = ArraySpec((spec.clip.frames, *stored), "uint8")
    return clips


def streams_of(
    spec: JobSpec, clips: Collection[ArraySpec], declared: Mapping[str, DeclaredFeature] | None = None
) -> dict[str, Stream]:
    """The streams of a job, by name. `clips`: as features see them. `declared`: features of other images.

    Raises `ConfigError` for features that are not known, parameters that they do not have, and clips that are too
    short.
    """
    streams, problems = {}, []
    for name in spec.streams:
        try:
            streams[name] = _stream(spec, name, clips, declared)
        except ConfigError as error:
            problems.append(error)
    refuse(problems)
    return streams


def _stream(
    spec: JobSpec, name: str, clips: Collection[ArraySpec], declared: Mapping[str, DeclaredFeature] | None
) -> Stream:
    feature, params = spec.streams[name].feature, spec.streams[name].params
    place = f"streams.{name}"
    with _within(f"{place}.feature"):
        layout, needs = layout_of(feature, declared), needs_of(feature, declared)
    with _within(place, "params"):
        frames = frames_of(feature, params, declared)
    if spec.data.records and frames > 1:
        raise ConfigError(
            f"{feature} needs clips of {frames} frames, and a record (data.records) is one frame; use rgb with one "
            "frame, or train on videos (data.catalog)",
            field=f"{place}.params.frames" if feature == "rgb" else f"{place}.feature",
            code="conflict",
        )
    with _within(place, "params"):
        made = {clip: output_of(feature, params, clip, declared, spec.clip.snippets) for clip in clips}
    return Stream(feature, layout, needs, made)


@contextmanager
def _within(place: str, section: str = "") -> Iterator[None]:
    """Errors of this block are about this place; those about a field, about a field of `section` there."""
    try:
        yield
    except ConfigError as error:
        raise error.within(f"{place}.{section}" if error.field and section else place) from error
