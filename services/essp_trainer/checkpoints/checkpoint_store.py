"""The files of a training in the job's output: checkpoints, scores of its evaluations, history."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import safetensors.torch
from torch import Tensor

from essp_common.artifacts import checkpoint, layout, scores
from essp_common.artifacts.checkpoint import (
    MODEL_FILE,
    OPTIMIZER_FILE,
    TRAINED_FILE,
    Best,
    CheckpointWriter,
    Found,
    Manifest,
    PhaseRecord,
)
from essp_common.artifacts.checkpoint_files import in_memory
from essp_common.artifacts.scores import ScoreTable
from essp_common.errors import ConfigError
from essp_common.learning.models import Classifier, load_state, on_host, packed, restore
from essp_common.objects.port import ObjectStore
from essp_common.pb.v1.messages_pb2 import PhasePlan
from essp_common.planning.digest import as_text, from_text
from essp_common.planning.position import Position
from essp_trainer.assignment import Assignment, purpose_name
from essp_trainer.model.training import Training


@dataclass
class TrainingState:
    """The progress of a training, without the weights."""

    position: Position = field(default_factory=lambda: Position(0, 0))
    epoch: int = 0
    """The epoch of the last clip trained."""
    digest: int = 0
    """Digest of the clips before `position` that this rank has seen; see `essp_common/planning/digest.py`."""
    best: Best | None = None
    history: list[PhaseRecord] = field(default_factory=list)
    running: dict[str, float] = field(default_factory=dict)
    """Sums of the phase in progress at `position`."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy of a training at one moment, to be written in the background."""

    manifest: Manifest
    files: dict[str, dict[str, Tensor]]


