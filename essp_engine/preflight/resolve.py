"""Opens what the specification of a job names: its model, the weights that it extracts with, records, catalog, splits
and features.

Each is opened once, here. Checks, sizes and advice use the `ResolvedJob` and open nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from essp_common.artifacts.extraction import Extraction
from essp_common.artifacts.fused_model import FusedModel
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.label_sets import COLUMN as LABELS
from essp_common.catalog.label_sets import label_names
from essp_common.catalog.schema import CHECKED, HANDED, PLANNED
from essp_common.errors import ConfigError, NotFound, PermanentError
from essp_common.job.spec import JobSpec
from essp_common.records.rows import FIELDS, open_data
from essp_common.records.versions import DataSet
from essp_common.wiring import Stores
from essp_engine.planning.phases import Phases
from essp_engine.preflight.budget import Budget
from essp_engine.preflight.model_inputs import model_of, with_inputs
from essp_engine.preflight.sizing import parts_of, sizes_of, with_batches
from essp_engine.preflight.streams import Stream, decoded_clips, streams_of
from essp_engine.preflight.weights import scored_with
from essp_engine.registrations import NOTHING, Declared
from essp_engine.seeding.clip_parts import ClipParts


@dataclass(frozen=True, kw_only=True)
class PlannedJob:
    """A job with its clips: which they are, and how large they can get."""

    spec: JobSpec
    """The job, completed: with the inputs of its model, the versions of its records, and any epochs added before."""
    classes: tuple[str, ...]
    """The names of what it learns: the classes of the catalog, or all labels (`data.targets`)."""
    phases: Phases
    parts: ClipParts
    bounds: Sequence[Sequence[int]]
    """For each phase, the most bytes of each part of a clip."""

    @property
    def budget(self) -> Budget:
        """What its budget has to hold."""
        return Budget(self.spec, self.bounds)

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The names of the labels, if each label is learned independently; None: the job learns classes."""
        return None if self.spec.data.targets == "class" else self.classes


@dataclass(frozen=True, kw_only=True)
class ResolvedJob(PlannedJob):
    """A job with its data, model and features; whether they are compatible is for `checks.py` to say.

    It refers to the whole catalog, so do not keep it while the job runs.
    """

    model: FusedModel | None
    """The fused model that it uses; None: it uses none."""
    scored_with: FusedModel | Extraction | None
    """What predictors compute from its clips; None: they do not work on it."""
    catalog: Catalog
    streams: Mapping[str, Stream]
    declared: Declared
    """What the job may name although the code is not installed here."""


def resolve(spec: JobSpec, stores: Stores, declared: Declared = NOTHING, known: JobSpec | None = None) -> ResolvedJob:
    """Open what a job names. `known`: the job in its output, which this one continues; None: it starts over, or is
    complete already.

    Raises `ConfigError` for the first thing that is missing or cannot be read: without its model or its catalog,
    nothing else of a job can be checked.
    """
    model = model_of(spec, stores)
    spec = _with_epochs(_with_versions(with_inputs(spec, model), stores, known), known)
    scorer = scored_with(spec, stores, model)
    return resolve_on(_opened(spec, stores), spec, declared, model, scorer)


def resolve_on(
    catalog: Catalog,
    spec: JobSpec,
    declared: Declared = NOTHING,
    model: FusedModel | None = None,
    scorer: FusedModel | Extraction | None = None,
) -> ResolvedJob:
    """Resolve a job whose catalog, model and weights are open. Raises `ConfigError` as `resolve`."""
    classes = _classes(spec, catalog)
    phases = Phases(spec, catalog)
    clips = {purpose: decoded_clips(spec, view) for purpose, view in phases.views}
    seen = dict.fromkeys(size for of_view in clips.values() for size in of_view)
    streams, parts = streams_of(spec, seen, declared.features), parts_of(spec)
    sizes = sizes_of(phases, clips, streams, parts)
    largest = {
        purpose: [max(part) for part in zip(*of_phase.values(), strict=True)] for purpose, of_phase in sizes.items()
    }
    bounds = [largest[purpose] for purpose, _ in phases.order]
    spec = phases.spec = with_batches(spec, sizes.values())
    return ResolvedJob(
        spec=spec,
        classes=classes,
        phases=phases,
        parts=parts,
        bounds=bounds,
        model=model,
        scored_with=scorer,
        catalog=catalog,
        streams=streams,
        declared=declared,
    )


