"""The run of a job: what a master owns once it has taken the next fence.

Each start takes the next fencing number from the output store, by a write that only one master can win. If two masters
have the same job, the higher number counts; the other one finds out and lets go.

Checkpoints and history are read after the fence is taken, so nothing that another master or its trainers wrote before
is missed. A run that another master began continues where the newest segment of the job's history ends. A new run, or
one without a segment (because that master died before anything had happened), continues from the trainers' checkpoints.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from essp_common import distribution, topics
from essp_common.artifacts import layout, partial_scores
from essp_common.artifacts.extraction import Extraction
from essp_common.artifacts.fused_model import FusedModel
from essp_common.artifacts.history import History
from essp_common.artifacts.job_copy import write_copy
from essp_common.artifacts.removal import removal_of, remove, write_owner
from essp_common.artifacts.timeline import TimelineFile
from essp_common.errors import ConfigError, Conflict
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobState
from essp_common.job.timeline import StoredTimeline
from essp_common.messages.parsing import MOST_FENCE
from essp_common.messages.snapshot import store_if_large
from essp_common.objects.numbered_log import NumberedLog
from essp_common.objects.port import ObjectStore
from essp_common.pb.v1.messages_pb2 import (
    AGGREGATOR,
    PREDICTOR,
    TRAIN,
    Change,
    CheckpointReady,
    HistorySegment,
    JobSnapshot,
    Stage,
)
from essp_common.runtime import ids
from essp_common.runtime.failpoints import failpoint
from essp_common.wiring import Stores
from essp_engine.preflight.budget import lead_clips
from essp_engine.preflight.model_inputs import model_of
from essp_engine.preflight.output import check_owner, has_more, output_at
from essp_engine.preflight.preflight import Preflight
from essp_engine.preflight.resume import ResumePoints, resume_points
from essp_engine.preflight.weights import scored_with
from essp_master.job.changes import newer
from essp_master.ledger.config import LedgerConfig
from essp_master.ledger.ledger import Ledger

log = logging.getLogger(__name__)

_PACKAGES = (distribution.NAME, "numpy", "av", "opencv-python-headless", "torch", "torchvision")


@dataclass(frozen=True)
class Run:
    """A run of a job that this master may write."""

    preflight: Preflight
    fence: int
    since: int
    """The fence with which this run began: lower than `fence` after a recovery."""
    resume: ResumePoints
    checkpoints: Sequence[CheckpointReady]
    """The checkpoints that trainers resume from, as the messages that would announce them."""
    ledger: Ledger
    snapshot: JobSnapshot
    history: History
    last: int
    """Number of the newest segment of the history; 0 if there is no segment."""
    continued: HistorySegment | None
    """The last segment of the previous master, if its run continues."""
    timeline: TimelineFile
    """Where the course of the job is kept."""
    course: StoredTimeline | None
    """Its course so far; None if none was kept."""
    changes: Sequence[Change] = ()
    """The changes that users have made to the job so far, also in earlier runs."""

    @property
    def epoch_clips(self) -> int:
        """Clips of a training epoch; 0 if the job does not train."""
        return next((plan.clips for plan in self.preflight.phases.plans if plan.purpose == TRAIN), 0)

    @property
    def resumed(self) -> Collection[str]:
        """The trainers that continue from a checkpoint or a previous master."""
        return self.preflight.spec.trainers.keys() if self.continued is not None else self.resume.manifests.keys()


def claim_run(
    preflight: Preflight,
    stores: Stores,
    since: int = 0,
    changes: Sequence[Change] = (),
    team: str = "",
    above: int = 0,
) -> Run:
    """Take the output and the next fence. `since`: continue the run that began with this fence. `changes`: those known
    from the job's last command, or from its previous run in this process; the history may lack the newest. `team`: the
    owning team. `above`: a fence that the name has had, possibly with another output.

    Raises `ConfigError` if another job has taken the output since the preflight, and `Conflict` if no fence is left.
    """
    spec, phases = preflight.spec, preflight.phases
    output = stores.under(spec.output)
    history = History(output)
    # after `fresh`, numbers continue, so a master that still writes to the removed history notices
    before = history.last()
    _claim(output, preflight, since > 0, team)
    fence = _take_fence(output, spec.name, above)
    failpoint("master.fence-taken")
    newest = history.newest()
    continued = newest if newest is not None and since and newest.since == since else None
    if spec.predicts and newest is not None and not since and newest.state == JobState.COMPLETED:
        # The predictor that completed the job removes them too, but a moment after the job is complete: this run must
        # not start from scores that are then removed.
        partial_scores.remove(output)
    resume = resume_points(
        spec, phases, output, _model(spec, stores), preflight.resume.manifests, 0 if since else fence
    )
    snapshot = JobSnapshot(
        spec_json=spec.model_dump_json(),
        classes=preflight.classes,
        versions=_versions(),
        phases=phases.plans,
        plan_digest=phases.digest,
        training_digest=phases.training_digest,
        layouts={name: layout.model_dump_json() for name, layout in preflight.layouts.items()},
    )
    store_if_large(output, snapshot, fence)
    timeline = TimelineFile(output)
    return Run(
        preflight=preflight,
        fence=fence,
        since=since or fence,
        resume=resume,
        checkpoints=[manifest.message(output) for manifest in resume.manifests.values()],
        ledger=_ledger(_ledger_config(preflight, resume), history, continued),
        snapshot=snapshot,
        history=history,
        last=before if newest is None else newest.last,
        continued=continued,
        timeline=timeline,
        course=timeline.read(),
        changes=newer(() if newest is None else newest.changes, changes),
    )


def _claim(output: ObjectStore, preflight: Preflight, continues: bool, team: str) -> None:
    """Write the job's specification to its output, unless an extended one is already there (see `check_owner`)."""
    spec = preflight.spec
    if preflight.fresh:
        _remove(output, preflight)
    known = None if preflight.fresh else check_owner(output_at(output), spec, continues=continues)
    if known is None:
        write_owner(output, team)
    if known is None or not has_more(known, spec):
        output.put(layout.SPEC, (spec.model_dump_json(indent=2) + "\n").encode())
        write_copy(output, spec)


