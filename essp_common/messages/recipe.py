"""The processing of each clip of a job, which is part of every seed."""

from __future__ import annotations

import json

from essp_common.job.clip_spec import ClipSpec, CodecSpec
from essp_common.job.spec import JobSpec
from essp_common.pb.v1.messages_pb2 import FrameCodec, Recipe, Resize, StreamRequest, View
from essp_common.runtime import ids

_MODES = {
    "none": Resize.NONE,
    "short_side": Resize.SHORT_SIDE,
    "exact": Resize.EXACT,
    "crop": Resize.CROP,
    "bounded": Resize.BOUNDED,
}


def recipe_of(spec: JobSpec) -> Recipe:
    """The recipe of every phase of a job."""
    readers: dict[str, list[str]] = {stream: [] for stream in spec.streams}
    for consumer, stream in spec.readers().items():
        readers[stream].append(consumer)
    return Recipe(
        resize=resize_of(spec.clip),
        codec=_codec(spec.clip.codec),
        streams=[
            StreamRequest(
                stream=name,
                feature=stream.feature,
                params_json=json.dumps(stream.params, sort_keys=True),
                codec=_codec(stream.codec),
                consumers=readers[name],
                view=stream.view,
            )
            for name, stream in spec.streams.items()
            if readers[name]
        ],
        ttl_s=spec.limits.ttl_s,
        strict=spec.limits.strict,
        snippets=spec.clip.snippets,
        motion=spec.clip.motion,
        views=[View(name=name, resize=resize_of(spec.clip.of(name))) for name in spec.clip.views],
    )


def resize_of(clip: ClipSpec) -> Resize:
    """The size and the pixel format of decoded frames, in the form that the reader uses."""
    resize = clip.resize
    made = Resize(
        mode=_MODES[resize.mode],
        height=resize.height,
        width=resize.width,
        interpolation=resize.interpolation,
        pixels=clip.pixels,
    )
    if resize.mode == "bounded":
        together = clip.frames if resize.pixels_of == "clip" else 0
        made.min_pixels = resize.min_pixels or resize.multiple_of**2 * (together or 1)
        made.max_pixels = resize.max_pixels or 0
        made.multiple_of, made.frames = resize.multiple_of, together
    return made


def clip_consumers(recipe: Recipe) -> list[str]:
    """The consumers of a clip's frames: one extractor for each extracted stream, and the consumers of `rgb`
    themselves."""
    consumers: list[str] = []
    for stream in recipe.streams:
        if stream.feature == "rgb":
            consumers.extend(stream.consumers)
        else:
            consumers.append(ids.extractor_consumer(stream.stream))
    return consumers


def _codec(codec: CodecSpec) -> FrameCodec:
    return FrameCodec(name=codec.name, quality=codec.quality, subsampling=codec.subsampling)
