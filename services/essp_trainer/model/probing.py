"""A linear probe of a network: its last layer is learned without steps, and the rest stays as it is.

    clips ─▶ network, as in evaluation ─▶ what its last layer reads ─▶ at the end of each epoch: linear classifier

There is no rate to choose, and one epoch of few clips is enough. What a clip is to the last layer is a mean over its
frames, and over places where that layer is a convolution: the logits of a clip are such means as well, and both layers
are linear, so what is learned of the means is what the network computes. The classifier learns from numbers of mean 0
and spread 1, whatever their units are in this network; the layer that is kept is for the numbers as they are.
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
"""A number that spreads less than this share of the mean spread is as good as constant."""


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
        """Send these clips through the network, and sample what its last layer reads."""
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
    """The layer that is learned, which may have dropout before it."""
    layer = model.head[-1] if isinstance(model.head, nn.Sequential) else model.head
    if not isinstance(layer, Head):
        raise TypeError(f"the last layer of {name} is a {type(layer).__name__}")
    return layer