def _remove(output: ObjectStore, preflight: Preflight) -> None:
    """Remove what the preflight found, in its current extent. Raises `Conflict` if another job owns it by now."""
    removal, found = removal_of(output), preflight.removes
    if removal is None:
        return
    if removal.job not in (preflight.spec.name, None if found is None else found.job):
        raise Conflict(f"output: {removal.uri} was taken by job {removal.job} meanwhile; choose another output")
    log.info("job %s starts over; removed: %s", preflight.spec.name, removal.words)
    remove(output, removal)


def _model(spec: JobSpec, stores: Stores) -> FusedModel | Extraction | None:
    """What predictors score the clips with, as it is now: it may not be what the preflight has read."""
    try:
        return scored_with(spec, stores, model_of(spec, stores))
    except ConfigError:
        return None  # the predictor reports it; or the model is where only the predictor can read


def _take_fence(output: ObjectStore, job: str, above: int) -> int:
    if above + 1 >= MOST_FENCE:  # no master came that far, but any client may send a command
        raise Conflict(
            f"job {job}: {topics.CONTROL} holds a command with fence {above}, and no higher one is valid; choose "
            "another name"
        )
    fences = NumberedLog(output, layout.FENCES)
    number = fences.append(b"{}", above)
    fences.prune(number)
    return number


def _ledger(config: LedgerConfig, history: History, continued: HistorySegment | None) -> Ledger:
    """Return the run's ledger, restored from the history if the run continues. Raises `BadHistory`."""
    if continued is None:
        return Ledger(config)
    with history.understood(continued.last):
        return Ledger(config, continued.ledger)


def _ledger_config(preflight: Preflight, resume: ResumePoints) -> LedgerConfig:
    spec, phases, budget = preflight.spec, preflight.phases, preflight.budget
    return LedgerConfig(
        phases=phases.plans,
        plan_of=phases.plan,
        parts=preflight.parts,
        bounds=preflight.bounds,
        replaceable=[purpose == TRAIN for purpose, _ in phases.order],
        start=resume.start,
        finals=resume.ended,
        budget_bytes=spec.limits.budget,
        unit_clips=budget.unit_clips,
        locality=spec.sampling.issue_window,
        replacements=spec.limits.replacements,
        dead_ratio=spec.limits.dead_ratio,
        last_stage=_last_stage(spec),
        lag=spec.limits.lag,
        loops=frozenset(map(ids.loop_consumer, spec.consumers)),
        catch_up_window=budget.catch_up_window,
        catch_up_bytes=budget.catch_up_bytes,
        lead_clips=lead_clips(phases),
    )


def _last_stage(spec: JobSpec) -> Stage | None:
    if spec.consumers:
        return None
    return PREDICTOR if spec.predicts else AGGREGATOR


@functools.cache
def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
