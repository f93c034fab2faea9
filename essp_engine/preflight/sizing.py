"""Computes how large a job's clips can get.

Credits are reserved before decoding, so each part of a clip (`ClipParts`) needs an upper bound. It follows from the
sizes of clips and of the values that the streams compute (`streams.py`), and the codec's worst case. If videos differ
in size, the largest one of a phase counts until a clip is decoded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from essp_common.errors import ConfigError
from essp_common.job.clip_spec import CodecSpec
from essp_common.job.spec import JobSpec
from essp_common.pb.v1.messages_pb2 import Purpose
from essp_engine.features.port import ArraySpec
from essp_engine.planning.phases import Phases
from essp_engine.preflight.streams import Stream, further_clips
from essp_engine.seeding.clip_parts import ClipParts
from essp_engine.video.codec import max_encoded_bytes, raw_bytes
from essp_engine.video.joined import joined_bytes
from essp_engine.video.motion_layout import DTYPE, motion_shape


def parts_of(spec: JobSpec) -> ClipParts:
    """The parts of each clip of a job."""
    return ClipParts({name: stream.feature for name, stream in spec.streams.items()}, spec.readers())


def sizes_of(
    phases: Phases,
    clips: Mapping[Purpose, Mapping[ArraySpec, ArraySpec]],
    streams: Mapping[str, Stream],
    parts: ClipParts,
) -> dict[Purpose, dict[ArraySpec, list[int]]]:
    """For each kind of phase and each size of its clips, as features see them, the most bytes of each part. `clips`:
    see `decoded_clips`.

    Raises `ConfigError` for clips and values that the codec cannot store.
    """
    return {
        purpose: _sizes(phases.spec, clips[purpose], further_clips(phases.spec, view), streams, parts)
        for purpose, view in phases.views
    }


def with_batches(spec: JobSpec, sizes: Iterable[Mapping[ArraySpec, Sequence[int]]]) -> JobSpec:
    """The job with the `batch_size` of loops that limit their batches in pixels: the number of the largest clips that
    take as many bytes as a batch, for which the budget must have room. `sizes`: of each kind of phase (`sizes_of`)."""
    limits = {name: consumer.batch_pixels for name, consumer in spec.consumers.items() if consumer.batch_pixels}
    if not limits:
        return spec
    of_views = sum(view.frames * view.resize.height * view.resize.width for view in spec.clip.further.values())
    found = [
        (sum(parts), math.prod(seen.shape[:3]) + of_views) for of_phase in sizes for seen, parts in of_phase.items()
    ]
    largest, a_pixel = max(size for size, _ in found), max(size / pixels for size, pixels in found)
    consumers = {
        name: consumer.model_copy(update={"batch_size": math.ceil(limits[name] * a_pixel / largest) + 1})
        if name in limits
        else consumer
        for name, consumer in spec.consumers.items()
    }
    return spec.model_copy(update={"consumers": consumers})


def _sizes(
    spec: JobSpec,
    clips: Mapping[ArraySpec, ArraySpec],
    further: Sequence[ArraySpec],
    streams: Mapping[str, Stream],
    parts: ClipParts,
) -> dict[ArraySpec, list[int]]:
    sizes = {}
    for seen, stored in clips.items():
        views = [_most_bytes("clip", view, spec.clip.codec) for view in (stored, *further)]
        if spec.clip.motion:
            views.append(raw_bytes((stored.shape[0], *motion_shape(*seen.shape[1:3])), DTYPE))
        sizes[seen] = [joined_bytes(views) if len(views) > 1 else views[0]]
        sizes[seen] += [
            _most_bytes(f"streams.{name}", streams[name].made[seen], spec.streams[name].codec) for name in parts.streams
        ]
    return sizes


def _most_bytes(field: str, array: ArraySpec, codec: CodecSpec) -> int:
    """The largest size in bytes of an array as a value of the cache. `field`: what sets it."""
    try:
        return max_encoded_bytes(array.shape, array.dtype, codec.name)
    except ConfigError as error:
        raise error.within(field) from error
