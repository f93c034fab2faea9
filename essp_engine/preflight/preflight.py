"""What is known of a job before it begins, and everything that can be wrong with it: pure reads.

The master (at the start of a job), `essp run` and `essp validate` call this one function, so they refuse the same jobs
in the same words: a catalog or weights that are not there, features that cannot be made, trainers whose settings
contradict each other, a budget that is too small, an output that belongs to another job, checkpoints of which none is
whole. Nothing is written; `start_run.py` does that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from essp_common.artifacts import layout
from essp_common.artifacts.checkpoint_files import BadCheckpoint
from essp_common.artifacts.removal import Removal, job_at
from essp_common.artifacts.trained import folder_of, trained
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.label_sets import COLUMN as LABELS
from essp_common.catalog.label_sets import label_names
from essp_common.catalog.schema import CHECKED, HANDED, PLANNED
from essp_common.errors import ConfigError, NotFound
from essp_common.field_paths import joined
from essp_common.job.changes import changeable
from essp_common.job.feature_layout import FeatureLayout
from essp_common.job.spec import JobSpec
from essp_common.job.trainer_spec import PACKAGE, TrainerSpec, weights_of
from essp_common.messages.snapshot import MOST_SPEC_BYTES
from essp_common.objects.port import ObjectStore
from essp_common.pb.v1.messages_pb2 import Purpose
from essp_common.records.rows import UNLABELLED, open_data
from essp_common.validation import suggested
from essp_common.wiring import Stores
from essp_engine.aggregation.candidates import candidates
from essp_engine.planning.phases import Phases
from essp_engine.planning.planned_clip import WHOLE
from essp_engine.preflight.advice import advice, of_more_epochs
from essp_engine.preflight.model_inputs import with_inputs_of_model
from essp_engine.preflight.output import ANYBODY, Asked, check_place, holder, output_of, removal
from essp_engine.preflight.record_versions import with_versions
from essp_engine.preflight.resume import ResumePoints, resume_points
from essp_engine.preflight.sizing import bounds_of, enough_budget, parts_of, unit_clips
from essp_engine.preflight.stream_outputs import layouts_of
from essp_engine.preflight.trainer_checks import check_needs, check_trainers
from essp_engine.registrations import NOTHING, Declared
from essp_engine.seeding.clip_parts import ClipParts
from essp_engine.seeding.instructions import IssueUnits
from essp_engine.seeding.message_builder import MessageBuilder

_NO_EFFECT = ("device", "threads", "checkpoint", "epochs", "priority", "stop")
"""Fields that, like all `limits`, do not change what a job computes, but for how long it trains; of epochs there may be
more."""


@dataclass(frozen=True)
class Preflight:
    """A job that can begin, and what it would do."""

    spec: JobSpec
    fresh: bool
    """The job begins anew."""
    removes: Removal | None
    """What is in the output of an earlier job, this one or another, and goes then; None: nothing."""
    classes: tuple[str, ...]
    """Of what it learns: the classes of the catalog, or all labels (`data.targets`)."""
    phases: Phases
    layouts: Mapping[str, FeatureLayout]
    """Stream -> how its values are read."""
    parts: ClipParts
    bounds: Sequence[Sequence[int]]
    """For each phase, the most bytes of each part of a clip."""
    unit_clips: int
    """Most clips of one work unit."""
    resume: ResumePoints
    """Where each consumer would begin."""
    warnings: tuple[str, ...]
    """What a user should know although the job can run."""

    def with_budget(self, least_clips: int) -> Preflight:
        """The same job with a budget that is enough, and holds so many clips at least."""
        budget = max(least_clips * self.max_clip_bytes, enough_budget(self.spec, self.bounds))
        limits = self.spec.limits.model_copy(update={"budget": budget})
        spec = self.spec.model_copy(update={"limits": limits})
        return replace(self, spec=spec, unit_clips=unit_clips(spec, self.bounds))

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The names of the labels that are learned each by itself; None: the job learns classes."""
        return None if self.spec.data.targets == "class" else self.classes

    @property
    def max_clip_bytes(self) -> int:
        """Upper bound of a clip and its features together."""
        return max(sum(parts) for parts in self.bounds)


