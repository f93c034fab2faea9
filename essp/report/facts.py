"""Reads the facts for a report from the output store of a finished training job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isclose

import numpy as np
from numpy.typing import NDArray

from essp_common.artifacts import checkpoint, features, layout, scores
from essp_common.artifacts.early_stop import EarlyStop, early_stop
from essp_common.artifacts.figures import Figures, figures, relevance
from essp_common.artifacts.fused_model import Evaluation, FusedModel, read_model
from essp_common.artifacts.manifest import PhaseRecord, TakenChange
from essp_common.artifacts.scores import ClipScores, VideoScores
from essp_common.artifacts.timeline import TimelineFile
from essp_common.catalog.rows import ById, VideoRow
from essp_common.errors import ConfigError, EsspError, NotFound, PermanentError
from essp_common.job.spec import JobSpec, stored_spec
from essp_common.job.timeline import UsageTotal
from essp_common.objects.port import ObjectStore
from essp_common.records.names import RecordNames, name_of, names_by_split
from essp_common.records.rows import open_data
from essp_common.wiring import Stores
from essp_engine.aggregation.fused import Fuse, fusion_of
from essp_engine.aggregation.port import Parts


@dataclass(frozen=True)
class Run:
    """The facts of a finished training job."""

    spec: JobSpec
    spec_text: str
    model: FusedModel
    histories: Mapping[str, tuple[PhaseRecord, ...]]
    """Trainer -> the figures of every phase, in order."""
    split: str
    """`test`, or `validation` if the job had no test split: the split of the pictures and lists below."""
    scores: Mapping[str, VideoScores]
    """Trainer -> scores of that split by video, for the videos that all trainers have scored."""
    fused: VideoScores
    videos: Mapping[str, VideoRow]
    """Video id -> catalog row; empty if the catalog is no longer readable."""
    approximate: Mapping[str, tuple[int, ...]]
    """Trainer -> steps of the rounded checkpoints from which it resumed, if there are any."""
    changes: Mapping[str, tuple[TakenChange, ...]] = field(default_factory=dict)
    """Trainer -> the changes to the running job with which it was trained, if there are any."""

    usage: tuple[UsageTotal, ...] = ()
    """What the workers of each pool used; empty if that was not kept."""

    names: Mapping[str, RecordNames] = field(default_factory=dict)
    """Split -> the display names of its records; empty for a job on videos."""

    @property
    def unit(self) -> str:
        """The display name of its data: `video` or `record`."""
        return self.spec.data.unit

    def called(self, video: str) -> str:
        """The display name of a video or record. A record is named after its source file, if it is known."""
        name = name_of(video, self.names)
        return f"{name} (record {int(video.rpartition('/')[2]):,})" if name else video

    @property
    def evaluation(self) -> Evaluation | None:
        """The figures of `split`."""
        return self.model.test if self.split == "test" else self.model.validation

    @property
    def stops(self) -> Mapping[str, EarlyStop]:
        """The trainers that stopped before the last epoch."""
        found = {
            name: early_stop(history, self.spec.trainers[name], self.spec.epochs)
            for name, history in self.histories.items()
        }
        return {name: stop for name, stop in found.items() if stop is not None}

    @property
    def descriptors(self) -> Mapping[str, str]:
        """Stream -> its feature, for streams whose values are not a picture."""
        described = {member.stream for member in self.model.members if member.model.layout.values == "descriptor"}
        return {name: stream.feature for name, stream in self.model.streams.items() if name in described}

    @property
    def judged_by(self) -> str:
        """The metric for comparing its trainers: `top1` for classes, `mAP` for labels."""
        return "mAP" if self.model.independent else "top1"

    @property
    def predicted(self) -> NDArray[np.intp]:
        """(V,) class with the highest fused score."""
        best: NDArray[np.intp] = np.argmax(self.fused.probabilities, axis=1)
        return best

    @property
    def mistakes(self) -> list[int]:
        """The misclassified videos, the one with the highest score first."""
        predicted, wrong = self.predicted, np.flatnonzero(~self.fused.right).tolist()
        return sorted(wrong, key=lambda v: (-self.fused.probabilities[v, predicted[v]], self.fused.video_id[v]))

    def answer(self, video: int, names: Sequence[str] = ()) -> str:
        """The class of a video, or all of its labels, for display. `names`: names to use for the classes."""
        return ", ".join((names or self.model.classes)[c] for c in self.right(video)) or "none"

    def right(self, video: int) -> NDArray[np.intp]:
        """The numbers of the class of a video, or of all of its labels; empty if it has none."""
        return np.flatnonzero(relevance(self.fused.truth[[video]], len(self.model.classes))[0])

    def row(self, trainer: str | None) -> tuple[Figures, Figures]:
        """Validation and test figures of a trainer (None: fused); empty if the job had no such split."""
        found: list[Figures] = []
        for evaluation in (self.model.validation, self.model.test):
            if evaluation is None:
                found.append({})
            else:
                found.append(evaluation.fused if trainer is None else evaluation.members[trainer])
        return found[0], found[1]


def read_run(output: ObjectStore, stores: Stores) -> Run:
    """Gather the facts.

    Raises `NotFound` if the job has no model yet, or if the inputs of the model are gone, `ConfigError` if it is a job
    that trains nothing, and `PermanentError` if the inputs were replaced.
    """
    try:
        model = read_model(output, layout.MODEL_MANIFEST)
    except NotFound as error:
        if not _is_job(output):
            raise NotFound(f"{error}: give the output of a job") from error
        _check_trains(output, _spec_in(output)[0])
        raise NotFound(f"{error}: the job has not completed, so there is no report") from error
    spec, text = _spec_in(output)
    finals = {name: checkpoint.read_latest(output, name) for name in spec.trainers}
    histories = {name: final.history for name, final in finals.items() if final is not None}
    split = "validation" if model.test is None else "test"
    keys = {name: final.scores[split] for name, final in finals.items() if final is not None and split in final.scores}
    parts = {name: scores.clips_by_video(scores.read(output, key)) for name, key in keys.items()}
    if parts and (lost := sorted(model.weights.keys() - parts.keys())):
        folders = ", ".join(output.uri(f"{layout.TRAINERS}{name}") for name in lost)
        raise NotFound(f"the fused model takes {split} scores that are gone; restore from a backup: {folders}")
    for name, part in parts.items():
        if part.means.classes != model.classes:
            raise _other_scores(output.uri(keys[name]))
    alone, fused = _common(parts, model, _fusion(output, model, split))
    stated = model.test if split == "test" else model.validation
    if stated is not None and stated.members.keys() == alone.keys():
        for name, found in alone.items():
            _check(output.uri(keys[name]), found, stated.videos, stated.members[name])
        if model.features:
            _check(output.uri(layout.fused_scores(split)), fused, stated.videos, stated.fused)
    rounded = {name: final.approximate for name, final in finals.items() if final is not None and final.approximate}
    changes = {name: final.changes for name, final in finals.items() if final is not None and final.changes}
    return Run(
        spec,
        text,
        model,
        histories,
        split,
        alone,
        fused,
        _rows(spec, stores),
        rounded,
        changes,
        _usage(output),
        names_by_split(spec, stores),
    )


def _usage(output: ObjectStore) -> tuple[UsageTotal, ...]:
    kept = TimelineFile(output).read()
    return () if kept is None else kept.timeline.totals


def _fusion(output: ObjectStore, model: FusedModel, split: str) -> Fuse:
    """The function that fuses the scores of a split.

    If the aggregator used features that have been deleted since, it returns the stored result.
    """
    if not model.features:
        return fusion_of(output.below(layout.MODEL), model)
    key = layout.fused_scores(split)
    fused = scores.by_video(scores.read(output, key))

    def stored(parts: Parts) -> VideoScores:
        try:
            return fused.select(next(iter(parts.values())).means.video_id)
        except KeyError as error:
            raise _other_scores(output.uri(key)) from error

    return stored


def _check(uri: str, found: VideoScores, videos: int, stated: Figures) -> None:
    """Raises `PermanentError` unless the model's own figures were computed from these scores."""
    labelled = found.labels is not None or bool((found.class_id >= 0).all())
    if len(found) != videos or not labelled:
        raise _other_scores(uri)
    now = figures(found.truth, found.probabilities)
    if not all(isclose(now[name], stated[name], rel_tol=1e-6, abs_tol=1e-9) for name in now.keys() & stated.keys()):
        raise _other_scores(uri)


