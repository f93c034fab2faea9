"""Where the consumers of a job resume: trainers from their newest checkpoints, predictors after the clips that they
scored. A user's own loops give their position when they connect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from essp_common.artifacts.checkpoint import read_latest
from essp_common.artifacts.early_stop import EarlyStop, early_stop
from essp_common.artifacts.extraction import Extraction
from essp_common.artifacts.fused_model import FusedModel
from essp_common.artifacts.manifest import Manifest
from essp_common.artifacts.partial_scores import PartialScores
from essp_common.job.position import Position
from essp_common.job.spec import JobSpec
from essp_common.objects.port import ObjectStore
from essp_common.runtime import ids
from essp_engine.planning.phases import Phases


@dataclass(frozen=True)
class ResumePoints:
    """Where each consumer begins."""

    manifests: Mapping[str, Manifest]
    """The newest whole checkpoints, by trainer."""
    start: Mapping[str, Position]
    """By consumer."""

    stops: Mapping[str, EarlyStop]
    """The trainers that have stopped early."""

    @property
    def ended(self) -> frozenset[str]:
        """The trainers that have finished."""
        return frozenset(name for name, manifest in self.manifests.items() if manifest.final)

    @classmethod
    def of_nothing(cls, spec: JobSpec) -> Self:
        """All consumers begin at the start."""
        return cls({}, {name: Position(0, 0) for name in spec.readers()}, {})


def resume_points(
    spec: JobSpec,
    phases: Phases,
    output: ObjectStore,
    model: FusedModel | Extraction | None,
    verified: Mapping[str, Manifest] | None = None,
    run: int = 0,
) -> ResumePoints:
    """Read where each consumer resumes. Raises `BadCheckpoint` if a trainer has checkpoints, but none is whole.

    `model`: what predictors score with (`weights.scored_with`). `verified`: checkpoints that were read before;
    they are not read again if they are still the newest. `run`: the fence of a run that begins, whose predictor then
    has to score with this model; 0: no run begins.
    """
    known = verified or {}
    manifests = {
        name: found for name in spec.trainers if (found := read_latest(output, name, spec.epochs, known.get(name)))
    }
    start = {name: Position(0, 0) for name in spec.readers()}
    start |= {ids.trainer_consumer(name): _position(found, phases) for name, found in manifests.items()}
    if model is not None:
        start |= _scored(spec, output, phases, model, run)
    stops = {
        name: stop
        for name, found in manifests.items()
        if (stop := early_stop(found.history, spec.trainers[name], spec.epochs))
    }
    return ResumePoints(manifests, start, stops)


def _position(manifest: Manifest, phases: Phases) -> Position:
    """Where a trainer resumes; one that has finished, after the last phase."""
    return Position(len(phases.plans), 0) if manifest.final else manifest.position


def _scored(
    spec: JobSpec, output: ObjectStore, phases: Phases, model: FusedModel | Extraction, run: int
) -> dict[str, Position]:
    """Where the consumers of a predict job resume."""
    scored = PartialScores(output, spec, phases.digest, model)
    if run:
        scored.bind(run)
    [plan] = phases.plans
    return {
        consumer: Position(0, stop)
        for consumer, stream in spec.readers().items()
        if (stop := scored.saved(stream).stop(plan.clips))
    }
