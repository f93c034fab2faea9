"""The files of a training in the job's output: checkpoints, scores of its evaluations, history.

A checkpoint is copied between two batches and, on a CPU, partly during the next one, until its update (`snapshot`). It
is packed and written later, while training continues (`save`). Both use the same memory, so one snapshot is saved
before the next one is taken.

Scores that the store does not accept are kept in memory and written before the next checkpoint of a later phase: a
training that resumed from that checkpoint would not compute them again. The same applies to the history before the
final checkpoint.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from essp_common.artifacts import checkpoint, checkpoint_writer, layout, scores
from essp_common.artifacts.checkpoint import Found
from essp_common.artifacts.checkpoint_files import BadCheckpoint, Data
from essp_common.artifacts.checkpoint_writer import CheckpointWriter
from essp_common.artifacts.manifest import (
    MODEL_FILE,
    OPTIMIZER_FILE,
    TRAINED_FILE,
    Best,
    Manifest,
    Origin,
    PhaseRecord,
    Rounding,
    TakenChange,
)
from essp_common.artifacts.scores import ScoreTable
from essp_common.artifacts.staging import Burst, Staging
from essp_common.errors import ConfigError, EsspError, TransientError
from essp_common.job.position import Position
from essp_common.job.trainer_spec import CheckpointSpec
from essp_common.objects.port import ObjectStore
from essp_common.pb.v1.messages_pb2 import VALIDATION, CheckpointReady, PhasePlan
from essp_common.quantities import size
from essp_common.runtime.metrics import CHECKPOINT_COPY_SECONDS, CHECKPOINTS
from essp_common.tensors.packed import Packing
from essp_engine.learning.models import AnyClassifier, as_tensors, restore
from essp_engine.planning.digest import as_text, from_text
from essp_trainer.assignment import Assignment, purpose_name
from essp_trainer.checkpoints.packing_process import PackingProcess
from essp_trainer.checkpoints.state_memory import Moving, Tensors, bytes_of
from essp_trainer.checkpoints.state_packing import PackingThread, StatePacking
from essp_trainer.model.port import Trainable

log = logging.getLogger(__name__)

_OF_ALL_EPOCHS = ("embed", "test")
"""Phases that occur once, after all epochs."""


@dataclass
class TrainingState:
    """The progress of a training, without the weights."""

    position: Position = field(default_factory=lambda: Position(0, 0))
    epoch: int = 0
    """The epoch of the last trained clip."""
    digest: int = 0
    """Digest of the clips before `position` that this rank has processed; see `essp_engine/planning/digest.py`."""
    best: Best | None = None
    history: list[PhaseRecord] = field(default_factory=list)
    running: dict[str, float] = field(default_factory=dict)
    """Sums of the phase in progress at `position`."""
    approximate: tuple[int, ...] = ()
    """Steps of the rounded checkpoints from which the training has resumed."""
    origin: Origin | None = None
    """The weights with which it began."""
    changes: tuple[TakenChange, ...] = ()
    """Changes of the running job that the training has applied."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A training at one moment, to be written in the background. Its tensors are copies, in memory that is kept."""

    manifest: Manifest
    packings: dict[str, Packing]
    """How to write each file."""


@dataclass(frozen=True, slots=True)
class _Unwritten:
    """A file that the store has not accepted yet."""

    data: bytes
    phase: int
    """The phase in which it was made. A training that resumes from a checkpoint of a later phase does not make it
    again."""


