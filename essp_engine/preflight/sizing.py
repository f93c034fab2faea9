"""Computes how large a job's clips can get, and how many the budget has to hold.

Credits are reserved before decoding, so each part of a clip (`ClipParts`) needs an upper bound. It follows from the
specification, the sizes of the videos in the catalog, the declarations of the extractors, and the codec's worst case.
If videos differ in size, the largest one of a phase counts until a clip is decoded.

A trainer frees the clips of a batch together, and the clips of a locality window arrive in any order. So a job can only
proceed if the budget holds a batch and, with locality, a window. Otherwise this module raises `ConfigError`.

A large budget also serves stragglers (`ledger/stragglers.py`). Half of it is for the catch-up queues, in equal shares
for all trainers but one. Each share has to hold two batches: one in training and one in the making. Loops of the user's
own come and go, and all of them may have to catch up at once: a job with `consumers` has a share for each of them,
which holds a batch at least. Where a share does not hold a window as well, less of a window is issued together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from essp_common.catalog.view import CatalogView
from essp_common.errors import ConfigError
from essp_common.job.clip_spec import CodecSpec
from essp_common.job.spec import JobSpec
from essp_common.messages.recipe import recipe_of
from essp_common.pb.v1.messages_pb2 import TRAIN, VALIDATION, Resize
from essp_common.quantities import size
from essp_engine.features.declared import DeclaredFeature
from essp_engine.features.port import ArraySpec
from essp_engine.planning.phases import Phases
from essp_engine.preflight.stream_outputs import stream_output
from essp_engine.seeding.clip_parts import ClipParts
from essp_engine.video.codec import max_encoded_bytes
from essp_engine.video.geometry import GRAY, frame_shape, output_size

_UNIT_CLIPS, _UNIT_FRAMES = 32, 512
"""Of one work unit, at most, whichever is more clips: enough to share decoding from a keyframe, and few enough to use
several decoders."""
_PREDICTOR_BATCH = 16
"""Clips that a predictor scores and frees together."""
_MIB = 2**20


def parts_of(spec: JobSpec) -> ClipParts:
    """The parts of each clip of a job."""
    return ClipParts({name: stream.feature for name, stream in spec.streams.items()}, spec.readers())


def bounds_of(
    phases: Phases, parts: ClipParts, declared: Mapping[str, DeclaredFeature] | None = None
) -> list[list[int]]:
    """For each phase, the largest size in bytes of each part of a clip. Raises `ConfigError` for impossible features.

    `declared`: registered features, whose code is in another image.
    """
    bounds = {purpose: _bounds(phases.spec, view, parts.streams, declared) for purpose, view in phases.views}
    return [bounds[purpose] for purpose, _ in phases.order]


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
    """Indices that a catch-up queue issues together: the largest part of a window that its share has room for; 0: all.

    A part divides the window, so that no work unit lies on both sides of the place where a straggler joins the others.
    """
    window = spec.sampling.issue_window
    room = catch_up_bytes(spec, bounds) // _largest(bounds) - _batch(spec)[0] + 1
    if not spec.consumers or room >= window:
        return 0
    return max(part for part in range(1, max(1, room) + 1) if window % part == 0)


def most_unit_clips(spec: JobSpec) -> int:
    """Most clips of one work unit, where the budget has room for any number.

    Records share no decoding, and 32 in a message cost as little each as 512, so a window of them has work for several
    decoders.
    """
    if spec.data.records:
        return _UNIT_CLIPS
    return max(_UNIT_CLIPS, _UNIT_FRAMES // spec.clip.frames)


def lead_clips(phases: Phases) -> int:
    """Clips by which a trainer may be ahead of the slowest one where all keep in step; 0: a prediction has no bound.

    `limits.lead` passes, or a longer phase at the end: what is left of a phase is never held back.
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