def preflight(
    spec: JobSpec,
    stores: Stores,
    fresh: bool = False,
    declared: Declared = NOTHING,
    continues: bool = False,
    asked: Asked = ANYBODY,
    state: str = "",
) -> Preflight:
    """Check a job, and complete what a predict job takes from its model.

    Raises `ConfigError`, which names the field and the remedy, `BadCheckpoint`, `Forbidden` for an output of another
    team, and `OfAnotherJob`.

    `fresh`: the job is to begin anew, and what a job has left in its output is removed. `declared`: what it may name
    although its code is not installed here. `continues`: a run that another master began goes on. `asked`: who asks for
    it. `state`: the folder of the master's own state.
    """
    spec = with_versions(with_inputs_of_model(spec, stores), stores, fresh)
    _check_size(spec)
    catalog = _catalog_of(spec, stores)
    _check_records(spec)
    _check_segments(spec)
    _check_labels(spec, catalog)
    _check_background(spec, catalog)
    if spec.trainers:
        candidates(spec.aggregation, spec.data.targets)
    output = output_of(spec, stores)
    asked_epochs, spec = spec.epochs, spec if fresh or continues else _with_epochs_of(output, spec)
    phases = Phases(spec, catalog)
    classes = _names_of(spec, catalog)
    layouts = layouts_of(spec, declared.features)
    check_needs(spec, declared.features)
    check_trainers(phases, classes, layouts, declared)
    parts = parts_of(spec)
    bounds = bounds_of(phases, parts, declared.features)
    clips = unit_clips(spec, bounds)
    if not continues:
        check_place(spec, stores, output, catalog, state, asked)
    _try_seeds(phases, None if spec.data.targets == "class" else classes, parts, clips)
    removes = removal(output, spec, asked) if fresh else None
    known = None if fresh else check_owner(output, spec, asked, continues)
    resume = ResumePoints.of_nothing(spec) if fresh else resume_points(spec, phases, stores)
    _check_weights(spec, stores, resume)
    return Preflight(
        spec=spec,
        fresh=fresh,
        removes=removes,
        classes=classes,
        phases=phases,
        layouts=layouts,
        parts=parts,
        bounds=bounds,
        unit_clips=clips,
        resume=resume,
        warnings=(
            *_unlabelled(spec, catalog),
            *advice(phases, bounds),
            *of_more_epochs(known, spec),
            *_of_fewer_epochs(asked_epochs, spec),
        ),
    )


def check_owner(output: ObjectStore, spec: JobSpec, asked: Asked = ANYBODY, continues: bool = False) -> JobSpec | None:
    """The job that the output holds: this one, or this one with fewer epochs and trainers. Raises `ConfigError` for
    another job, and `Forbidden` for one of another team.

    `continues`: a run goes on, with the epochs and trainers that it began with. The output may hold the job with more:
    of a run that was to follow, and that nobody was told of.
    """
    held = holder(output, spec, asked)
    if held is None:
        return None
    known = held.spec
    holds, lacks = _differing(known.model_dump(mode="json"), spec.model_dump(mode="json")), _lacking(known, spec)
    if differing := [field for field in holds if field not in (*lacks, *_lacking(spec, known))]:
        while_running = set(differing) <= set(changeable(known))
        other = "another job" if known.name == spec.name else f"another job ({known.name})"
        raise ConfigError(
            f"output: {spec.output} holds {other}, which differs in {', '.join(differing)}; choose another "
            "name and output, or start with --fresh to remove what is there"
            + ("; or start it as it was, and change this with `essp job set` while it runs" if while_running else "")
        )
    if lacks and not continues:
        raise ConfigError(
            f"{lacks[0]}: {spec.output} holds this job with it, and a job can be given more, not fewer; write it into "
            f"the file, as {output.uri(layout.SPEC)} has it, or start with --fresh to remove what is there"
        )
    return known


def _with_epochs_of(output: ObjectStore, spec: JobSpec) -> JobSpec:
    """The job with the epochs that it was given before, if those are more: by `--epochs`, or while it ran. The file
    that it was started with starts it again."""
    known = None
    with suppress(ConfigError):  # of what is no job of ESSP's `check_owner` tells
        known = job_at(output)
    if known is None or known.name != spec.name or known.epochs <= spec.epochs:
        return spec
    return spec.model_copy(update={"epochs": known.epochs})


