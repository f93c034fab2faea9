"""What is known of a job before it begins, and everything that can be wrong with it: pure reads.

The master (at the start of a job), `essp run` and `essp validate` call this one function, so they refuse the same jobs
in the same words. A job goes one way through it:

    resolve.py   what it names is opened: model, records, catalog, splits, features
    checks.py    its settings fit that, and each other; all that is wrong is said at once
    sizing.py    how its clips are divided into work units
    seeds.py     the first ones are made
    place.py     it writes to a folder of its own,
    output.py    which holds its own work, or that of a job that goes,
    resume.py    and its consumers resume there,
    weights.py   or start from weights that are there

Nothing is written; `start_run.py` does that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from essp_common.artifacts.removal import Removal
from essp_common.job.feature_layout import FeatureLayout
from essp_common.job.spec import JobSpec
from essp_common.wiring import Stores
from essp_engine.planning.phases import Phases
from essp_engine.preflight.advice import advice, of_fewer_epochs, of_more_epochs
from essp_engine.preflight.checks import check
from essp_engine.preflight.output import ANYBODY, Asked, check_owner, open_output, removal
from essp_engine.preflight.place import check_place
from essp_engine.preflight.resolve import resolve
from essp_engine.preflight.resume import ResumePoints, resume_points
from essp_engine.preflight.seeds import try_seeds
from essp_engine.preflight.sizing import enough_budget, unit_clips
from essp_engine.preflight.weights import check_weights
from essp_engine.registrations import NOTHING, Declared
from essp_engine.seeding.clip_parts import ClipParts


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

    Raises `ConfigError`, which names the fields and the remedies, `BadCheckpoint`, `Forbidden` for an output of another
    team, and `OfAnotherJob`.

    `fresh`: the job is to begin anew, and what a job has left in its output is removed. `declared`: what it may name
    although its code is not installed here. `continues`: a run that another master began goes on. `asked`: who asks for
    it. `state`: the folder of the master's own state.
    """
    output = open_output(spec, stores)
    job = resolve(spec, stores, declared, None if fresh or continues else output.job)
    check(job)

    # A work unit is as large as the budget allows, so the budget has to be sound before there are sizes and seeds.
    clips = unit_clips(job.spec, job.bounds)
    try_seeds(job, clips)

    # The output comes late: what lies there is listed and read, which takes long where there is much. The very last is
    # its removal, as users may be asked whether another job's work may go, and are so only for a job that can begin.
    if not continues:
        check_place(job, stores, output.store, state, asked)
    known: JobSpec | None = None
    resume = ResumePoints.of_nothing(job.spec)
    if not fresh:
        known = check_owner(output, job.spec, asked, continues)
        resume = resume_points(job.spec, job.phases, output.store, job.model)
    check_weights(job.spec, stores, resume.manifests)
    removes = removal(output, job.spec, asked) if fresh else None
    return Preflight(
        spec=job.spec,
        fresh=fresh,
        removes=removes,
        classes=job.classes,
        phases=job.phases,
        layouts={name: stream.layout for name, stream in job.streams.items()},
        parts=job.parts,
        bounds=job.bounds,
        unit_clips=clips,
        resume=resume,
        warnings=(*advice(job), *of_more_epochs(known, job.spec), *of_fewer_epochs(spec, job.spec)),
    )
