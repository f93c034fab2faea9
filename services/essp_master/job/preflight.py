"""How a job comes to life: from its specification to all that is known before the first seed.

Everything that can be wrong with a job is found here, before anything is published: unknown fields of the catalog,
features that cannot be made, a budget that is too small, an output that another job wrote to. A job whose output holds
checkpoints goes on from them.

Each start takes the next fencing number from the output store, by a write that only one can win. Of two masters of one
job the higher number counts; the other finds out and lets go.

A run that another master began is gone on with where the newest segment of the job's history says; without one (it died
before anything had happened), and in a new run, where the trainers' checkpoints say.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from essp_common import distribution
from essp_common.artifacts import layout
from essp_common.artifacts.checkpoint import Manifest, read_latest
from essp_common.artifacts.fused_model import open_model
from essp_common.artifacts.history import History
from essp_common.artifacts.partial_scores import PartialScores
from essp_common.catalog.table import Catalog, read_catalog
from essp_common.errors import ConfigError, Conflict, NotFound, PermanentError
from essp_common.features.declared import DeclaredFeature
from essp_common.job.spec import JobSpec, stored_spec
from essp_common.objects.port import ObjectStore
from essp_common.pb.v1.messages_pb2 import TRAIN, HistorySegment, JobSnapshot
from essp_common.planning.phases import Phases
from essp_common.planning.plan import empty_classes
from essp_common.planning.position import Position
from essp_common.runtime.failpoints import failpoint
from essp_common.wiring import Stores
from essp_master.job.sizing import bounds_of, lane_bytes, parts_of, uncoupled_budget, unit_clips
from essp_master.ledger.config import LedgerConfig
from essp_master.ledger.ledger import Ledger
from essp_master.ledger.parts import ClipParts

log = logging.getLogger(__name__)

_PACKAGES = (distribution.NAME, "numpy", "av", "opencv-python-headless", "torch", "torchvision", "torchmetrics")
_OWN = (
    *("trainers/", "model/", layout.HISTORY, layout.REPORT, layout.DEADLETTERS, layout.SPEC),
    *(layout.PREDICTIONS, layout.SEGMENTS, layout.PARTS),
)
"""What a job writes, and `fresh` removes; its catalog and its fences stay."""


@dataclass(frozen=True)
class Launch:
    """A job that may begin."""

    spec: JobSpec
    phases: Phases
    ledger: Ledger
    snapshot: JobSnapshot
    fence: int
    since: int
    """The fence with which this run of the job began."""
    history: History
    last: int
    """Number of the newest segment of the history; 0: there was none."""
    continued: HistorySegment | None
    """Where the master before this one had come to, when its run is gone on with."""
    manifests: Mapping[str, Manifest]
    """The newest checkpoints, by trainer."""
    start: Mapping[str, Position]
    """Where each consumer starts."""
    warnings: tuple[str, ...]


def launch(
    spec: JobSpec,
    stores: Stores,
    fresh: bool = False,
    since: int = 0,
    declared: Mapping[str, DeclaredFeature] | None = None,
) -> Launch:
    """Prepare a job. Raises `ConfigError`, naming the field and the remedy.

    `fresh` removes what an earlier run left in the output. `since`: go on with the run that began with this fence.
    `declared`: features that are registered, and whose code is not here.
    """
    catalog = catalog_of(spec, stores)
    check_weights(spec, stores)
    phases = Phases(spec, catalog)
    parts = parts_of(spec)
    bounds = bounds_of(phases, parts, declared)
    unit_clips(spec, bounds)  # refuses a budget that is too small, before anything is written
    output = stores.under(spec.output)
    history = History(output)
    before = history.last()  # numbers go on after `fresh`: whoever still writes to what was removed is to notice
    _claim(output, spec, fresh)
    fence = _fence(output)
    failpoint("master.fence-taken")
    newest = history.newest()
    continued = newest if newest is not None and since and newest.since == since else None
    manifests = {name: found for name in spec.trainers if (found := read_latest(output, name)) is not None}
    start = {name: Position(0, 0) for name in parts.consumers}
    start |= {f"trainer.{name}": _start(found, phases) for name, found in manifests.items()}
    start |= _scored(spec, stores, phases)
    terms = _terms(spec, phases, parts, bounds, start, manifests)
    snapshot = JobSnapshot(
        spec_json=spec.model_dump_json(),
        classes=catalog.classes,
        versions=_versions(),
        phases=phases.plans,
        plan_digest=phases.digest(),
    )
    return Launch(
        spec=spec,
        phases=phases,
        ledger=Ledger(terms, None if continued is None else continued.ledger),
        snapshot=snapshot,
        fence=fence,
        since=since or fence,
        history=history,
        last=before if newest is None else newest.last,
        continued=continued,
        manifests=manifests,
        start=start,
        warnings=warnings_of(phases, bounds),
    )


def _terms(
    spec: JobSpec,
    phases: Phases,
    parts: ClipParts,
    bounds: Sequence[Sequence[int]],
    start: Mapping[str, Position],
    manifests: Mapping[str, Manifest],
) -> LedgerConfig:
    return LedgerConfig(
        phases=phases.plans,
        plan_of=phases.plan,
        parts=parts,
        bounds=bounds,
        replaceable=[purpose == TRAIN for purpose, _ in phases.order],
        start=start,
        finals=frozenset(name for name, found in manifests.items() if found.final),
        budget_bytes=spec.limits.budget,
        unit_clips=unit_clips(spec, bounds),
        locality=spec.sampling.locality,
        replacements=spec.limits.replacements,
        dead_ratio=spec.limits.dead_ratio,
        last_stage="aggregator" if spec.predictor is None else "predictor",
        lag=spec.limits.lag,
        lane_bytes=lane_bytes(spec, bounds),
    )


def catalog_of(spec: JobSpec, stores: Stores) -> Catalog:
    """The catalog of a job. Raises `ConfigError` where there is none."""
    if not spec.data.catalog:
        raise ConfigError("data.catalog: is required; make one with `essp catalog build`")
    try:
        return read_catalog(*stores.resolve(spec.data.catalog))
    except NotFound as error:
        raise ConfigError(f"data.catalog: {error}; make one with `essp catalog build`") from error


def check_weights(spec: JobSpec, stores: Stores) -> None:
    """Raises `ConfigError` for weights to start from that are not there."""
    for name, trainer in spec.trainers.items():
        if trainer.weights is not None:
            try:
                store, key = stores.resolve(trainer.weights)
                store.head(key)
            except NotFound as error:
                raise ConfigError(f"trainers.{name}.weights: {error}") from error


def _claim(output: ObjectStore, spec: JobSpec, fresh: bool) -> None:
    """Write the job's specification to its output, which has to be its own."""
    if fresh:
        for key in [info.key for info in output.list() if info.key.startswith(_OWN)]:
            output.delete(key)
    try:
        text = output.get(layout.SPEC).decode("utf-8", "replace")
    except NotFound:
        text = ""
    if text:
        known = stored_spec(text, output.uri(layout.SPEC))  # of whatever version
        differing = _differing(known.model_dump(mode="json"), spec.model_dump(mode="json"))
        if differing:
            raise ConfigError(
                f"output: {spec.output} holds another job, which differs in {', '.join(differing)}; choose another "
                "name and output, or start with --fresh to remove what is there"
            )
    output.put(layout.SPEC, (spec.model_dump_json(indent=2) + "\n").encode())


