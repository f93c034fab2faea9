"""The model of a training: built from the first clip's input shape or from a checkpoint, then trained and evaluated."""

from __future__ import annotations

import torch

from essp_common.artifacts.manifest import Best, Manifest, ModelDescription, Origin
from essp_common.artifacts.scores import ScoreTable
from essp_common.errors import ConfigError, PermanentError
from essp_engine.encoders.fitting import Tell
from essp_engine.learning.descriptors import DescriptorClassifier
from essp_engine.learning.models import Classifier, StartingWeights, build
from essp_engine.learning.randomness import Share, seed_of
from essp_engine.loading.batch import Batch, ClipShape
from essp_engine.loading.device import enough_memory
from essp_trainer.assignment import Assignment
from essp_trainer.checkpoints.checkpoint_store import CheckpointStore
from essp_trainer.distributed.ranks import Ranks
from essp_trainer.model.ema import Ema
from essp_trainer.model.encoding import Encoding
from essp_trainer.model.evaluation import Evaluation
from essp_trainer.model.port import Trainable
from essp_trainer.model.probing import Probing
from essp_trainer.model.rates import Rates
from essp_trainer.model.step_result import LaunchedStep, StepResult
from essp_trainer.model.training import Training


class Learner:
    """Trains and evaluates one model, batch by batch."""

    def __init__(
        self,
        assignment: Assignment,
        checkpoint_store: CheckpointStore,
        device: torch.device,
        ranks: Ranks,
        weights: StartingWeights | None = None,
    ) -> None:
        """`weights`: what a new training starts from; None: random initial weights."""
        self._assignment = assignment
        self._checkpoint_store = checkpoint_store
        self._device = device
        self._ranks = ranks
        self._weights = weights
        self.rates = Rates(assignment)
        """Its learning rates, present and past."""
        self._training: Trainable | None = None
        self._evaluation: Evaluation | None = None

    @property
    def origin(self) -> Origin | None:
        """The file that a new training starts from."""
        return None if self._weights is None else self._weights.origin

    @property
    def has_model(self) -> bool:
        """Whether the model has been built."""
        return self._training is not None

    @property
    def training(self) -> Trainable:
        """The model being trained. Raises `PermanentError` if no clip of a training phase has come."""
        if self._training is None:
            raise PermanentError("nothing has been trained: no clip of a training phase came")
        return self._training

    def resume(self, manifest: Manifest) -> None:
        """Build the model of a checkpoint, which must then be loaded. Raises `ConfigError` if it was made from another
        catalog."""
        if self._assignment.clips_before(manifest.position) != manifest.step:
            raise ConfigError(
                f"{self._checkpoint_store.uri(manifest)} was made with phases of other lengths: the catalog or "
                f"its splits have changed since; set `output` to a new folder, or build the catalog as it was",
                code="conflict",
            )
        if manifest.model.classes != self._assignment.classes:
            raise ConfigError(
                f"{self._checkpoint_store.uri(manifest)} was made for other classes than the catalog now has "
                f"({', '.join(manifest.model.classes)}); set `output` to a new folder, or build the catalog as it was",
                code="conflict",
            )
        self.rates.restore(manifest.changes)
        self._make(manifest.model)

    def train(self, batch: Batch, share: Share, shape: ClipShape) -> StepResult | LaunchedStep:
        """Take one step. `shape`: of the batch's clips, on all ranks."""
        if self._training is None:
            self._make(self._assignment.described(shape.channels))
        return self.training.step(batch, share, shape)

    def end_epoch(self, tell: Tell) -> StepResult | None:
        """End a training phase. Returns the result of learning from all its clips together, if the model learns in that
        way."""
        return self.training.end_epoch(tell)

    def evaluate(self, batch: Batch, best: Best | None) -> StepResult:
        """Score this rank's clips of one batch with the current weights, or with the weights of the `best`
        checkpoint."""
        if self._evaluation is None:
            model = self.training.evaluated if best is None else self._checkpoint_store.best_model(best)
            embeds, alone = self._assignment.embeds(batch.plan), self._assignment.spec.data.targets == "spans"
            self._evaluation = Evaluation(model, self._device, self._assignment.classes, embeds, each_alone=alone)
        return self._evaluation.add(batch)

    def finish_evaluation(self) -> ScoreTable | None:
        """End the evaluation. Returns its scores, or None if no rank had a clip."""
        evaluation, self._evaluation = self._evaluation, None
        return None if evaluation is None else evaluation.table()

    def _make(self, model: ModelDescription) -> None:
        with enough_memory(self._device, self._assignment.training.batch_size):
            if model.encoder is not None:
                self._training = Encoding(DescriptorClassifier(model), self._assignment, self._ranks)
            elif self._assignment.training.probe is not None:
                self._training = Probing(self._classifier(model), self._assignment, self._device, self._ranks)
            else:
                self._training = self._network(model)
            self._checkpoint_store.prepare(self._training)

    def _network(self, model: ModelDescription) -> Training:
        network, ema = self._classifier(model), None
        if decay := self._assignment.training.ema:
            twin = build(model, seed=0, code=self._assignment.code)
            twin.load_state_dict(network.state_dict())
            ema = Ema(twin.to(self._device), decay)
        return Training(network, ema, self._assignment, self._device, self._ranks, self.rates)

    def _classifier(self, model: ModelDescription) -> Classifier:
        tensors = None if self._weights is None else self._weights.tensors
        seed = seed_of("weights", self._assignment.seed)
        return build(model, seed, tensors, self._assignment.code).to(self._device)
