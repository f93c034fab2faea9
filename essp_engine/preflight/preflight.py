"""Checks a job before it begins, and collects what its run needs: it only reads.

The master (at the start of a job), `essp run` and `essp validate` call `preflight`, so they refuse the same jobs in the
same words. A job passes through these modules once, in this order:

    resolve.py   opens what the job names: model, weights, records, catalog, splits, features
    checks.py    compares settings with that and with each other, and reports all problems at once
    seeds.py     builds the messages of the first work units
    place.py     checks that the job writes to a folder of its own
    output.py    checks whose work is in that folder, and what would be removed
    resume.py    reads where each consumer resumes
    weights.py   checks the weights of trainers that begin

Writing is left to `start_run.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from essp_common.artifacts.removal import Removal
from essp_common.job.feature_layout import FeatureLayout
from essp_common.job.spec import JobSpec
from essp_common.wiring import Stores
from essp_engine.preflight.advice import advice
from essp_engine.preflight.checks import check
from essp_engine.preflight.output import ANYBODY, Asked, check_owner, open_output, removal
from essp_engine.preflight.place import check_place
from essp_engine.preflight.resolve import PlannedJob, resolve
from essp_engine.preflight.resume import ResumePoints, resume_points
from essp_engine.preflight.seeds import try_seeds
from essp_engine.preflight.weights import check_weights
from essp_engine.registrations import NOTHING, Declared


@dataclass(frozen=True, kw_only=True)
class Preflight(PlannedJob):
    """A job that can begin, and what its run needs."""

    fresh: bool
    """The job starts over."""
    removes: Removal | None
    """What a start removes: the work of an earlier job in the output, this one or another; None: nothing."""
    layouts: Mapping[str, FeatureLayout]
    """Stream -> how to read its values."""
    resume: ResumePoints
    """Where each consumer would begin."""
    warnings: tuple[str, ...]
    """What the user should know, although the job can run."""

    def with_budget(self, least_clips: int) -> Preflight:
        """The same job with a budget that is sufficient and holds at least this many clips."""
        budget = max(least_clips * self.budget.clip_bytes, self.budget.enough_bytes)
        limits = self.spec.limits.model_copy(update={"budget": budget})
        return replace(self, spec=self.spec.model_copy(update={"limits": limits}))


def preflight(
    spec: JobSpec,
    stores: Stores,
    fresh: bool = False,
    declared: Declared = NOTHING,
    continues: bool = False,
    asked: Asked = ANYBODY,
    state: str = "",
) -> Preflight:
    """Check a job, and complete it with the inputs of its model.

    `fresh`: the job starts over, and the work in its output is removed. `declared`: what it may name although the code
    is not installed here. `continues`: the run of another master continues. `asked`: who asks for the start. `state`:
    the folder of the master's own state.

    Raises `ConfigError`, which names fields and remedies, `BadCheckpoint`, `Forbidden` for an output of another team,
    and `OfAnotherJob`.
    """
    output = open_output(spec, stores)
    job = resolve(spec, stores, declared, None if fresh or continues else output.job)
    check(job)
    try_seeds(job)

    # The output comes last, because listing it may take long. Its removal comes after everything else, because users
    # may be asked whether to remove another job's work, and should be asked only for a job that can begin.
    if not continues:
        check_place(job, stores, output.store, state, asked)
    known: JobSpec | None = None
    resume = ResumePoints.of_nothing(job.spec)
    if not fresh:
        known = check_owner(output, job.spec, asked, continues)
        resume = resume_points(job.spec, job.phases, output.store, job.scored_with)
    check_weights(job.spec, stores, resume.manifests)
    removes = removal(output, job.spec, asked) if fresh else None
    return Preflight(
        spec=job.spec,
        classes=job.classes,
        phases=job.phases,
        parts=job.parts,
        bounds=job.bounds,
        fresh=fresh,
        removes=removes,
        layouts={name: stream.layout for name, stream in job.streams.items()},
        resume=resume,
        warnings=advice(job, spec, known),
    )