def _of_fewer_epochs(asked: int, spec: JobSpec) -> Iterator[str]:
    if asked < spec.epochs:
        yield (
            f"epochs: {asked} are asked for, and the output holds this job with {spec.epochs}; it goes on with those, "
            "as a job can be given more, not fewer (--fresh begins again)"
        )


def has_more(one: JobSpec, other: JobSpec) -> bool:
    """Whether a job is another with more epochs, trainers or streams."""
    return one.epochs > other.epochs or bool(_lacking(one, other))


def _lacking(known: JobSpec, spec: JobSpec) -> list[str]:
    """The trainers and streams of one job that another one has not."""
    groups = ("trainers", "streams")
    return [f"{group}.{name}" for group in groups for name in getattr(known, group) if name not in getattr(spec, group)]


def _check_size(spec: JobSpec) -> None:
    if (size := len(spec.model_dump_json().encode())) > MOST_SPEC_BYTES:
        raise ConfigError(
            f"the job has {size} bytes as JSON, and {MOST_SPEC_BYTES} are the most; shorten streams.*.params, or make "
            "several jobs"
        )


def _try_seeds(phases: Phases, labels: tuple[str, ...] | None, parts: ClipParts, unit_clips: int) -> None:
    """Make the first work units of each kind of phase, as the master will: what cannot be made is refused here, before
    anybody knows of the job."""
    messages = MessageBuilder(phases.spec, phases, 0, labels)
    seen: set[Purpose] = set()
    for number, (purpose, _) in enumerate(phases.order):
        if purpose in seen:
            continue
        seen.add(purpose)
        plan = phases.plan(number)
        for index in range(min(unit_clips, len(plan))):
            clip = plan.clip(index)
            try:
                messages.units(IssueUnits(number, ((clip,),), parts.consumers))
            except (ValueError, TypeError, OverflowError) as error:
                video = phases.view(number).rows.text("id", clip.video)
                raise ConfigError(
                    f"data.catalog: no clip can be made of video {video!r}, planned at index {index}: {error}; "
                    "build the catalog anew"
                ) from error


def _catalog_of(spec: JobSpec, stores: Stores) -> Catalog:
    if spec.data.records:
        return open_data(spec, stores)
    if not spec.data.catalog:
        raise ConfigError(
            "data.catalog: is required; make one with `essp catalog build` (of videos), or name data.records, made "
            "with `essp records build` (of images)"
        )
    try:
        return open_data(spec, stores, _columns(spec))
    except NotFound as error:
        raise ConfigError(f"data.catalog: {error}; make one with `essp catalog build`") from error
    except ConfigError as error:
        raise ConfigError(f"data.catalog: {error}") from error


def _columns(spec: JobSpec) -> tuple[str, ...]:
    """Of the catalog, beside those that name a video."""
    if spec.consumers:
        return (*PLANNED, *CHECKED, *HANDED)
    return (*PLANNED, *CHECKED) if spec.data.targets == "class" else (*PLANNED, *CHECKED, LABELS)


def _names_of(spec: JobSpec, catalog: Catalog) -> tuple[str, ...]:
    """Of what the job learns."""
    if spec.data.targets == "class":
        return tuple(catalog.classes)
    names = label_names(catalog, of_spans=spec.data.targets == "spans")
    if not names:
        raise ConfigError(
            "data.targets: the catalog has no spans; build it from a CSV file with a column frame_labels, or from a "
            "list of segments with `essp catalog build --whole`"
        )
    return names


def _check_records(spec: JobSpec) -> None:
    if spec.data.records and spec.clip.frames != 1:
        raise ConfigError(
            f"predictor.model: it was trained on clips of {spec.clip.frames} frames, and a record (data.records) is "
            "one; use a model that was trained on clips of one frame, or classify videos (data.catalog)"
        )


def _check_segments(spec: JobSpec) -> None:
    if spec.predictor is None or not spec.predictor.segments:
        return
    if spec.clip.snippets > 1:
        raise ConfigError(
            f"predictor.segments: the model was trained on clips of {spec.clip.snippets} snippets, which lie all over "
            "a video, so its answers have no place in time; use a model that was trained with clip.snippets: 1"
        )
    if spec.clip.part != WHOLE:
        raise ConfigError(
            "predictor.segments: the model looks at a part of each video alone (clip.part), and not at the rest; use "
            "one that was trained without clip.part"
        )