def unit_clips(spec: JobSpec, bounds: Sequence[Sequence[int]]) -> int:
    """Most clips of one work unit. Raises `ConfigError` if the budget is too small for the job to proceed."""
    largest, needed, window = _largest(bounds), least_clips(spec), spec.sampling.issue_window
    held = spec.limits.budget // largest
    if held < needed:
        batch, culprit = _batch(spec)
        cause = f"{culprit} = {batch}" + (f" and sampling.{_window_field(spec)} = {window}" if window else "")
        raise ConfigError(
            f"limits.budget: {size(spec.limits.budget)} hold {held} clips of up to {size(largest)}, "
            f"but {cause} need {needed} at once; raise it to {-(-needed * largest // _MIB)}MiB or more, "
            "or lower those, clip.frames or clip.resize"
        )
    held = (catch_up_bytes(spec, bounds) or spec.limits.budget) // largest
    return min(most_unit_clips(spec), window or held - _at_once(spec) + 1)


def least_clips(spec: JobSpec) -> int:
    """Clips that the budget has to hold for the job to proceed.

    With fewer in hand, consumers may lack the rest of a batch.

    With loops, half of it holds a batch for each. The other half is enough for those that keep in step, if there is
    more than one.
    """
    loops = len(spec.consumers)
    return max((2 if loops > 1 else 1) * _at_once(spec), 2 * _batch(spec)[0] * loops)


def decoded_clips(spec: JobSpec, view: CatalogView) -> set[ArraySpec]:
    """The clips that decoders make of these videos, as features see them: one for each size.

    Frames that are kept as YUV 4:2:0 become RGB for who needs that.
    """
    return set(_decoded(spec, view))


def _decoded(spec: JobSpec, view: CatalogView) -> dict[ArraySpec, ArraySpec]:
    """Clips as features see them -> as they lie in the cache. Raises `ConfigError` for sizes that cannot be."""
    resize = recipe_of(spec).resize
    channels = 1 if resize.pixels == GRAY else 3
    alike = resize.mode in (Resize.EXACT, Resize.CROP)
    clips = {}
    for (height, width), video in (view.a_size if alike else view.sizes).items():
        if not (alike or height):
            raise ConfigError(
                f"clip.resize.mode: {spec.clip.resize.mode} keeps the size of each image, and a record that is a file "
                f"({view.rows.text('id', video)}) does not say it; use crop or exact, or build records as numbers "
                "(essp records build --encode raw)"
            )
        seen = ArraySpec((spec.clip.frames, *output_size(resize, height, width), channels), "uint8")
        try:
            stored = frame_shape(resize, height, width)
        except ConfigError as error:
            raise ConfigError(f"{error} (video {view.rows.text('id', video)})") from error
        clips[seen] = ArraySpec((spec.clip.frames, *stored), "uint8")
    return clips


def _largest(bounds: Sequence[Sequence[int]]) -> int:
    return max(sum(parts) for parts in bounds)


def _batch(spec: JobSpec) -> tuple[int, str]:
    """The largest number of clips that are freed together, and the field that sets it."""
    return max(
        (
            (reader.batch_size, f"{kind}.{name}.batch_size")
            for kind, readers in (("trainers", spec.trainers), ("consumers", spec.consumers))
            for name, reader in readers.items()
        ),
        default=(_PREDICTOR_BATCH, "the predictor's batch"),
    )


def _window_field(spec: JobSpec) -> str:
    return "window" if spec.sampling.has_visits else "locality"


def _at_once(spec: JobSpec, batches: int = 1) -> int:
    """Clips that the budget has to hold so that a consumer gets this many batches, whatever the order of issue."""
    return batches * _batch(spec)[0] + max(spec.sampling.issue_window, 1) - 1


def _bounds(
    spec: JobSpec, view: CatalogView, streams: Sequence[str], declared: Mapping[str, DeclaredFeature] | None
) -> list[int]:
    bounds = [0] * (1 + len(streams))
    for clip, stored in _decoded(spec, view).items():
        outputs = {name: stream_output(spec, name, clip, declared) for name in spec.streams}
        made = [_max_bytes(stored, spec.clip.codec)]
        made += [_max_bytes(outputs[name], spec.streams[name].codec) for name in streams]
        bounds = [max(known, new) for known, new in zip(bounds, made, strict=True)]
    return bounds


def _max_bytes(array: ArraySpec, codec: CodecSpec) -> int:
    """The largest size in bytes of an array as a value of the cache."""
    return max_encoded_bytes(array.shape, array.dtype, codec.name)
