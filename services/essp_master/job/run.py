"""The run of a job: what a master owns once it has taken the next fence.

Each start takes the next fencing number from the output store, by a write that only one master can win. Of two masters
of one job the higher number counts; the other finds out and lets go.

Checkpoints and history are read after the fence is taken, so nothing that another master or its trainers wrote before
is missed. A run that another master began continues where the newest segment of the job's history says; without a
segment (that master died before anything had happened), and in a new run, where the trainers' checkpoints say.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from essp_common import distribution
from essp_common.artifacts import layout, partial_scores
from essp_common.artifacts.history import History
from essp_common.artifacts.removal import removal_of, remove, write_owner
from essp_common.errors import Conflict
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobState
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
from essp_engine.preflight.preflight import Preflight, check_owner, has_more
from essp_engine.preflight.resume import ResumePoints, resume_points
from essp_engine.preflight.sizing import catch_up_bytes, catch_up_window, lead_clips
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
    """The fence with which this run of the job began: lower than `fence` after a recovery."""
    resume: ResumePoints
    checkpoints: Sequence[CheckpointReady]
    """What trainers resume from, as they would tell of it."""
    ledger: Ledger
    snapshot: JobSnapshot
    history: History
    last: int
    """Number of the newest segment of the history; 0: there is none."""
    continued: HistorySegment | None
    """Where the previous master stood, when its run continues."""
    changes: Sequence[Change] = ()
    """What people have changed of the job until now, also in earlier runs."""

    @property
    def epoch_clips(self) -> int:
        """Of an epoch of training; 0: it does not train."""
        return next((plan.clips for plan in self.preflight.phases.plans if plan.purpose == TRAIN), 0)

    @property
    def resumed(self) -> Collection[str]:
        """The trainers that go on where they were."""
        return self.preflight.spec.trainers.keys() if self.continued is not None else self.resume.manifests.keys()


def claim_run(
    preflight: Preflight, stores: Stores, since: int = 0, changes: Sequence[Change] = (), team: str = ""
) -> Run:
    """Take the output and the next fence. `since`: continue the run that began with this fence. `changes`: those that
    its last command tells of, or its run before in this process; the history may not have the last of them yet. `team`:
    whose job it is.

    Raises `ConfigError` when another job has taken the output since the preflight.
    """
    spec, phases = preflight.spec, preflight.phases
    output = stores.under(spec.output)
    history = History(output)
    before = history.last()  # numbers continue after `fresh`: a master that still writes to what was removed notices
    _claim(output, preflight, since > 0, team)
    fence = _take_fence(output)
    failpoint("master.fence-taken")
    newest = history.newest()
    continued = newest if newest is not None and since and newest.since == since else None
    if spec.predictor and newest is not None and not since and newest.state == JobState.COMPLETED:
        # The predictor that had it removes them too, but a moment after the job is complete: this run must not begin
        # after scores that then are gone.
        partial_scores.remove(output)
    resume = resume_points(spec, phases, stores, preflight.resume.manifests, 0 if since else fence)
    snapshot = JobSnapshot(
        spec_json=spec.model_dump_json(),
        classes=preflight.classes,
        versions=_versions(),
        phases=phases.plans,
        plan_digest=phases.digest(),
        training_digest=phases.training_digest(),
        layouts={name: layout.model_dump_json() for name, layout in preflight.layouts.items()},
    )
    store_if_large(output, snapshot, fence)
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
        changes=newer(() if newest is None else newest.changes, changes),
    )


def _claim(output: ObjectStore, preflight: Preflight, continues: bool, team: str) -> None:
    """Write the job's specification to its output, unless it is there with more (see `check_owner`)."""
    spec = preflight.spec
    if preflight.fresh:
        _remove(output, preflight)
    known = None if preflight.fresh else check_owner(output, spec, continues=continues)
    if known is None:
        write_owner(output, team)
    if known is None or not has_more(known, spec):
        output.put(layout.SPEC, (spec.model_dump_json(indent=2) + "\n").encode())


def _remove(output: ObjectStore, preflight: Preflight) -> None:
    """Remove what the preflight has found, as it is by now. Raises `Conflict` if it is another job's by now."""
    removal, found = removal_of(output), preflight.removes
    if removal is None:
        return
    if removal.job not in (preflight.spec.name, None if found is None else found.job):
        raise Conflict(f"output: {removal.uri} was taken by job {removal.job} meanwhile; choose another output")
    log.info("job %s starts over; removed: %s", preflight.spec.name, removal.words)
    remove(output, removal)


def _take_fence(output: ObjectStore) -> int:
    fences = NumberedLog(output, layout.FENCES)
    number = fences.append(b"{}")
    fences.prune(number)
    return number


def _ledger(config: LedgerConfig, history: History, continued: HistorySegment | None) -> Ledger:
    """The account of a run, as the history has it where a run continues. Raises `BadHistory`."""
    if continued is None:
        return Ledger(config)
    with history.understood(continued.last):
        return Ledger(config, continued.ledger)


def _ledger_config(preflight: Preflight, resume: ResumePoints) -> LedgerConfig:
    spec, phases = preflight.spec, preflight.phases
    return LedgerConfig(
        phases=phases.plans,
        plan_of=phases.plan,
        parts=preflight.parts,
        bounds=preflight.bounds,
        replaceable=[purpose == TRAIN for purpose, _ in phases.order],
        start=resume.start,
        finals=resume.ended,
        budget_bytes=spec.limits.budget,
        unit_clips=preflight.unit_clips,
        locality=spec.sampling.issue_window,
        replacements=spec.limits.replacements,
        dead_ratio=spec.limits.dead_ratio,
        last_stage=_last_stage(spec),
        lag=spec.limits.lag,
        loops=frozenset(map(ids.loop_consumer, spec.consumers)),
        catch_up_window=catch_up_window(spec, preflight.bounds),
        catch_up_bytes=catch_up_bytes(spec, preflight.bounds),
        lead_clips=lead_clips(phases),
    )


def _last_stage(spec: JobSpec) -> Stage | None:
    if spec.consumers:
        return None
    return AGGREGATOR if spec.predictor is None else PREDICTOR


@functools.cache
def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