class CheckpointStore:
    """Reads one training's folder; rank 0 owns the training (`claim`) and writes."""

    def __init__(self, store: ObjectStore, assignment: Assignment, burst: Burst | None = None) -> None:
        """`burst`: where checkpoints are written first; None: directly to the store."""
        self.passed_by = ""
        """The first reason why a checkpoint bypassed the burst buffer; empty if none did."""
        self._store = store
        self._assignment = assignment
        self._burst = burst
        self._writer: CheckpointWriter | None = None
        self._packing: StatePacking = _packing_of(assignment.training.checkpoint)
        self._staging: Staging | None = None
        self._unwritten: dict[str, _Unwritten] = {}
        """By key: scores and the history. The threads of `save_queue.py` write them, too."""

    def close(self) -> None:
        """Free the memory of copies, and the training's folder in the burst buffer. Idempotent."""
        self._packing.close()
        if self._staging is not None:
            self._staging.close()
            self._staging = None

    def claim(self, writer: str) -> Found:
        """Take ownership of the training. Returns what to resume from. `writer`: the name of this process.

        Raises `ConfigError` if its checkpoint belongs to another training with the same name, and `Fenced` if a process
        of a later run of the job owns it.
        """
        trainer, fence, epochs = self._assignment.trainer, self._assignment.fence, self._assignment.spec.epochs
        if (newest := checkpoint.latest_name(self._store, trainer)) is not None:
            with suppress(BadCheckpoint):  # an older checkpoint may be found below
                self._refuse_other(checkpoint.read_named(self._store, trainer, newest))
        self._open_staging()
        self._writer = checkpoint_writer.claim(self._store, trainer, fence, writer, epochs, self._staging)
        if (found := self._writer.found.manifest) is not None:
            self._refuse_other(found)
        self._begin_staging(self._writer.process)
        return self._writer.found

    def check_owner(self) -> None:
        """Raise `Fenced` if another process owns the training now. Only rank 0 can tell."""
        if self._writer is not None:
            self._writer.check()

    def lost_until(self, found: Found) -> Position | None:
        """Return the position of a later, damaged checkpoint, if training resumes from an older one instead; else
        None."""
        return self._assignment.position_after(found.lost_until) if found.lost_until else None

    def state_of(self, manifest: Manifest) -> TrainingState:
        """Return the progress in a checkpoint."""
        return TrainingState(
            position=manifest.position,
            epoch=manifest.epoch,
            digest=from_text(manifest.digest),
            best=manifest.best,
            history=list(manifest.history),
            running=dict(manifest.running),
            origin=manifest.origin,
            changes=manifest.changes,
            approximate=manifest.approximate + ((manifest.step,) if manifest.rounding is not None else ()),
        )

    def load(self, manifest: Manifest, training: Trainable) -> None:
        """Load weights, optimizer state and the update counter of a checkpoint into `training`."""
        held = checkpoint.load_arrays(self._store, manifest, list(training.files()))
        training.load({name: as_tensors(arrays) for name, arrays in held.items()}, manifest.updates)

    def best_model(self, best: Best) -> AnyClassifier:
        """Return the model with the best validation."""
        found = checkpoint.read(self._store, self._assignment.trainer, best.step)
        return restore(self._store, found, self._assignment.code)

    def prepare(self, training: Trainable) -> None:
        """Allocate what the first snapshot needs, so that no step waits for it. Only on rank 0."""
        if self._writer is None:
            return
        try:
            self._packing.prepare(bytes_of(training.files_to_come()), training.evaluated.device.type == "cuda")
        except TransientError as error:
            log.warning("trainer %s: the first checkpoint is not prepared: %s", self._assignment.trainer, error)

    def snapshot(self, training: Trainable, state: TrainingState) -> Snapshot:
        """Copy the training between two batches. The previous snapshot must have been saved.

        `training` waits for the copy before its next update. Raises `Unavailable` if there is not enough memory.
        """
        step = self._assignment.clips_before(state.position)
        manifest = self._manifest(step, training.updates, training, state)
        snapshot = self._copied(manifest, training.files(), training.moving())
        training.wait_before_update(self._packing.wait_for_copy)
        return snapshot

    def final_snapshot(self, training: Trainable, state: TrainingState) -> Snapshot:
        """Copy the final state: the weights with the best validation, and the keys of their scores."""
        epoch, updates = state.epoch, training.updates
        weights: Tensors = training.evaluated.state_dict()
        if state.best is not None:
            chosen = checkpoint.read(self._store, self._assignment.trainer, state.best.step)
            epoch, updates = chosen.epoch, chosen.updates
            weights = as_tensors(checkpoint.load_arrays(self._store, chosen, [MODEL_FILE])[MODEL_FILE])
        step = self._assignment.clips_before(self._assignment.end) + 1
        manifest = self._manifest(step, updates, training, state).model_copy(
            update={"final": True, "epoch": epoch, "scores": self._score_keys(state)}
        )
        return self._copied(manifest, {MODEL_FILE: weights}, ())

    def save(self, snapshot: Snapshot) -> Manifest:
        """Write scores that were kept back, then a checkpoint (see `artifacts.checkpoint_writer.CheckpointWriter`)."""
        saved = self._packed(snapshot, self._save)
        if self._staging is not None:  # everything in the buffer is older
            self._staging.clear()
        return saved

    def stage(self, snapshot: Snapshot) -> Manifest | None:
        """Write a checkpoint to the burst buffer, from which `copy` takes it. Returns None if it must be saved
        directly.

        That is the case if there is no buffer, if it has no room or fails (reported once), or if scores must be written
        first.
        """
        if self._staging is None or self._needed_by(snapshot.manifest):
            return None
        try:
            staged = self._packed(snapshot, self._staging.stage)
        except EsspError as error:
            self._pass_by(error)
            return None
        CHECKPOINTS.labels("staged").inc()
        return staged

    def copy(self, staged: Manifest) -> Manifest | None:
        """Write a staged checkpoint to the store, like `save`. Returns None if a newer staged one has replaced it."""
        if self._staging is None:
            raise RuntimeError("nothing is staged without a burst buffer")
        begun_s = time.monotonic()
        saved = self._staging.copy(staged, self._save)
        if saved is not None:
            took_s = time.monotonic() - begun_s
            CHECKPOINT_COPY_SECONDS.labels(saved.trainer).observe(took_s)
            copied = size(sum(file.size_bytes for file in saved.files))
            log.info("trainer %s: checkpoint %d is durable: %s in %.1f s", saved.trainer, saved.step, copied, took_s)
        return saved

    @property
    def keeps_scores(self) -> bool:
        """Whether there are scores that the store has not accepted yet."""
        return any(kept.phase < self._assignment.end.phase_index for kept in list(self._unwritten.values()))

    def write_scores(self, plan: PhasePlan, table: ScoreTable) -> None:
        """Write the scores of an evaluation phase, without features, which are not part of the output.

        Raises `Fenced` if another process owns the training, or the store's error; then the scores are kept until the
        next checkpoint.
        """
        alone = scores.packed(dataclasses.replace(table, features=None))
        phase = self._assignment.phases.index(plan)
        self._write(self._score_key(purpose_name(plan.purpose), plan.epoch), _Unwritten(alone, phase))

    def write_history(self, state: TrainingState) -> None:
        """Write the metrics of every phase so far, for users and reports. Raises and keeps the file as `write_scores`
        does."""
        records = [record.model_dump() for record in state.history]
        history = _Unwritten(json.dumps(records, indent=1).encode(), self._assignment.end.phase_index)
        self._write(layout.history(self._assignment.trainer), history)

    def uri(self, manifest: Manifest) -> str:
        """Return the URI of a checkpoint's manifest."""
        return self._store.uri(manifest.key)

    def message(self, manifest: Manifest) -> CheckpointReady:
        """Return the message that announces a checkpoint to the master."""
        return manifest.message(self._store)

    def _copied(self, manifest: Manifest, files: Mapping[str, Tensors], moving: Moving) -> Snapshot:
        self._packing.take(files, moving)
        asked = self._assignment.training.checkpoint
        packings = {name: _packing(asked, self._is_rounded(name, manifest)) for name in files}
        if rounded := tuple(name for name, packing in packings.items() if packing.bits):
            rounding = Rounding(bits=asked.bits, scope=asked.scope, files=rounded)
            manifest = manifest.model_copy(update={"rounding": rounding})
        return Snapshot(manifest, packings)

    def _is_rounded(self, file: str, manifest: Manifest) -> bool:
        """Whether this file of a checkpoint should be rounded, if the job asks for rounding."""
        asked = self._assignment.training.checkpoint
        if file == OPTIMIZER_FILE:
            return asked.optimizer == "quantized"
        if file == TRAINED_FILE or asked.best == "quantized":
            return True
        return not (manifest.final or self._may_be_best(manifest.position))

    def _may_be_best(self, position: Position) -> bool:
        """Whether the next phase evaluates the weights at this position."""
        phases = self._assignment.phases
        return position.phase_index < len(phases) and phases[position.phase_index].purpose == VALIDATION

    def _packed(self, snapshot: Snapshot, write: Callable[[Manifest, Data], Manifest]) -> Manifest:
        """Write the files of a snapshot with `write`.

        With a burst buffer, no file is a difference to an earlier checkpoint, which may never reach the store.
        """
        manifest = self._owner.named(snapshot.manifest)
        alone = manifest.final or self._staging is not None
        data = self._packing.data(manifest.checkpoint, snapshot.packings, alone)
        completed = False
        try:
            written = write(manifest, data)
            completed = True
        finally:
            self._packing.settle(completed)
        return written

    @property
    def _owner(self) -> CheckpointWriter:
        if self._writer is None:
            raise RuntimeError("only rank 0 writes checkpoints")
        return self._writer

    def _write(self, key: str, file: _Unwritten) -> None:
        try:
            self.check_owner()
            self._store.put(key, file.data)
        except EsspError:
            self._unwritten[key] = file
            raise
        self._unwritten.pop(key, None)

    def _needed_by(self, manifest: Manifest) -> dict[str, _Unwritten]:
        """Return the files that must be written before a checkpoint, by key."""
        kept = dict(self._unwritten)
        reached = manifest.position.phase_index
        return {key: file for key, file in kept.items() if manifest.final or file.phase < reached}

    def _save(self, manifest: Manifest, data: Data) -> Manifest:
        for key, file in self._needed_by(manifest).items():
            self._write(key, file)
        saved = self._owner.save(manifest, data, self._assignment.training.checkpoint.keep)
        CHECKPOINTS.labels("durable").inc()
        return saved

    def _open_staging(self) -> None:
        """Open the training's folder in the burst buffer, if there is one."""
        if self._burst is None or self._staging is not None:  # a failed claim may already have opened it
            return
        assignment = self._assignment
        try:
            self._staging = Staging(self._burst, assignment.spec.output, assignment.trainer, assignment.digest())
        except EsspError as error:
            self._pass_by(error)

    def _begin_staging(self, process: str) -> None:
        """`process`: the one that owns the training; empty: the training is finished."""
        if self._staging is None:
            return
        try:
            if process:
                self._staging.begin(process)
            else:
                self._staging.clear()
        except EsspError as error:
            self._staging.close()
            self._staging = None
            self._pass_by(error)

    def _pass_by(self, error: EsspError) -> None:
        if not self.passed_by:
            self.passed_by = f"checkpoints go past the burst buffer, straight to the store, where it fails: {error}"
            log.warning("trainer %s: %s", self._assignment.trainer, self.passed_by)

    def _refuse_other(self, manifest: Manifest) -> None:
        if manifest.spec_digest != self._assignment.digest():
            raise ConfigError(
                f"{self._store.uri(manifest.key)} was made with other data, sampling, stream or trainer settings; "
                f"set `output` to a new folder, or restore the settings to resume",
                code="conflict",
            )

    def _manifest(self, step: int, updates: int, training: Trainable, state: TrainingState) -> Manifest:
        return Manifest(
            job=self._assignment.job,
            trainer=self._assignment.trainer,
            step=step,
            updates=updates,
            epoch=state.epoch,
            epochs=self._assignment.spec.epochs,
            position=state.position,
            running=state.running,
            fence=self._assignment.fence,
            digest=as_text(state.digest),
            spec_digest=self._assignment.digest(),
            clips=self._assignment.clips,
            model=self._assignment.described(training.evaluated.channels),
            metrics=state.history[-1].metrics if state.history else {},
            best=state.best,
            history=tuple(state.history),
            approximate=state.approximate,
            origin=state.origin,
            changes=state.changes,
            versions=self._assignment.versions,
        )

    def _score_keys(self, state: TrainingState) -> dict[str, str]:
        keys = {}
        if state.best is not None:
            keys["validation"] = self._score_key("validation", state.best.epoch)
        for record in state.history:
            if record.purpose in _OF_ALL_EPOCHS:
                keys[record.purpose] = self._score_key(record.purpose, record.epoch)
        return keys

    def _score_key(self, purpose: str, epoch: int) -> str:
        # after an extension, results of the weights after fewer epochs must not be overwritten
        if purpose in _OF_ALL_EPOCHS:
            epoch = self._assignment.spec.epochs - 1
        return layout.scores(self._assignment.trainer, purpose, epoch)


def _packing_of(asked: CheckpointSpec) -> StatePacking:
    if asked.parallel == "process" and hasattr(os, "memfd_create"):
        return PackingProcess(asked)
    return PackingThread(asked)


def _packing(asked: CheckpointSpec, rounded: bool) -> Packing:
    """Non-finite values stay exact: a training that diverges should not also lose its checkpoints."""
    return Packing(
        bits=asked.bits if rounded else 0,
        scope=asked.scope,
        exact_one_dimensional=asked.exact_one_dimensional,
        codec=asked.codec,
        planes=asked.planes,
        not_finite="exact",
    )
