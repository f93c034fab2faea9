"""A linear probe of a network: its last layer is fitted directly, and the rest is frozen.

    clips ─▶ network, as in evaluation ─▶ what its last layer reads ─▶ at the end of each epoch: linear classifier

There is no learning rate to choose, and one epoch of few clips is enough. The input of the last layer is averaged over
the frames of a clip, and over positions if that layer is a convolution. The logits of a clip are such means as well,
and the layer is linear, so a classifier of the means computes what the network computes. The classifier is fitted to
inputs standardised to mean 0 and spread 1; its weights are then converted for the original inputs.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from essp_common.errors import PermanentError
from essp_engine.encoders.classifier import LinearClassifier
from essp_engine.encoders.fitting import Tell
from essp_engine.learning.head_inputs import HeadInputs
from essp_engine.learning.models import Classifier
from essp_engine.learning.randomness import Share
from essp_engine.loading.batch import Batch
from essp_engine.loading.device import enough_memory, half_type
from essp_trainer.assignment import Assignment
from essp_trainer.distributed.ranks import Ranks
from essp_trainer.model.fitted import CLIPS, Fitted, Head
from essp_trainer.model.step_result import StepResult

_LEAST_SPREAD = 0.01
"""An input that varies less than this share of the mean spread counts as constant."""


class Probing(Fitted[Classifier]):
    """Implements `essp_trainer.model.port.Trainable`."""

    def __init__(self, model: Classifier, assignment: Assignment, device: torch.device, ranks: Ranks) -> None:
        training = assignment.training
        if training.probe is None:
            raise ValueError(f"{assignment.trainer} is not a probe")
        self._spec = training.probe
        super().__init__(model, _last(model, training.model), assignment, "probe", ranks, {CLIPS: self._spec.clips})
        model.requires_grad_(False)
        self._inputs = HeadInputs(model)
        self._device = device
        self._half = half_type(training.amp, device)

    def taught(self, batch: Batch, owners: NDArray[np.int64], share: Share) -> NDArray[np.float64]:
        """Run these clips through the network, and sample the inputs of its last layer."""
        vectors = self._vectors(batch, share)
        figures = self.figures_of(vectors, owners[:, 1]) if self.head.weight.any() else self.guesses(len(owners))
        self.keep(CLIPS, self.entries_of(batch.plan.epoch, owners, vectors))
        return figures

    def end_epoch(self, tell: Tell) -> StepResult:
        kept = self._samples[CLIPS].entries()
        if kept is None:
            raise PermanentError(f"{self.where}: no clip of this epoch could be learned from")
        return self.learn_to_classify(kept, tell)

    def classifier_of(self, vectors: NDArray[np.float32], labels: NDArray[np.int32], tell: Tell) -> LinearClassifier:
        exact = vectors.astype(np.float64)
        mean, spread = exact.mean(axis=0), exact.std(axis=0)
        spread = np.maximum(spread, _LEAST_SPREAD * spread.mean()) if spread.any() else np.ones_like(spread)
        fitted = self.fitted_classifier((exact - mean) / spread, labels, self._spec.penalty, tell)
        weights = fitted.weights / spread[:, None]
        return LinearClassifier(weights, fitted.bias - mean @ weights)

    def _vectors(self, batch: Batch, share: Share) -> NDArray[np.float32]:
        if batch.input is None:
            return np.zeros((0, 0), np.float32)
        self._model.eval()
        with (
            torch.inference_mode(),
            enough_memory(self._device, share.clips),
            torch.autocast(self._device.type, dtype=self._half, enabled=self._half is not None),
        ):
            self._model(batch.input.here())
            vectors = self._inputs.means(len(batch.clips)).cpu().numpy()
        if not np.isfinite(vectors).all():
            raise PermanentError(
                f"{self.where}: the last layer of the network reads numbers that are not finite; its weights, or the "
                "feature of its stream, are damaged"
            )
        return vectors


def _last(model: Classifier, name: str) -> Head:
    """Return the layer that is learned; dropout may precede it."""
    layer = model.head[-1] if isinstance(model.head, nn.Sequential) else model.head
    if not isinstance(layer, Head):
        raise TypeError(f"the last layer of {name} is a {type(layer).__name__}")
    return layer