def _other_scores(uri: str) -> PermanentError:
    return PermanentError(
        f"{uri} holds other scores than the model was made from; restore it from a backup, or, if the job has "
        "continued since, let it end"
    )


def _spec_in(output: ObjectStore) -> tuple[JobSpec, str]:
    """The job, also as it is written."""
    text = output.get(layout.SPEC).decode("utf-8", "replace")
    return stored_spec(text, output.uri(layout.SPEC)), text


def _check_trains(output: ObjectStore, spec: JobSpec) -> None:
    """Raise `ConfigError`, which says what the job has instead, if there is nothing that a report could be of."""
    if spec.trainers:
        return
    if spec.predictor is not None:
        does, has = "predicts", f"the predictions of a completed one are in {output.uri(layout.PREDICTIONS)}"
    elif spec.extract is not None:
        does = "extracts"
        has = f"the features of a completed one are in {output.uri(features.MANIFEST)}; essp.load_features reads them"
    else:
        does, has = "feeds loops of yours", "`essp audit` checks its history"
    raise ConfigError(
        f"reports are of jobs that train, and job {spec.name} {does}; {has}", field="OUTPUT", code="unsupported"
    )


def _is_job(output: ObjectStore) -> bool:
    try:
        output.head(layout.SPEC)
    except NotFound:
        return False
    return True


def _common(
    parts: Mapping[str, ClipScores], model: FusedModel, fuse: Fuse
) -> tuple[dict[str, VideoScores], VideoScores]:
    """Keep the videos that the model's own figures cover, so that lists and tables agree with them."""
    if not parts:
        nothing = np.zeros((0, len(model.classes)))
        return {}, VideoScores((), np.zeros(0, np.int32), nothing, model.classes)
    videos = sorted(set.intersection(*(set(part.means.video_id) for part in parts.values())))
    chosen = {name: part.select(videos) for name, part in parts.items()}
    return {name: part.means for name, part in chosen.items()}, fuse({name: chosen[name] for name in model.weights})


def _rows(spec: JobSpec, stores: Stores) -> Mapping[str, VideoRow]:
    """The catalog rows for the samples. Empty if the catalog is unreadable, because the report is still useful without
    it."""
    try:
        return ById(open_data(spec, stores).rows)
    except EsspError:
        return {}
