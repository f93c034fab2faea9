"""Settings that are legal in a job but probably a mistake: `essp validate` and the events of the job report them before
it begins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from essp_common.catalog.splits import straddling
from essp_common.job.spec import JobSpec
from essp_common.job.trainer_spec import TrainerSpec
from essp_common.pb.v1.messages_pb2 import TEST, Purpose
from essp_common.quantities import counted, percent
from essp_common.records.rows import UNLABELLED
from essp_engine.planning.phases import Phases
from essp_engine.planning.plan import empty_classes
from essp_engine.planning.share import Share
from essp_engine.preflight.budget import Budget
from essp_engine.preflight.resolve import ResolvedJob

_HIGH_FOR_ADAM = 5e-3
_OFTEN = 4
"""The number of times that a GOP is decoded for neighbouring clips from which it is reported."""
_MIXED = 4
"""Videos of a window per clip of a batch at which mixing cost no accuracy (docs/accuracy.md)."""
_NAMED = 10
"""The most classes that a sentence names."""


def advice(job: ResolvedJob, asked: JobSpec, known: JobSpec | None) -> tuple[str, ...]:
    """One sentence each. `asked`: the job as it was given. `known`: the job in its output, which this one continues."""
    phases = job.phases
    return (
        *_of_labels(job),
        *_of_classes(phases),
        *_of_splits(phases),
        *_of_ranks(phases),
        *_of_trainers(phases),
        *_of_visits(phases),
        *_of_places(phases),
        *_of_budget(job.budget),
        *_of_more_epochs(known, job.spec),
        *_of_fewer_epochs(asked, job.spec),
    )


def _of_more_epochs(known: JobSpec | None, spec: JobSpec) -> Iterator[str]:
    """For a job that was begun with fewer epochs (`known`)."""
    if known is None or known.epochs >= spec.epochs:
        return
    for name, trainer in spec.trainers.items():
        if trainer.optimizer.schedule == "cosine":
            yield (
                f"trainers.{name}.optimizer.schedule: a cosine ends with the last epoch, which was epoch "
                f"{known.epochs} until now; with {spec.epochs} the rate rises again, and the result differs from "
                f"{spec.epochs} epochs from the start"
            )


def _of_fewer_epochs(asked: JobSpec, spec: JobSpec) -> Iterator[str]:
    """For a job that already has more epochs than requested."""
    if asked.epochs < spec.epochs:
        yield (
            f"epochs: {asked.epochs} are requested, but the output has this job with {spec.epochs}; it continues with "
            "these, because epochs can be added but not removed (--fresh starts over)"
        )


def _of_labels(job: ResolvedJob) -> Iterator[str]:
    """For records without labels, which training ignores."""
    rows = job.catalog.rows
    if job.spec.data.records and (left_out := int(rows.has("error", UNLABELLED).sum())):
        lack = "has" if left_out == 1 else "have"
        yield (f"{left_out} of {len(rows)} records {lack} no label (-1): they are used neither to train nor to measure")


def _of_classes(phases: Phases) -> Iterator[str]:
    if phases.spec.predicts:
        return
    view, unit = phases.view(0), phases.spec.data.unit
    if missing := empty_classes(view):
        yield f"no usable training {unit} of {len(missing)} of {len(view.classes)} classes: {_few(missing)}"
    videos = np.diff(view.class_begin)
    single = [view.classes[class_id] for class_id in np.flatnonzero(videos == 1).tolist()]
    if single and phases.spec.data.consumed == "train":
        yield f"a single training {unit} of {len(single)} of {len(view.classes)} classes: {_few(single)}"
    if phases.spec.trainers and phases.spec.data.targets == "class" and len(view.classes) == 1:
        yield f"every training {unit} is of one class, {view.classes[0]}: every answer is right, so nothing is learned"


def _of_ranks(phases: Phases) -> Iterator[str]:
    """For one rank of a loop. All ranks have the same number of clips, so no rank gets the last ones of an epoch."""
    plan, sampling = phases.plan(0), phases.spec.sampling
    if isinstance(plan, Share) and plan.left_out and not sampling.rank:
        divided = sampling.ranks * len(plan)
        yield (
            f"sampling.clips_per_epoch: {sampling.ranks} ranks have the same number of clips, so the last "
            f"{plan.left_out} of the {divided + plan.left_out} of an epoch are never used; {divided} or "
            f"{divided + sampling.ranks} can be divided evenly"
        )


def _of_splits(phases: Phases) -> Iterator[str]:
    spec = phases.spec
    if not spec.trainers:
        return
    unit = spec.data.unit
    if spec.data.validation is None:
        yield (
            f"data.validation is null: {percent(spec.data.validation_fraction, 0)} of the training {unit}s are "
            f"set aside, whatever {'records_validation says' if spec.data.records else 'splits the catalog has'}"
        )
    if spec.data.test is not None and all(purpose != TEST for purpose, _ in phases.order):
        missing = (
            "data.records_test is not given" if spec.data.records else f"the catalog has no split {spec.data.test!r}"
        )
        yield (
            f"{missing}, so the model is not measured on unseen {unit}s; `data.test: null` says that this is intended"
        )
    if shared := straddling((Purpose.Name(purpose).lower(), view.rows) for purpose, view in phases.views):
        group, names = next(iter(shared.items()))
        yield (
            f"{len(shared)} groups have videos in several splits, such as {group} in {' and '.join(names)}: the "
            "results of such a split are too good"
        )


def _of_trainers(phases: Phases) -> Iterator[str]:
    spec = phases.spec
    read = {trainer.stream for trainer in spec.trainers.values()}
    if spec.trainers and (unread := sorted(spec.streams.keys() - read)):
        yield f"no trainer reads streams.{unread[0]}, so it is not computed"
    for name, trainer in spec.trainers.items():
        for field, trouble in _without_effect(trainer, spec.epochs, phases.plans[0].clips):
            yield f"trainers.{name}.{field} {trouble}"
    for name, trainer in spec.trainers.items():
        if trainer.checkpoint.bits and trainer.checkpoint.scope == "global":
            yield (
                f"trainers.{name}.checkpoint.scope: global uses one range for all numbers of a file, which leaves most "
                "layers only a few levels and destroys networks whose layers differ in scale; use channel, and global "
                "only for comparison"
            )
    for one, other in _alike(spec):
        yield (
            f"trainers {one} and {other} do not differ in anything that matters, so their weights will be the same; "
            "give one of them another `seed` (members of an ensemble), or change what you want to compare"
        )


def _alike(spec: JobSpec) -> list[tuple[str, str]]:
    """Pairs of trainers that will have the same weights, because they do not differ in anything that matters."""
    free = {"device", "threads", "checkpoint"}
    what = {name: trainer.model_dump(exclude=free) for name, trainer in spec.trainers.items()}
    return [(one, other) for one, other in combinations(what, 2) if what[one] == what[other]]


def _of_visits(phases: Phases) -> Iterator[str]:
    sampling = phases.spec.sampling
    if not sampling.has_visits or sampling.clips_per_visit == 1:
        return
    apart = sampling.window // sampling.clips_per_visit // 2
    readers = {f"trainers.{name}": trainer.batch_size for name, trainer in phases.spec.trainers.items()}
    readers |= {
        f"consumers.{name}": consumer.batch_size
        for name, consumer in phases.spec.consumers.items()
        if consumer.batch_pixels is None
    }
    for name, batch_size in readers.items():
        if batch_size > apart:
            yield (
                f"{name}.batch_size = {batch_size}: batches may hold several clips of one video, "
                f"which are {max(1, apart)} clips apart; raise sampling.window to "
                f"{_MIXED * batch_size * sampling.clips_per_visit}"
            )


def _of_places(phases: Phases) -> Iterator[str]:
    """For visits that are much shorter than a GOP, which is decoded for each of them, and longer ones that end inside a
    GOP, which is decoded twice."""
    sampling = phases.spec.sampling
    if sampling.kind != "exhaustive":
        return
    view, visit = phases.view(0), sampling.clips_per_visit
    places = round(view.group_frames / sampling.step)
    times = places / visit
    if times >= _OFTEN:
        yield (
            f"sampling.clips_per_visit = {visit}: {places} clips start in a group of pictures, so "
            f"each is decoded {times:.0f} times or more in an epoch; raise it towards {places}, as far as a window of "
            "16 visits fits into limits.budget, or raise sampling.step"
        )
    distance = view.keyframe_distance
    each, uneven = divmod(distance, sampling.step)
    if each < 2 or uneven or (view.first_frame % distance).any():  # no visits match the GOPs
        return
    if visit > each and (beyond := visit % each):
        yield (
            f"sampling.clips_per_visit = {visit}: {each} clips start in a group of pictures; with {visit - beyond}, "
            "visits begin and end where those do, and few frames are decoded twice"
        )


def _without_effect(trainer: TrainerSpec, epochs: int, clips: int) -> Iterator[tuple[str, str]]:
    optimizer = trainer.optimizer
    whole = {"epochs": epochs, "updates": epochs * trainer.updates(clips), "share": 1}[optimizer.unit]
    if trainer.amp and trainer.device == "cpu":
        yield "amp", "has no effect on a CPU"
    if optimizer.schedule == "step" and (late := [step for step in optimizer.steps if step >= whole]):
        yield (
            "optimizer.steps",
            f"{late[0]} is never reached: the job has {counted(whole, optimizer.unit[:-1])}, and steps count from 0",
        )
    for field in ("freeze_epochs", "probe"):
        if getattr(trainer, field) and trainer.weights is None:
            yield field, "freezes random weights, because `weights` is not set"
    if optimizer.kind == "adamw" and optimizer.lr > _HIGH_FOR_ADAM and trainer.freeze_epochs < epochs:
        yield "optimizer.lr", f"{optimizer.lr:g} is high for AdamW, which moves each weight by about this amount a step"
    if optimizer.schedule == "cosine" and optimizer.steps:
        yield "optimizer.steps", "has no effect on the cosine schedule"
    if optimizer.gamma != type(optimizer).model_fields["gamma"].default and not optimizer.steps:
        yield "optimizer.gamma", "has no effect without optimizer.steps, at which it multiplies the rate"
    for field in ("mixup", "cutmix"):
        if getattr(trainer.augment, field) and min(trainer.batch_size, clips) == 1:
            yield f"augment.{field}", "has no effect: a batch of one clip has no second clip to blend"
    if optimizer.warmup >= whole:
        yield "optimizer.warmup", f"takes all of the {whole:,} {optimizer.unit}, so `lr` is never reached"


def _of_budget(budget: Budget) -> Iterator[str]:
    spec = budget.spec
    if len(spec.trainers) > 1 and not spec.limits.coupled and not budget.catch_up_bytes:
        needed = -(-budget.uncoupled_bytes // 2**20)
        yield (
            "limits.budget is too small to let trainers run apart, so all keep in step with the slowest; "
            f"raise it to {needed}MiB or more, or set limits.coupled: true"
        )


def _few(names: Sequence[str]) -> str:
    return f"{', '.join(names[:_NAMED])}{', ...' if len(names) > _NAMED else ''}"