def _unlabelled(spec: JobSpec, catalog: Catalog) -> Iterator[str]:
    """Of records that nothing can be learned from."""
    if spec.data.records and (left_out := int(catalog.rows.has("error", UNLABELLED).sum())):
        count, lack = len(catalog.rows), "has" if left_out == 1 else "have"
        yield f"{left_out} of {count} records {lack} no label (-1): nothing is learned from them, or measured on them"


def _check_labels(spec: JobSpec, catalog: Catalog) -> None:
    if spec.trainers and spec.data.records and not catalog.rows.usable.any():
        raise ConfigError(
            "data.records: its records have no labels; build it from a source that has some: a folder for each class, "
            "or a CSV file with the columns path and label (`essp records build`)"
        )
    if spec.trainers and catalog.classes == ("",) and spec.data.targets != "spans":
        raise ConfigError(
            "data.catalog: its videos have no labels; put videos in class folders (FOLDER/CLASS/video.mp4), or give a "
            "CSV file with the columns path and label, and make the catalog again with `essp catalog build`"
        )


def _check_background(spec: JobSpec, catalog: Catalog) -> None:
    background = spec.sampling.background
    if background is None:
        return
    others = [name for name in catalog.classes if name != background]
    if len(others) == len(catalog.classes):
        raise ConfigError(
            f"sampling.background: the catalog has no class {background!r}; {suggested(background, others)}. "
            f"`essp catalog build --background {background}` makes one of what a list of segments leaves out"
        )
    if not others:
        raise ConfigError(f"sampling.background: the catalog has no class but {background!r}; add videos of others")


def _check_weights(spec: JobSpec, stores: Stores, resume: ResumePoints) -> None:
    """Of the trainers that begin; the others read nothing but their checkpoints."""
    for name in spec.trainers.keys() - resume.manifests.keys():
        trainer = spec.trainers[name]
        if trainer.weights is None or trainer.weights.startswith(PACKAGE):
            continue  # what is packaged lies where the trainer runs
        try:
            _check_start(spec, trainer, trainer.weights, stores)
        except (ConfigError, NotFound, BadCheckpoint) as error:
            raise ConfigError(f"trainers.{name}.weights: {error}") from error


def _check_start(spec: JobSpec, trainer: TrainerSpec, weights: str, stores: Stores) -> None:
    if weights == spec.output or weights.startswith(f"{spec.output}/"):
        raise ConfigError(
            f"{weights} is in the output of this job, whose trainers learn side by side; train what it starts from in "
            "a job with an output of its own"
        )
    other = trained(stores, weights)
    if other is None:
        store, key = stores.resolve(weights)
        try:
            store.head(key)
        except NotFound as error:
            raise NotFound(f"{error}; {_remedy(stores, weights, trainer)}") from error
    elif (model := other.manifest.model.name) != trainer.model:
        raise ConfigError(f"{weights} has trained {model}, not {trainer.model}; set model: {model}")


def _remedy(stores: Stores, weights: str, trainer: TrainerSpec) -> str:
    """What to do about weights that are not there."""
    if (named := folder_of(weights)) is not None:
        return f"no job has {named[0]} as its output; run the one that trains {named[1]} first"
    other = job_at(stores.under(weights))
    if other is None or not other.trainers:
        return weights_of(trainer.model)
    folders = ", ".join(f"{weights}/{layout.TRAINERS}{name}" for name in other.trainers)
    return f"it is the output of a job, of which one trainer has to be named: {folders}"


def _differing(known: Any, wanted: Any, where: tuple[str, ...] = ()) -> list[str]:
    """The fields in which two specifications differ, without those that do not change what is computed."""
    if where and (where[0] == "limits" or where[-1] in _NO_EFFECT):
        return []
    if isinstance(known, dict) and isinstance(wanted, dict):
        names = sorted(known.keys() | wanted.keys())
        return [field for n in names for field in _differing(known.get(n), wanted.get(n), (*where, n))]
    return [] if known == wanted else [joined(where)]