def _differing(known: Any, wanted: Any, where: str = "") -> list[str]:
    """The fields in which two specifications differ, but for those that do not change what is computed."""
    if where.split(".")[0] == "limits" or where.split(".")[-1] in ("device", "threads", "keep_checkpoints"):
        return []
    if isinstance(known, dict) and isinstance(wanted, dict):
        names = sorted(known.keys() | wanted.keys())
        return [
            field for n in names for field in _differing(known.get(n), wanted.get(n), f"{where}.{n}" if where else n)
        ]
    return [] if known == wanted else [where]


def _start(manifest: Manifest, phases: Phases) -> Position:
    """Where a trainer goes on; one that is done, after everything."""
    return Position(len(phases.plans), 0) if manifest.final else manifest.position


def _scored(spec: JobSpec, stores: Stores, phases: Phases) -> dict[str, Position]:
    """Where the consumers of a predict job go on."""
    if spec.predictor is None:
        return {}
    try:
        _, model = open_model(stores, spec.predictor.model)
    except (ConfigError, NotFound, PermanentError):
        return {}  # the predictor says so; or it lies where only the predictor can read
    partial_scores = PartialScores(stores.under(spec.output), spec, phases.digest(), model)
    [plan] = phases.plans
    return {
        consumer: Position(0, stop)
        for consumer, stream in spec.consumers().items()
        if (stop := partial_scores.stop(stream, plan.clips))
    }


def _fence(output: ObjectStore) -> int:
    number = max((int(info.key.rpartition("/")[2]) for info in output.list(layout.FENCES)), default=0)
    while True:
        number += 1
        try:
            output.put(layout.fence(number), b"{}", if_absent=True)
        except Conflict:
            continue
        for old in range(max(1, number - 3), number):
            output.delete(layout.fence(old))
        return number


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def warnings_of(phases: Phases, bounds: Sequence[Sequence[int]]) -> tuple[str, ...]:
    """What a user should know of a job that runs all the same."""
    spec, view = phases.spec, phases.view(0)
    found = []
    if spec.predictor is None and (missing := empty_classes(view)):
        few = f"{', '.join(missing[:10])}{', ...' if len(missing) > 10 else ''}"
        found.append(f"no usable training video of {len(missing)} of {len(view.classes)} classes: {few}")
    if len(spec.trainers) > 1 and not spec.limits.coupled and not lane_bytes(spec, bounds):
        needed = -(-uncoupled_budget(spec, bounds) // 2**20)
        found.append(
            "limits.budget is too small for a trainer to be left behind, so all keep in step with the slowest; "
            f"raise it to {needed}MiB or more, or set limits.coupled: true"
        )
    return tuple(found)
