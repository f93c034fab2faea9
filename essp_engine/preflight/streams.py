"""What the decoders and extractors of a job compute: the sizes of its clips, and the shapes of its streams.

Errors name the stream, since a job may use one feature twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from essp_common.catalog.rows import Rows
from essp_common.catalog.view import CatalogView
from essp_common.errors import ConfigError
from essp_common.job.feature_layout import FeatureLayout
from essp_common.job.spec import JobSpec
from essp_common.messages.recipe import resize_of
from essp_common.pb.v1.messages_pb2 import Resize
from essp_common.validation import refuse
from essp_engine.features.declared import DeclaredFeature
from essp_engine.features.port import ArraySpec, Needs
from essp_engine.features.registry import frames_of, layout_of, needs_of, output_of
from essp_engine.video.geometry import GRAY, GRAY16, frame_dtype, frame_shape, output_size

_ONE_CHANNEL = (GRAY, GRAY16)
_AXES = 4
"""The axes of a picture: `(T, H, W, C)`."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream, as its consumers receive it."""

    feature: str
    layout: FeatureLayout
    """How to read its values."""
    needs: Needs
    """What it is computed from."""
    made: Mapping[ArraySpec, ArraySpec]
    """For each size of clips: a clip, as features see it -> the values computed from it."""

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of its values, one for each size of clips."""
        return tuple(values.shape for values in self.made.values())

    @property
    def is_picture(self) -> bool:
        """Whether a network can learn from it: its values are `(T, H, W, C)`, and not descriptors."""
        return self.layout.values != "descriptor" and all(len(shape) == _AXES for shape in self.shapes)


def decoded_clips(spec: JobSpec, view: CatalogView) -> dict[ArraySpec, ArraySpec]:
    """The clips that decoders make of these videos, one for each size: as features see them -> as the cache stores
    them.

    Features see YUV 4:2:0 frames as RGB. Raises `ConfigError` for sizes that are impossible or not known.
    """
    resize = resize_of(spec.clip)
    channels, dtype = 1 if resize.pixels in _ONE_CHANNEL else 3, frame_dtype(resize)
    alike = resize.mode in (Resize.EXACT, Resize.CROP)
    clips = {}
    for (height, width), video in (view.a_size if alike else view.sizes).items():
        name = view.rows.text("id", video)
        if not (alike or height):
            raise ConfigError(
                f"with {spec.clip.resize.mode}, sizes depend on the size of each image, and a record that is a file "
                f"({name}) has none; use crop or exact, or build the records as numbers (essp records build "
                "--encode raw)",
                field="clip.resize.mode",
                code="conflict",
            )
        seen = ArraySpec((spec.clip.frames, *output_size(resize, height, width), channels), dtype)
        try:
            stored = frame_shape(resize, height, width)
        except ConfigError as error:
            raise ConfigError(f"{error.problem} (video {name})", field=error.field, code=error.code) from error
        clips[seen] = ArraySpec((spec.clip.frames, *stored), dtype)
    return clips


def further_clips(spec: JobSpec, view: CatalogView) -> list[ArraySpec]:
    """For each further view, its part of a clip as the cache stores it; all videos of a view give one size."""
    return [
        ArraySpec((clip.frames, *frame_shape(resize, *_a_size(view.further[name]))), frame_dtype(resize))
        for name, clip in spec.clip.further.items()
        for resize in (resize_of(clip),)
    ]


def _a_size(rows: Rows) -> tuple[int, int]:
    """The height and width of any video; frames are scaled to the same size."""
    height, width = (int(rows.numbers(name).max(initial=1)) for name in ("height", "width"))
    return height, width


def streams_of(
    spec: JobSpec, clips: Collection[ArraySpec], declared: Mapping[str, DeclaredFeature] | None = None
) -> dict[str, Stream]:
    """The streams of a job, by name. `clips`: as features see them. `declared`: features whose code is in other images.

    Raises one `ConfigError` for all unknown features, unknown parameters, and clips that are too short.
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
    view = spec.streams[name].view
    seen = spec.clip.of(view)
    sides = (seen.resize.height, seen.resize.width, 1 if seen.pixels in _ONE_CHANNEL else 3)
    of_view = ArraySpec((seen.frames, *sides), frame_dtype(resize_of(seen))) if view else None
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
        made = {clip: output_of(feature, params, of_view or clip, declared, spec.clip.snippets) for clip in clips}
    return Stream(feature, layout, needs, made)


@contextmanager
def _within(place: str, section: str = "") -> Iterator[None]:
    """Errors of this block name `place`; those about a field name this field, in `section` of it."""
    try:
        yield
    except ConfigError as error:
        raise error.within(f"{place}.{section}" if error.field and section else place) from error
