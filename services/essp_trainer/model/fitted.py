"""Models that are fitted to all clips at once instead of step by step: samples of all clips, and a linear classifier of
their vectors.

    clips ─▶ vectors, with their classes ─▶ a bounded sample ─▶ at the end of each epoch: linear classifier, from zeros

Encoders of descriptors (`encoding.py`) and probes of networks (`probing.py`) learn this way.

The sample depends on the training's seed, the epoch, the index of the clip and the number of the row
(`essp_engine/encoders/rows.py`). So a resumed training, another order of arrival and other batches give the same
sample. Each rank computes the vectors of its own clips, and all ranks keep the same samples. They fit the same
classifier, and adopt rank 0's to the last bit.

A sample is never changed in place, so what is being copied for a checkpoint stays unchanged.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from essp_common.artifacts.figures import log_losses
from essp_common.artifacts.manifest import MODEL_FILE, OPTIMIZER_FILE
from essp_engine.encoders.classifier import LinearClassifier, softmax
from essp_engine.encoders.fitting import Tell
from essp_engine.encoders.rows import Entries, Sample, tickets
from essp_engine.learning.models import (
    AnyClassifier,
    as_tensors,
    load_state,
    load_tensors,
    packed,
    state_bytes,
    tensors_of,
)
from essp_engine.learning.randomness import Share
from essp_engine.loading.batch import Batch, ClipShape
from essp_trainer.assignment import Assignment
from essp_trainer.distributed.ranks import Ranks
from essp_trainer.model.fits import FitLeft, fitted
from essp_trainer.model.port import Files
from essp_trainer.model.step_result import StepResult

log = logging.getLogger(__name__)

Head = nn.Linear | nn.Conv3d
"""A last layer: linear, or a convolution of one position."""
CLIPS = "clips"
"""The sample that the classifier is learned from: one vector per clip."""
NOTHING = Entries(np.zeros(0, np.int64), np.zeros((0, 2), np.int64), np.zeros((0, 0), np.float32))
_SEEN = "seen"


ModelT = TypeVar("ModelT", bound=AnyClassifier)
T = TypeVar("T")


class Fitted(ABC, Generic[ModelT]):
    """Implements `essp_trainer.model.port.Trainable`, except for the computation of vectors."""

    def __init__(
        self,
        model: ModelT,
        head: Head,
        assignment: Assignment,
        where: str,
        ranks: Ranks,
        sizes: Mapping[str, int],
    ) -> None:
        """`head`: the linear layer of the model that is learned. `where`: the field of the trainer that configures it.
        `sizes`: the largest number of entries of each sample."""
        self.updates = 0
        self.where = f"trainers.{assignment.trainer}.{where}"
        self.head = head
        for parameter in head.parameters():
            nn.init.zeros_(parameter)
        self._model = model
        self._seed = assignment.seed
        self._classes = len(assignment.classes)
        self._ranks = ranks
        self._sizes = sizes
        self._samples = {name: Sample(most) for name, most in sizes.items()}
        """Owners are pairs: the index of a clip, and its class."""
        self._wait: Callable[[], None] | None = None

    @property
    def evaluated(self) -> ModelT:
        """The model to evaluate and save."""
        return self._model

    @abstractmethod
    def taught(self, batch: Batch, owners: NDArray[np.int64], share: Share) -> NDArray[np.float64]:
        """Sample what can be learned from this rank's clips. Returns `figures_of` these clips with the present
        classifier. `owners`: `(n, 2)`, index and class of each clip.
        """

    @abstractmethod
    def end_epoch(self, tell: Tell) -> StepResult:
        """Learn from the samples, and report progress. Raises `PermanentError` if there are too few.

        Raises `FitLeft` on all ranks if `tell` raises it on one. Then it can be called again, also after a checkpoint.
        """

    @abstractmethod
    def classifier_of(self, vectors: NDArray[np.float32], labels: NDArray[np.int32], tell: Tell) -> LinearClassifier:
        """Return the linear classifier of `(V, D)` vectors."""

    def step(self, batch: Batch, share: Share, shape: ClipShape) -> StepResult:
        """Sample these clips. The returned loss is computed with the current classifier."""
        owners = np.array([(item.clip.index, item.clip.class_id) for item in batch.clips], np.int64).reshape(-1, 2)
        sums = torch.from_numpy(self.taught(batch, owners, share))
        self.updates += 1
        # Synchronisation point: all ranks sum, also those without a clip.
        self._ranks.sum(sums)
        return StepResult(float(sums[0]) / share.clips, round(float(sums[1])), share.clips)

    def files(self) -> Files:
        """Return the model, and the samples instead of an optimizer state."""
        state: dict[str, NDArray[np.generic]] = {}
        for name, sample in self._samples.items():
            state[f"{name}.{_SEEN}"] = np.array([sample.seen])
            if (kept := sample.entries()) is not None:
                state |= {f"{name}.{column}": np.ascontiguousarray(array) for column, array in vars(kept).items()}
        return {MODEL_FILE: self._model.state_dict(), OPTIMIZER_FILE: as_tensors(state)}

    def files_to_come(self) -> Files:
        """Return the model: the future size of the samples is not known."""
        return {MODEL_FILE: self._model.state_dict()}

    def moving(self) -> Collection[tuple[str, str]]:
        """Return nothing: tensors change only at the end of an epoch."""
        return ()

    def load(self, files: Mapping[str, Mapping[str, Tensor]], updates: int) -> None:
        """Restore `files`."""
        load_tensors(self._model, dict(files[MODEL_FILE]))
        self.updates = updates
        state = {name: tensor.numpy().copy() for name, tensor in files[OPTIMIZER_FILE].items()}
        for name, most in self._sizes.items():
            self._samples[name] = sample = Sample(most)
            kept = NOTHING
            if f"{name}.rows" in state:
                kept = Entries(*(state[f"{name}.{column}"] for column in Entries.__annotations__))
            sample.join(kept, int(state[f"{name}.{_SEEN}"][0]))

    def wait_before_update(self, wait: Callable[[], None]) -> None:
        """Call `wait` once before the model changes, since it is being copied."""
        self._wait = wait

    def tickets(self, epoch: int, owner: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
        """Return the tickets of this many rows of a clip of an epoch."""
        return tickets(f"{self._seed}/{epoch}/{int(owner[0])}", rows)

    def entries_of(self, epoch: int, owners: NDArray[np.int64], vectors: NDArray[np.float32]) -> Entries:
        """Return one vector per clip of an epoch, with its ticket."""
        if not len(vectors):
            return NOTHING
        return Entries(np.concatenate([self.tickets(epoch, owner, 1) for owner in owners]), owners, vectors)

    def keep(self, name: str, own: Entries) -> None:
        """Add what all ranks have found in a batch to a sample. Each rank sends only what may be kept."""
        sample = self._samples[name]
        if self._ranks.world_size == 1:
            sample.add(own)
            return
        sent = sample.wanted(own)
        parts = self._ranks.all_gather(packed(as_tensors(vars(sent) | {_SEEN: np.array([len(own)])})))
        for part in map(tensors_of, parts):
            arrays = {column: part[column].numpy().copy() for column in Entries.__annotations__}
            sample.join(Entries(**arrays), int(part[_SEEN][0]))

    def guesses(self, clips: int) -> NDArray[np.float64]:
        """Return `figures_of` clips before anything is learned: all classes are equally likely."""
        return np.array([clips * math.log(self._classes), 0.0])

    def figures_of(self, vectors: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the sum of the losses of these vectors, and how many are classified correctly."""
        if not len(vectors):
            return np.zeros(2)
        weights, bias = (parameter.detach().cpu().numpy() for parameter in self.head.parameters())
        probabilities = softmax(vectors.astype(np.float64) @ weights.reshape(len(bias), -1).T + bias)
        right = int((probabilities.argmax(axis=1) == labels).sum())
        return np.array([float(log_losses(labels, probabilities).sum()), float(right)])

    def learn_to_classify(self, kept: Entries, tell: Tell) -> StepResult:
        """Fit the linear classifier. Returns its result on the clips that it was fitted to."""
        log.info("%s learns to classify from %d clips", self.where, len(kept))
        labels = kept.owners[:, 1].astype(np.int32)
        classifier = self.unless_left(lambda: self.classifier_of(kept.rows, labels, tell))

        def learn() -> None:
            weight, bias = self.head.parameters()
            with torch.no_grad():
                weight.copy_(torch.from_numpy(classifier.weights.T).reshape(weight.shape))
                bias.copy_(torch.from_numpy(classifier.bias))

        self.take_over(self.head, learn)
        loss, correct = self.figures_of(kept.rows, kept.owners[:, 1])
        return StepResult(float(loss) / len(kept), round(float(correct)), len(kept))

    def fitted_classifier(
        self, vectors: NDArray[np.floating], labels: NDArray[np.int32], penalty: float, tell: Tell
    ) -> LinearClassifier:
        """Return the linear classifier of `(V, D)` vectors without scaling."""
        work = min(vectors.shape) ** 2 * max(vectors.shape)
        arrays = {"vectors": vectors, "labels": labels}
        return LinearClassifier(**fitted("classifier", work, tell, arrays, classes=self._classes, penalty=penalty))

    def unless_left(self, fit: Callable[[], T]) -> T:
        """Run a fit on all ranks. Raises `FitLeft` on all of them if one has left it."""
        left, found = torch.zeros(1, dtype=torch.int64), None
        try:
            found = fit()
        except FitLeft:
            left[0] = 1
        # Synchronisation point: all ranks leave the fit, or none does.
        self._ranks.max(left)
        if found is None or left[0]:
            raise FitLeft
        return found

    def take_over(self, part: nn.Module, learn: Callable[[], None]) -> None:
        """Change a part of the model, to the same bits on all ranks."""
        # A checkpoint's copy of the present weights must be complete before they change.
        wait, self._wait = self._wait, None
        if wait is not None:
            wait()
        learn()
        # Ranks may round differently; rank 0's result counts.
        if self._ranks.world_size > 1:
            load_state(part, self._ranks.broadcast(state_bytes(part)))