class CheckpointStore:
    """Reads one training's folder; rank 0 owns the training (`claim`), and writes."""

    def __init__(self, store: ObjectStore, assignment: Assignment) -> None:
        self._store = store
        self._assignment = assignment
        self._writer: CheckpointWriter | None = None

    def claim(self, writer: str) -> Found:
        """Own the training from now on; what it resumes from. `writer`: the name of this process.

        Raises `ConfigError` if its checkpoint is of another training with the same name, `Fenced` if a process of a
        later run of the job owns it.
        """
        trainer, fence, epochs = self._assignment.trainer, self._assignment.fence, self._assignment.spec.epochs
        self._refuse_other(checkpoint.read_latest(self._store, trainer, epochs))
        self._writer = checkpoint.claim(self._store, trainer, fence, writer, epochs)
        self._refuse_other(self._writer.found.manifest)
        return self._writer.found

    def check_owner(self) -> None:
        """Raises `Fenced` if another process owns the training now. Only rank 0 knows."""
        if self._writer is not None:
            self._writer.check()

    def lost_until(self, found: Found) -> Position | None:
        """Position of a later, damaged checkpoint, instead of which training resumes from an older one; None: none."""
        return self._assignment.position_after(found.lost_until) if found.lost_until else None

    def state_of(self, manifest: Manifest) -> TrainingState:
        """The progress that a checkpoint holds."""
        return TrainingState(
            position=manifest.position,
            epoch=manifest.epoch,
            digest=from_text(manifest.digest),
            best=manifest.best,
            history=list(manifest.history),
            running=dict(manifest.running),
        )

    def load(self, manifest: Manifest, training: Training) -> None:
        """Load weights, momentum and the update counter of a checkpoint into `training`."""
        names = [MODEL_FILE, OPTIMIZER_FILE] + ([] if training.ema is None else [TRAINED_FILE])
        files = checkpoint.load_files(self._store, manifest, names)
        load_state(training.evaluated, files[MODEL_FILE])
        if training.ema is not None:
            load_state(training.model, files[TRAINED_FILE])
        training.optimiser.load(files[OPTIMIZER_FILE])
        training.updates = manifest.updates

    def best_model(self, best: Best) -> Classifier:
        """The model with the best validation."""
        return restore(self._store, checkpoint.read(self._store, self._assignment.trainer, best.step))

    def snapshot(self, training: Training, state: TrainingState) -> Snapshot:
        """A copy of the training between two batches, in host memory."""
        files = {
            MODEL_FILE: on_host(training.evaluated.state_dict()),
            OPTIMIZER_FILE: on_host(training.optimiser.state()),
        }
        if training.ema is not None:
            files[TRAINED_FILE] = on_host(training.model.state_dict())
        step = self._assignment.clips_before(state.position)
        return Snapshot(self._manifest(step, training.updates, training, state), files)

    def final_snapshot(self, training: Training, state: TrainingState) -> Snapshot:
        """The final state: the weights with the best validation, and the keys of their scores."""
        epoch, updates, weights = state.epoch, training.updates, training.evaluated.state_dict()
        if state.best is not None:
            chosen = checkpoint.read(self._store, self._assignment.trainer, state.best.step)
            epoch, updates = chosen.epoch, chosen.updates
            weights = safetensors.torch.load(checkpoint.load_files(self._store, chosen, [MODEL_FILE])[MODEL_FILE])
        step = self._assignment.clips_before(self._assignment.end) + 1
        manifest = self._manifest(step, updates, training, state).model_copy(
            update={"final": True, "epoch": epoch, "scores": self._score_keys(state)}
        )
        return Snapshot(manifest, {MODEL_FILE: on_host(weights)})

    def save(self, snapshot: Snapshot) -> Manifest:
        """Write a checkpoint; see `essp_common.artifacts.checkpoint.CheckpointWriter.save`."""
        if self._writer is None:
            raise RuntimeError("only rank 0 writes checkpoints")
        files = {name: packed(tensors) for name, tensors in snapshot.files.items()}
        return self._writer.save(snapshot.manifest, in_memory(files), self._assignment.training.keep_checkpoints)

    def write_scores(self, plan: PhasePlan, table: ScoreTable) -> None:
        """Write the scores of an evaluation phase. Raises `Fenced` if another process owns the training."""
        self.check_owner()
        scores.write(self._store, self._score_key(purpose_name(plan.purpose), plan.epoch), table)

    def write_history(self, state: TrainingState) -> None:
        """Write the figures of every phase so far, for people and reports. Raises `Fenced`, as `write_scores` does."""
        self.check_owner()
        records = [record.model_dump() for record in state.history]
        self._store.put(layout.history(self._assignment.trainer), json.dumps(records, indent=1).encode())

    def uri(self, manifest: Manifest) -> str:
        """URI of a checkpoint's manifest."""
        return self._store.uri(manifest.key)

    def scores_uri(self, manifest: Manifest) -> str:
        """URI of a final checkpoint's scores on the validation split, or else on the test split."""
        key = manifest.scores.get("validation") or manifest.scores.get("test")
        return self._store.uri(key) if key else ""

    def _refuse_other(self, manifest: Manifest | None) -> None:
        if manifest is not None and manifest.spec_digest != self._assignment.digest():
            raise ConfigError(
                f"{self._store.uri(manifest.key)} was made with other data, sampling, stream or trainer settings; "
                f"set `output` to a new folder, or restore the settings to resume"
            )

    def _manifest(self, step: int, updates: int, training: Training, state: TrainingState) -> Manifest:
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
            model=self._assignment.described(len(training.model.mean)),
            metrics=state.history[-1].metrics if state.history else {},
            best=state.best,
            history=tuple(state.history),
            versions=self._assignment.versions,
        )

    def _score_keys(self, state: TrainingState) -> dict[str, str]:
        keys = {}
        if state.best is not None:
            keys["validation"] = self._score_key("validation", state.best.epoch)
        for record in state.history:
            if record.purpose == "test":
                keys["test"] = self._score_key("test", record.epoch)
        return keys

    def _score_key(self, purpose: str, epoch: int) -> str:
        if purpose == "test":  # of the weights after all epochs: more of them do not overwrite what fewer came to
            epoch = self._assignment.spec.epochs - 1
        return layout.scores(self._assignment.trainer, purpose, epoch)
