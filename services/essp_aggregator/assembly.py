"""Builds a fused model from finished trainers, within the job's output store.

It reads each trainer's final checkpoint and scores, tries the job's strategies on the validation scores, and writes
`model/`: first the members' weights and what the strategy has learned, then the manifest with the evidence. The test
scores are reported but never used to choose. A second run writes the same bytes. Until the new manifest is written, the
previous one and its files stay readable.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping

import numpy as np

from essp_aggregator.fusion import NO_GROUPS, Fitted, Try, align, evaluate, in_turn, try_candidates
from essp_aggregator.groups import groups_of
from essp_common.artifacts import checkpoint, layout, scores
from essp_common.artifacts.clip_features import release_features, with_features
from essp_common.artifacts.figures import figures, rank
from essp_common.artifacts.fused_model import (
    Evaluation,
    FusedModel,
    Member,
    Strategy,
    read_model,
    write_model,
    write_state,
)
from essp_common.artifacts.manifest import MODEL_FILE, Manifest
from essp_common.artifacts.scores import ClipScores, ScoreTable, VideoScores
from essp_common.cache.port import FrameCache
from essp_common.errors import EsspError, PermanentError
from essp_common.job.spec import JobSpec
from essp_common.objects.port import ObjectStore
from essp_common.tensors.safetensors_file import as_safetensors
from essp_common.wiring import Stores
from essp_engine.aggregation import registry
from essp_engine.aggregation.candidates import candidates
from essp_engine.aggregation.means import stored

log = logging.getLogger(__name__)


def final_checkpoints(store: ObjectStore, spec: JobSpec) -> dict[str, Manifest] | None:
    """Trainer -> final checkpoint; None while any trainer is still running."""
    found = {}
    for trainer in spec.trainers:
        manifest = checkpoint.read_latest(store, trainer, spec.epochs)
        if manifest is None or not manifest.final:
            return None
        found[trainer] = manifest
    return found


def assemble(
    store: ObjectStore,
    cache: FrameCache,
    job: str,
    spec: JobSpec,
    finals: Mapping[str, Manifest],
    stores: Stores,
    attempt: Try = in_turn,
) -> FusedModel:
    """Fuse the trainers of a job, write the model, then free the clip features that it read.

    `stores`: where the catalog is. The catalog says which videos are too alike to learn from one and judge by another.
    `attempt`: tries the candidates.

    If the same candidates were already fused from the same checkpoints, returns that model unchanged: trainers that
    finish at the same time each trigger a fusion, and by the second one the features are gone. Raises `PermanentError`
    if the trainers' scores do not match, or if features are lost.
    """
    members = _members(store, job, spec, finals)
    before = _assembled_before(store, job, spec, members)
    if before is not None:
        return before
    if not spec.aggregation.features:
        validation, test = (_scores(store, finals, purpose) for purpose in ("validation", "test"))
        return _assembled(store, job, spec, members, validation, test, stores, attempt)
    found = {purpose: _tables(store, finals, purpose) for purpose in ("embed", "test")}
    if not found["embed"]:
        raise PermanentError(f"the trainers of {job} have kept no features; give the job an epoch more")
    parts = {
        purpose: {
            name: scores.clips_by_video(with_features(cache, job, name, purpose, table) if name in members else table)
            for name, table in tables.items()
        }
        for purpose, tables in found.items()
    }
    model = _assembled(store, job, spec, members, parts["embed"], parts["test"], stores, attempt)
    for purpose, tables in found.items():
        for name, table in tables.items():
            release_features(cache, job, name, purpose, table)
    return model


def _members(store: ObjectStore, job: str, spec: JobSpec, finals: Mapping[str, Manifest]) -> dict[str, Manifest]:
    """The trainers to fuse: all of them, except that a sweep with `keep` contributes only its best on the validation
    videos."""
    kept = dict(finals)
    limited = {sweep: names for sweep, names in spec.sweeps.items() if spec.trainers[names[0]].keep}
    found = _scores(store, finals, "embed" if spec.aggregation.features else "validation") if limited else {}
    if not found:
        return kept
    try:
        shared = align(found)
    except ValueError as error:
        raise _cannot_be_fused(job, error) from error
    ranks = {name: rank(figures(shared.truth, part.means.probabilities)) for name, part in shared.parts.items()}
    for sweep, names in limited.items():
        best_first = sorted(names, key=ranks.__getitem__)
        keep = spec.trainers[names[0]].keep
        for name in best_first[keep:]:
            del kept[name]
        log.info("of sweep %s the best are fused: %s", sweep, ", ".join(best_first[:keep]))
    return kept


def _assembled_before(
    store: ObjectStore, job: str, spec: JobSpec, members: Mapping[str, Manifest]
) -> FusedModel | None:
    """The model of this job, if it was already fused from these checkpoints with these candidates; else None."""
    try:
        model = read_model(store, layout.MODEL_MANIFEST)
    except EsspError:
        return None
    wanted = [(one.name, one.params) for one in candidates(spec.aggregation, spec.data.targets)]
    made_of = {member.trainer: member.checkpoint for member in model.members}
    same = made_of == {name: store.uri(final.key) for name, final in members.items()}
    return model if same and model.job == job and [(s.name, s.params) for s in model.strategies] == wanted else None


def _assembled(
    store: ObjectStore,
    job: str,
    spec: JobSpec,
    members: Mapping[str, Manifest],
    validation: Mapping[str, ClipScores],
    test: Mapping[str, ClipScores],
    stores: Stores,
    attempt: Try,
) -> FusedModel:
    """Fuse `members`. The reported figures cover all trainers, including those left out."""
    one = next(iter(members.values()))
    judging = {video for part in validation.values() for video in part.means.video_id}
    groups = groups_of(spec, stores, judging) if judging else NO_GROUPS
    try:
        chosen_from = {name: validation[name] for name in members} if validation else {}
        wanted = candidates(spec.aggregation, spec.data.targets)
        best, tried = try_candidates(wanted, chosen_from, attempt, groups) if chosen_from else (_equal(members), [])
        chosen = best.evidence
        # Before anything is written, since this may raise.
        judged = [_evaluation(split, best, members) for split in (validation, test)]
        model = FusedModel(
            format=2 if chosen.rule is None else 1,
            job=job,
            classes=one.model.classes,
            background=spec.sampling.background,
            independent=one.model.independent,
            clip=spec.clip,
            clips_per_video=spec.sampling.clips_per_video,
            streams={spec.trainers[name].stream: spec.streams[spec.trainers[name].stream] for name in members},
            members=tuple(_member(store, spec, name, final, chosen.weights[name]) for name, final in members.items()),
            strategy=chosen.name,
            params=chosen.params,
            rule=chosen.rule,
            state=write_state(store, best.state) if chosen.rule is None else None,
            features=best.aggregator.needs == "features",
            strategies=tuple(tried),
            validation=judged[0],
            test=judged[1],
            versions=one.versions,
        )
    except ValueError as error:
        raise _cannot_be_fused(job, error) from error
    if model.features:
        for split, parts in (("validation", validation), ("test", test)):
            _write_fused(store, split, {name: parts[name] for name in members if name in parts}, best)
    write_model(store, model)
    if model.doubt:
        log.warning("job %s: %s", job, model.doubt, extra={"job_id": job})
    log.info("fused %s by %s: %s", job, model.label, model.weights, extra={"job_id": job})
    return model


def _cannot_be_fused(job: str, error: ValueError) -> PermanentError:
    return PermanentError(f"the trainers of {job} cannot be fused: {error}")


def _scores(store: ObjectStore, finals: Mapping[str, Manifest], purpose: str) -> dict[str, ClipScores]:
    """Trainer -> scores by video; empty if the job has no such split."""
    return {name: scores.clips_by_video(table) for name, table in _tables(store, finals, purpose).items()}


def _tables(store: ObjectStore, finals: Mapping[str, Manifest], purpose: str) -> dict[str, ScoreTable]:
    if not all(purpose in final.scores for final in finals.values()):
        return {}
    return {name: scores.read(store, final.scores[purpose]) for name, final in finals.items()}


def _evaluation(parts: Mapping[str, ClipScores], best: Fitted, members: Iterable[str]) -> Evaluation | None:
    def fuse(aligned: Mapping[str, ClipScores]) -> VideoScores:
        return best.aggregator.predict({name: aligned[name] for name in members}, best.state)

    return evaluate(parts, fuse) if parts else None


def _write_fused(store: ObjectStore, split: str, parts: Mapping[str, ClipScores], best: Fitted) -> None:
    """Write the fused scores for the report, which cannot recompute them: the features behind them are not kept."""
    if not parts:
        return
    fused = best.aggregator.predict(align(parts).parts, best.state)
    rows = np.arange(len(fused), dtype=np.int64)
    table = ScoreTable(fused.video_id, fused.class_id, rows, fused.probabilities, fused.classes, labels=fused.labels)
    scores.write(store, layout.fused_scores(split), table)


def _equal(finals: Mapping[str, Manifest]) -> Fitted:
    """Equal weights, for a job without a validation split to choose by."""
    weights = dict.fromkeys(finals, 1 / len(finals))
    evidence = Strategy(name="average", rule="mean", weights=weights, validation={})
    return Fitted(registry.create("average", {}), stored(weights), evidence)


def _member(store: ObjectStore, spec: JobSpec, trainer: str, final: Manifest, weight: float) -> Member:
    """Copy the weights into the model's folder, so that the model outlives the checkpoints."""
    data = as_safetensors(checkpoint.load_arrays(store, final, [MODEL_FILE])[MODEL_FILE])
    sha256 = hashlib.sha256(data).hexdigest()
    key = layout.model_weights(trainer, sha256)
    store.put(key, data)
    return Member(
        trainer=trainer,
        stream=spec.trainers[trainer].stream,
        weight=weight,
        model=final.model,
        file=key.rpartition("/")[2],
        sha256=sha256,
        bits=0 if final.rounding is None else final.rounding.bits,
        checkpoint=store.uri(final.key),
        epoch=final.epoch,
    )
