"""Builds a fused model from finished trainers, within the job's output store.

It reads each trainer's final checkpoint and scores, tries the job's strategies on the validation scores, and writes
`model/`: first the members' weights and what the strategy has learned, then the manifest with the evidence. The test
scores are reported and never used to choose. A second run writes the same bytes.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping

import numpy as np

from essp_aggregator.fusion import Fitted, align, evaluate, try_candidates
from essp_common.aggregation import registry
from essp_common.aggregation.candidates import candidates
from essp_common.aggregation.means import stored
from essp_common.artifacts import checkpoint, layout, scores
from essp_common.artifacts.checkpoint import MODEL_FILE, Manifest
from essp_common.artifacts.clip_features import release_features, with_features
from essp_common.artifacts.fused_model import (
    Evaluation,
    FusedModel,
    Member,
    Strategy,
    read_model,
    write_model,
    write_state,
)
from essp_common.artifacts.scores import ClipScores, ScoreTable
from essp_common.cache.port import FrameCache
from essp_common.errors import EsspError, PermanentError
from essp_common.job.spec import JobSpec
from essp_common.objects.port import ObjectStore
from essp_common.tensors.safetensors_file import as_safetensors

log = logging.getLogger(__name__)


def final_checkpoints(store: ObjectStore, spec: JobSpec) -> dict[str, Manifest] | None:
    """Trainer -> final checkpoint; None while a trainer is not done."""
    found = {}
    for trainer in spec.trainers:
        manifest = checkpoint.read_latest(store, trainer, spec.epochs)
        if manifest is None or not manifest.final:
            return None
        found[trainer] = manifest
    return found


def assemble(
    store: ObjectStore, cache: FrameCache, job: str, spec: JobSpec, finals: Mapping[str, Manifest]
) -> FusedModel:
    """Fuse the trainers of a job and write the model; then free the features of clips that it has read.

    What was fused before from the same checkpoints, by the same candidates, is returned as it is: trainers that end at
    once set it off once each, and features are gone by then. Raises `PermanentError` if the scores of the trainers do
    not match, or features are lost.
    """
    before = _assembled_before(store, job, spec, finals)
    if before is not None:
        return before
    if not spec.aggregation.features:
        return _assembled(
            store, job, spec, finals, _scores(store, finals, "validation"), _scores(store, finals, "test")
        )
    found = {purpose: _tables(store, finals, purpose) for purpose in ("embed", "test")}
    if not found["embed"]:
        raise PermanentError(f"the trainers of {job} have kept no features; give the job an epoch more")
    parts = {
        purpose: {
            name: scores.clips_by_video(with_features(cache, job, name, purpose, table))
            for name, table in tables.items()
        }
        for purpose, tables in found.items()
    }
    model = _assembled(store, job, spec, finals, parts["embed"], parts["test"])
    for purpose, tables in found.items():
        for name, table in tables.items():
            release_features(cache, job, name, purpose, table)
    return model


def _assembled_before(store: ObjectStore, job: str, spec: JobSpec, finals: Mapping[str, Manifest]) -> FusedModel | None:
    """The model of this job, if it was fused from these checkpoints by these candidates."""
    try:
        model = read_model(store, layout.MODEL_MANIFEST)
    except EsspError:
        return None
    wanted = [(one.name, one.params) for one in candidates(spec.aggregation)]
    made_of = {member.trainer: member.checkpoint for member in model.members}
    same = made_of == {name: store.uri(final.key) for name, final in finals.items()}
    return model if same and model.job == job and [(s.name, s.params) for s in model.strategies] == wanted else None


def _assembled(
    store: ObjectStore,
    job: str,
    spec: JobSpec,
    finals: Mapping[str, Manifest],
    validation: Mapping[str, ClipScores],
    test: Mapping[str, ClipScores],
) -> FusedModel:
    try:
        best, tried = try_candidates(candidates(spec.aggregation), validation) if validation else (_equal(finals), [])
        chosen = best.evidence
        model = FusedModel(
            format=2 if chosen.rule is None else 1,
            job=job,
            classes=next(iter(finals.values())).model.classes,
            clip=spec.clip,
            clips_per_video=spec.sampling.clips_per_video,
            streams={trainer.stream: spec.streams[trainer.stream] for trainer in spec.trainers.values()},
            members=tuple(_member(store, spec, name, final, chosen.weights[name]) for name, final in finals.items()),
            strategy=chosen.name,
            params=chosen.params,
            rule=chosen.rule,
            state=write_state(store, best.state) if chosen.rule is None else None,
            features=best.aggregator.needs == "features",
            strategies=tuple(tried),
            validation=_evaluation(validation, best),
            test=_evaluation(test, best),
            versions=next(iter(finals.values())).versions,
        )
    except ValueError as error:
        raise PermanentError(f"the trainers of {job} cannot be fused: {error}") from error
    if model.features:
        for split, parts in (("validation", validation), ("test", test)):
            _write_fused(store, split, parts, best)
    write_model(store, model)
    if model.doubt:
        log.warning("job %s: %s", job, model.doubt, extra={"job_id": job})
    log.info("fused %s by %s: %s", job, model.label, model.weights, extra={"job_id": job})
    return model


def _scores(store: ObjectStore, finals: Mapping[str, Manifest], purpose: str) -> dict[str, ClipScores]:
    """Trainer -> scores by video; empty if the job has no such split."""
    return {name: scores.clips_by_video(table) for name, table in _tables(store, finals, purpose).items()}


def _tables(store: ObjectStore, finals: Mapping[str, Manifest], purpose: str) -> dict[str, ScoreTable]:
    if not all(purpose in final.scores for final in finals.values()):
        return {}
    return {name: scores.read(store, final.scores[purpose]) for name, final in finals.items()}


def _evaluation(parts: Mapping[str, ClipScores], best: Fitted) -> Evaluation | None:
    return evaluate(parts, lambda aligned: best.aggregator.predict(aligned, best.state)) if parts else None


def _write_fused(store: ObjectStore, split: str, parts: Mapping[str, ClipScores], best: Fitted) -> None:
    """Write the fused scores for the report: the features that they come from are not kept."""
    if not parts:
        return
    fused = best.aggregator.predict(align(parts).parts, best.state)
    rows = np.arange(len(fused), dtype=np.int64)
    table = ScoreTable(fused.video_id, fused.class_id, rows, fused.probabilities, fused.classes)
    scores.write(store, layout.fused_scores(split), table)


def _equal(finals: Mapping[str, Manifest]) -> Fitted:
    """Equal weights, for a job without a validation split to choose by."""
    weights = dict.fromkeys(finals, 1 / len(finals))
    evidence = Strategy(name="average", rule="mean", weights=weights, validation={})
    return Fitted(registry.create("average", {}), stored(weights), evidence)


def _member(store: ObjectStore, spec: JobSpec, trainer: str, final: Manifest, weight: float) -> Member:
    """Copy the weights into the model's folder, so that the model outlives the checkpoints."""
    data = as_safetensors(checkpoint.load_arrays(store, final, [MODEL_FILE])[MODEL_FILE])
    key = layout.model_weights(trainer)
    store.put(key, data)
    return Member(
        trainer=trainer,
        stream=spec.trainers[trainer].stream,
        weight=weight,
        model=final.model,
        file=key.rpartition("/")[2],
        sha256=hashlib.sha256(data).hexdigest(),
        bits=0 if final.rounding is None else final.rounding.bits,
        checkpoint=store.uri(final.key),
        epoch=final.epoch,
    )
