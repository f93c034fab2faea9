"""How large a job's clips can get, and how many the budget has to hold.

Credits are reserved before anything is decoded, so they need bounds: of each part of a clip (`ClipParts`), from the
specification, the sizes of the videos in the catalog, what the extractors declare, and the codec's worst case. Where
frames differ in size from video to video, the largest video of a phase counts until a clip is decoded.

A trainer frees the clips of a batch together, and clips of a locality window come in any order. If the budget could not
hold a batch, and a window where there is one, the job could not proceed: that is a `ConfigError` here.

Where the budget can be divided, trainers that lag are left behind (`ledger/stragglers.py`). Half of the budget is for
the catch-up queues of all trainers but one. Each share has to hold two batches: one that is trained and one that is
being made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from essp_common.catalog.table import CatalogView, VideoRow
from essp_common.errors import ConfigError
from essp_common.features.declared import DeclaredFeature
from essp_common.features.port import ArraySpec
from essp_common.features.registry import output_of
from essp_common.job.spec import CodecSpec, JobSpec
from essp_common.messages.recipe import recipe_of
from essp_common.pb.v1.messages_pb2 import Resize
from essp_common.planning.phases import Phases
from essp_common.quantities import size
from essp_common.video.codec import max_encoded_bytes
from essp_common.video.geometry import output_size
from essp_master.ledger.parts import ClipParts

_UNIT_CLIPS = 32
"""Most clips of one work unit: enough to share a run-up, few enough to spread over decoders."""
_PREDICTOR_BATCH = 16
"""Clips that a predictor scores, and frees, together."""
_MIB = 2**20


def parts_of(spec: JobSpec) -> ClipParts:
    """The parts of each clip of a job."""
    return ClipParts({name: stream.feature for name, stream in spec.streams.items()}, spec.consumers())


def bounds_of(
    phases: Phases, parts: ClipParts, declared: Mapping[str, DeclaredFeature] | None = None
) -> list[list[int]]:
    """For each phase, the most bytes of each part of a clip. Raises `ConfigError` for features that cannot be made.

    `declared`: features that are registered, and whose code is not here.
    """
    bounds = {purpose: _bounds(phases.spec, view, parts.streams, declared) for purpose, view in phases.views}
    return [bounds[purpose] for purpose, _ in phases.order]


def catch_up_bytes(spec: JobSpec, bounds: Sequence[Sequence[int]]) -> int:
    """The share of the budget that the catch-up queue of a trainer gets; 0: all trainers keep in step."""
    others = len(spec.trainers) - 1
    if spec.limits.coupled or others < 1:
        return 0
    share = spec.limits.budget // 2 // others
    return share if share // _largest(bounds) >= _at_once(spec, batches=2) else 0


def uncoupled_budget(spec: JobSpec, bounds: Sequence[Sequence[int]]) -> int:
    """The least budget with which a trainer that lags can be left behind."""
    return 2 * (len(spec.trainers) - 1) * _at_once(spec, batches=2) * _largest(bounds)


def unit_clips(spec: JobSpec, bounds: Sequence[Sequence[int]]) -> int:
    """Most clips of one work unit. Raises `ConfigError` when the budget is too small for the job to move."""
    largest, needed, window = _largest(bounds), _at_once(spec), spec.sampling.locality
    held = spec.limits.budget // largest
    if held < needed:
        batch, culprit = _batch(spec)
        cause = f"{culprit} = {batch}" + (f" and sampling.locality = {window}" if window else "")
        raise ConfigError(
            f"limits.budget: {size(spec.limits.budget)} hold {held} clips of up to {size(largest)}, "
            f"{cause} need {needed} at once; raise it to {-(-needed * largest // _MIB)}MiB or more, "
            "or lower those, clip.frames or clip.resize"
        )
    held = (catch_up_bytes(spec, bounds) or spec.limits.budget) // largest
    return min(_UNIT_CLIPS, window or held - needed + 1)


def _largest(bounds: Sequence[Sequence[int]]) -> int:
    return max(sum(parts) for parts in bounds)


def _batch(spec: JobSpec) -> tuple[int, str]:
    """Most clips that are freed together, and what says so."""
    return max(
        ((trainer.batch_size, f"trainers.{name}.batch_size") for name, trainer in spec.trainers.items()),
        default=(_PREDICTOR_BATCH, "the predictor's batch"),
    )


def _at_once(spec: JobSpec, batches: int = 1) -> int:
    """Clips that have to fit for a consumer to get so many batches in whatever order they are issued."""
    return batches * _batch(spec)[0] + max(spec.sampling.locality, 1) - 1


def _bounds(
    spec: JobSpec, view: CatalogView, streams: Sequence[str], declared: Mapping[str, DeclaredFeature] | None
) -> list[int]:
    resize = recipe_of(spec).resize
    sizes = {output_size(resize, row.height, row.width) for row in _distinct(view, resize)}
    bounds = [0] * (1 + len(streams))
    for height, width in sizes:
        clip = ArraySpec((spec.clip.frames, height, width, 3), "uint8")
        outputs = {
            name: output_of(stream.feature, stream.params, clip, declared) for name, stream in spec.streams.items()
        }
        made = [_max_bytes(clip, spec.clip.codec)]
        made += [_max_bytes(outputs[name], spec.streams[name].codec) for name in streams]
        bounds = [max(known, new) for known, new in zip(bounds, made, strict=True)]
    return bounds


def _distinct(view: CatalogView, resize: Resize) -> Iterable[VideoRow]:
    """One video of each size; any one where all come out alike."""
    if resize.mode in (Resize.EXACT, Resize.CROP):
        return view.rows[:1]
    return {(row.height, row.width): row for row in view.rows}.values()


def _max_bytes(array: ArraySpec, codec: CodecSpec) -> int:
    """The most bytes that an array takes up as a value of the cache."""
    return max_encoded_bytes(array.shape, array.dtype, codec.name)
