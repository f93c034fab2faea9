"""Computes how large a job's clips can get, and how many the budget has to hold.

Credits are reserved before decoding, so each part of a clip (`ClipParts`) needs an upper bound. It follows from the
sizes of clips and of the values that the streams compute (`streams.py`), and the codec's worst case. If videos differ
in size, the largest one of a phase counts until a clip is decoded.

A trainer frees the clips of a batch together, and the clips of a locality window arrive in any order. So a job can only
proceed if the budget holds a batch and, with locality, a window (`budget_problem`).

A large budget also serves stragglers (`ledger/stragglers.py`). Half of it is for the catch-up queues, in equal shares
for all trainers but one. Each share must hold two batches: one in training and one in preparation. Users' loops come
and go, and all of them may have to catch up at once: a job with `consumers` has a share for each of them, which holds
at least one batch. If a share cannot hold a window as well, the queue issues smaller parts of a window.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from essp_common.errors import ConfigError
from essp_common.job.clip_spec import CodecSpec
from essp_common.job.spec import JobSpec
from essp_common.pb.v1.messages_pb2 import TRAIN, VALIDATION, Purpose
from essp_common.quantities import counted, size
from essp_engine.features.port import ArraySpec
from essp_engine.planning.phases import Phases
from essp_engine.preflight.streams import Stream, further_clips
from essp_engine.seeding.clip_parts import ClipParts
from essp_engine.video.codec import max_encoded_bytes, raw_bytes
from essp_engine.video.joined import joined_bytes
from essp_engine.video.motion_layout import DTYPE, motion_shape

_UNIT_CLIPS, _UNIT_FRAMES = 32, 512
"""Limits of one work unit; the larger one applies: enough clips to share decoding from a keyframe, and few enough to
use several decoders."""
_PREDICTOR_BATCH = 16
"""Clips that a predictor scores and frees together."""
_MIB = 2**20


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


def catch_up_bytes(spec: JobSpec, bounds: Sequence[Sequence[int]]) -> int:
    """Bytes of the budget for the catch-up queue of each trainer or loop; 0: all trainers keep in step."""
    if spec.consumers:
        return spec.limits.budget // 2 // len(spec.consumers)
    others = len(spec.trainers) - 1
    if spec.limits.coupled or others < 1:
        return 0
    share = spec.limits.budget // 2 // others
    return share if share // _largest(bounds) >= _at_once(spec, batches=2) else 0


def catch_up_window(spec: JobSpec, bounds: Sequence[Sequence[int]]) -> int:
    """Indices that a catch-up queue issues together: the largest part of a window that fits into its share; 0: all.

    A part divides the window, so that no work unit crosses the point where a straggler joins the others.
    """
    window = spec.sampling.issue_window
    room = catch_up_bytes(spec, bounds) // _largest(bounds) - _batch(spec)[0] + 1
    if not spec.consumers or room >= window:
        return 0
    return max(part for part in range(1, max(1, room) + 1) if window % part == 0)


def most_unit_clips(spec: JobSpec) -> int:
    """Most clips of one work unit, if the budget has room for any number.

    Records share no decoding, and messages of 32 cost as little per record as messages of 512. Smaller units let a
    window employ several decoders.
    """
    if spec.data.records:
        return _UNIT_CLIPS
    frames = spec.clip.frames + sum(view.frames for view in spec.clip.further.values())
    return max(_UNIT_CLIPS, _UNIT_FRAMES // frames)


def lead_clips(phases: Phases) -> int:
    """Clips by which a trainer may be ahead of the slowest one if all keep in step; 0: a prediction has no bound.

    It is `limits.lead` passes, or the last phase if that is longer: the rest of a phase is never held back.
    """
    if not phases.spec.trainers:
        return 0
    a_pass = sum(plan.clips for plan in phases.plans if plan.purpose in (TRAIN, VALIDATION) and plan.epoch == 0)
    return max(phases.spec.limits.lead * a_pass, *(plan.clips for plan in phases.plans))


def uncoupled_budget(spec: JobSpec, bounds: Sequence[Sequence[int]]) -> int:
    """The smallest budget, in bytes, that has room for catch-up queues."""
    return 2 * (len(spec.trainers) - 1) * _at_once(spec, batches=2) * _largest(bounds)


def enough_budget(spec: JobSpec, bounds: Sequence[Sequence[int]]) -> int:
    """The smallest budget, in bytes, that lets consumers take one batch while the next ones are made."""
    clips = max(_at_once(spec, batches=4), least_clips(spec), 4 * _batch(spec)[0] * len(spec.consumers))
    return clips * _largest(bounds)


def budget_problem(spec: JobSpec, bounds: Sequence[Sequence[int]]) -> ConfigError | None:
    """What is wrong with a budget that is too small for the job to proceed; None: it is large enough."""
    largest, needed, window = _largest(bounds), least_clips(spec), spec.sampling.issue_window
    held = spec.limits.budget // largest
    if held >= needed:
        return None
    _, culprit = _batch(spec)
    cause = culprit + (f" and sampling.{_window_field(spec)} = {window} need" if window else " needs")
    return ConfigError(
        f"{size(spec.limits.budget)} holds {counted(held, 'clip')} of up to {size(largest)}, but {cause} {needed} at "
        f"once; raise it to {-(-needed * largest // _MIB)}MiB or more, or lower the others, clip.frames or clip.resize",
        field="limits.budget",
        code="range",
    )


def unit_clips(spec: JobSpec, bounds: Sequence[Sequence[int]]) -> int:
    """Most clips of one work unit, if the budget is large enough."""
    held = (catch_up_bytes(spec, bounds) or spec.limits.budget) // _largest(bounds)
    return min(most_unit_clips(spec), spec.sampling.issue_window or held - _at_once(spec) + 1)


def least_clips(spec: JobSpec) -> int:
    """Clips that the budget must hold for the job to proceed.

    With fewer, consumers may lack the rest of a batch.

    With loops, half of the budget holds a batch for each. The other half is enough for those that keep in step, if
    there are several.
    """
    loops = len(spec.consumers)
    return max((2 if loops > 1 else 1) * _at_once(spec), 2 * _batch(spec)[0] * loops)


def _largest(bounds: Sequence[Sequence[int]]) -> int:
    return max(sum(parts) for parts in bounds)


def _batch(spec: JobSpec) -> tuple[int, str]:
    """The largest number of clips that are freed together, and the setting that leads to it."""
    batches = [
        (reader.batch_size, f"trainers.{name}.batch_size = {reader.batch_size}")
        for name, reader in spec.trainers.items()
    ]
    for name, reader in spec.consumers.items():
        field, value = (
            ("batch_pixels", reader.batch_pixels) if reader.batch_pixels else ("batch_size", reader.batch_size)
        )
        batches.append((reader.batch_size, f"consumers.{name}.{field} = {value}"))
    return max(batches, default=(_PREDICTOR_BATCH, f"the predictor's batch = {_PREDICTOR_BATCH}"))


def _window_field(spec: JobSpec) -> str:
    return "window" if spec.sampling.has_visits else "locality"


def _at_once(spec: JobSpec, batches: int = 1) -> int:
    """Clips that the budget must hold so that a consumer gets this number of batches, in any order of issue."""
    return batches * _batch(spec)[0] + max(spec.sampling.issue_window, 1) - 1


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