def _with_versions(spec: JobSpec, stores: Stores, known: JobSpec | None) -> JobSpec:
    """The job with a version for each of its data sets of records: the one that it names, else the one that it used
    before, else the newest. Data sets grow while jobs run, so the specification records the versions."""
    sets = spec.data.record_sets
    if not sets or sets.keys() == spec.data.versions.keys():
        return spec
    versions = dict(known.data.versions) if known is not None and known.data.record_sets == sets else {}
    versions |= spec.data.versions
    for split, uri in sets.items():
        if split not in versions:
            try:
                versions[split], _ = DataSet(stores.under(uri)).version()
            except (ConfigError, NotFound, PermanentError) as error:
                raise ConfigError.at(FIELDS[split], error) from error
    return spec.model_copy(update={"data": spec.data.model_copy(update={"versions": versions})})


def _with_epochs(spec: JobSpec, known: JobSpec | None) -> JobSpec:
    """The job with the epochs that were added before, by `--epochs` or while it ran, so that the original job file
    can start it again."""
    if known is None or known.name != spec.name or known.epochs <= spec.epochs:
        return spec
    return spec.model_copy(update={"epochs": known.epochs})


def _opened(spec: JobSpec, stores: Stores) -> Catalog:
    if spec.data.records:
        return open_data(spec, stores)
    if not spec.data.catalog:
        raise ConfigError(
            "is required; make one with `essp catalog build` (of videos), or name data.records, made with `essp "
            "records build` (of images)",
            field="data.catalog",
            code="missing",
        )
    try:
        return open_data(spec, stores, _columns(spec))
    except NotFound as error:
        raise ConfigError(
            f"{error}; make one with `essp catalog build`", field="data.catalog", code="not_found"
        ) from None
    except ConfigError as error:
        if error.field:  # it is about how the job divides the catalog
            raise
        raise ConfigError.at("data.catalog", error) from error


def _columns(spec: JobSpec) -> tuple[str, ...]:
    """The columns of the catalog that the job needs, besides those that name a video."""
    always = (*PLANNED, *CHECKED, "notes")
    if spec.consumers:
        return (*always, *HANDED)
    return always if spec.data.targets == "class" else (*always, LABELS)


def _classes(spec: JobSpec, catalog: Catalog) -> tuple[str, ...]:
    """The names of what a job learns. Raises `ConfigError` if the catalog has none."""
    if spec.trainers and spec.data.records and not catalog.rows.usable.any():
        raise ConfigError(
            "the records have no labels; build them from a source that has labels: a folder for each class, or a CSV "
            "file with the columns path and label (`essp records build`)",
            field="data.records",
            code="empty",
        )
    if spec.trainers and catalog.classes == ("",) and spec.data.targets != "spans":
        raise ConfigError(
            "the videos have no labels; put videos in class folders (FOLDER/CLASS/video.mp4), or give a CSV file with "
            "the columns path and label, and build the catalog again with `essp catalog build`",
            field="data.catalog",
            code="empty",
        )
    if spec.data.targets == "class":
        return tuple(catalog.classes)
    if names := label_names(catalog, of_spans=spec.data.targets == "spans"):
        return names
    raise ConfigError(
        "the catalog has no spans; build it from a CSV file with a column frame_labels, or from a list of segments "
        "with `essp catalog build --whole`",
        field="data.targets",
        code="empty",
    )
