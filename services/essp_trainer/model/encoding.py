"""An encoder of local descriptors that learns, and its linear classifier.

    first epoch     descriptors of its clips ─▶ a bounded sample ─▶ at its end: PCA, mixture or codebook
    later epochs    clips ─▶ vectors ─▶ a bounded sample ─▶ at the end of each: linear classifier, from zeros

At the end of the first epoch there is a classifier, too: of vectors that are made of the sampled descriptors alone. If
the sample has all descriptors, these are the vectors of its clips, and are kept with the later ones.

What is sampled depends on the seed of the training, the epoch, the index of the clip and the place of the row
(`essp_common/encoders/rows.py`). So a resumed training, another order of arrival and other batches give the same
numbers. Each rank encodes its own clips, and all of them keep the same samples, so another number of ranks gives the
same numbers, too; they fit the same model, and take over that of rank 0 to the last bit.

A clip without a descriptor says nothing, and is not learned from. A sample is never changed in place: what is copied
for a checkpoint stays as it is.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from essp_common.artifacts.checkpoint import MODEL_FILE, OPTIMIZER_FILE
from essp_common.artifacts.figures import log_losses
from essp_common.encoders.classifier import fitted_classifier, softmax
from essp_common.encoders.encoder import fitted_encoder
from essp_common.encoders.rows import Entries, Sample, tickets
from essp_common.errors import PermanentError
from essp_common.learning.descriptors import DescriptorClassifier
from essp_common.learning.models import as_tensors, load_tensors, packed, tensors_of
from essp_common.learning.randomness import Share
from essp_trainer.assignment import Assignment
from essp_trainer.data.device import ClipShape
from essp_trainer.data.prefetch import Batch
from essp_trainer.distributed.ranks import Ranks
from essp_trainer.model.port import Files
from essp_trainer.model.step_result import StepResult

log = logging.getLogger(__name__)

_ROWS, _CLIPS = "rows", "clips"
_SEEN = "seen"


class Encoding:
    """Implements `essp_trainer.model.port.Trainable`. All of it is on the CPU."""

    def __init__(self, model: DescriptorClassifier, assignment: Assignment, ranks: Ranks) -> None:
        self.updates = 0
        self._model = model
        self._name = assignment.training.model
        self._spec = assignment.training.encoder
        self._seed = assignment.seed
        self._where = f"trainers.{assignment.trainer}.encoder"
        self._classes = len(assignment.classes)
        self._only_epoch = assignment.spec.epochs == 1
        self._ranks = ranks
        self._samples = {_ROWS: Sample(self._spec.samples), _CLIPS: Sample(self._spec.clips)}
        """Owners are pairs: the index of a clip, and its class."""
        self._wait: Callable[[], None] | None = None

    @property
    def evaluated(self) -> DescriptorClassifier:
        return self._model

    def step(self, batch: Batch, share: Share, shape: ClipShape) -> StepResult:
        """Sample the descriptors of these clips, or encode them. The loss is that of the classifier as it is."""
        clips = [] if batch.input is None else self._model.descriptors(batch.input.here())
        owners = np.array([(item.clip.index, item.clip.class_id) for item in batch.clips], np.int64).reshape(-1, 2)
        if self._model.has_learned:
            vectors, figures = self._encoded(batch.plan.epoch, clips, owners)
            self._keep(_CLIPS, vectors)
        else:
            self._keep(_ROWS, self._drawn(batch.plan.epoch, clips, owners))
            figures = np.array([len(clips) * math.log(self._classes), 0.0])  # it guesses as yet
        self.updates += 1
        sums = torch.from_numpy(figures)
        self._ranks.sum(sums)
        return StepResult(float(sums[0]) / share.clips, round(float(sums[1])), share.clips)

    def end_epoch(self) -> StepResult:
        """Learn from the samples. Raises `PermanentError` if they are too few."""
        if not self._model.has_learned:
            vectors = self._learn_to_encode()
            if self._samples[_ROWS].whole:
                self._samples[_CLIPS].add(vectors)
            elif self._only_epoch:
                log.warning(
                    "%s: samples leaves out some of the %d descriptors, and no epoch follows to encode them all: the "
                    "classifier has learned from parts of clips; give the job 2 epochs, or raise samples",
                    self._where,
                    self._samples[_ROWS].seen,
                )
            self._samples[_ROWS] = Sample(self._spec.samples)
        else:
            kept = self._samples[_CLIPS].entries()
            if kept is None:
                raise PermanentError(f"{self._where}: no clip of this epoch has a descriptor to learn from")
            vectors = kept
        return self._learn_to_classify(vectors)

    def files(self) -> Files:
        state: dict[str, NDArray[np.generic]] = {}
        for name, sample in self._samples.items():
            state[f"{name}.{_SEEN}"] = np.array([sample.seen])
            if (kept := sample.entries()) is not None:
                state |= {f"{name}.{column}": np.ascontiguousarray(array) for column, array in vars(kept).items()}
        return {MODEL_FILE: self._model.state_dict(), OPTIMIZER_FILE: as_tensors(state)}

    def files_to_come(self) -> Files:
        return {MODEL_FILE: self._model.state_dict()}

    def moving(self) -> Collection[tuple[str, str]]:
        return ()

    def load(self, files: Mapping[str, Mapping[str, Tensor]], updates: int) -> None:
        load_tensors(self._model, dict(files[MODEL_FILE]))
        self.updates = updates
        state = {name: tensor.numpy().copy() for name, tensor in files[OPTIMIZER_FILE].items()}
        for name, most in ((_ROWS, self._spec.samples), (_CLIPS, self._spec.clips)):
            self._samples[name] = sample = Sample(most)
            kept = _NOTHING
            if f"{name}.rows" in state:
                kept = Entries(*(state[f"{name}.{column}"] for column in Entries.__annotations__))
            sample.join(kept, int(state[f"{name}.{_SEEN}"][0]))

    def wait_before_update(self, wait: Callable[[], None]) -> None:
        self._wait = wait

    def _drawn(self, epoch: int, clips: list[NDArray[np.generic]], owners: NDArray[np.int64]) -> Entries:
        """The descriptors of these clips, each with its ticket."""
        parts = [
            Entries(self._tickets(epoch, owner, len(rows)), np.tile(owner, (len(rows), 1)), rows.astype(np.float32))
            for owner, rows in zip(owners, clips, strict=True)
        ]
        return Entries.joined(parts) if parts else _NOTHING

    def _encoded(
        self, epoch: int, clips: list[NDArray[np.generic]], owners: NDArray[np.int64]
    ) -> tuple[Entries, NDArray[np.float64]]:
        """The vectors of these clips, each with its ticket; and the sum of their losses, and how many are right."""
        encoder = self._model.encoder
        vectors = [encoder(rows).astype(np.float32) for rows in clips]
        parts = [
            Entries(self._tickets(epoch, owner, 1), owner[None], vector[None])
            for owner, vector in zip(owners, vectors, strict=True)
            if vector.any()
        ]
        figures = _figures(self._model, np.stack(vectors), owners[:, 1]) if vectors else np.zeros(2)
        return Entries.joined(parts) if parts else _NOTHING, figures

    def _tickets(self, epoch: int, owner: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
        return tickets(f"{self._seed}/{epoch}/{int(owner[0])}", rows)

    def _keep(self, name: str, own: Entries) -> None:
        """Add what all ranks have found of a batch. Each sends only what may be kept."""
        sample = self._samples[name]
        if self._ranks.world_size == 1:
            sample.add(own)
            return
        sent = sample.wanted(own)
        parts = self._ranks.all_gather(packed(as_tensors(vars(sent) | {_SEEN: np.array([len(own)])})))
        for part in map(tensors_of, parts):
            arrays = {column: part[column].numpy().copy() for column in Entries.__annotations__}
            sample.join(Entries(**arrays), int(part[_SEEN][0]))

    def _learn_to_encode(self) -> Entries:
        """Fit the encoder. Returns the vectors of the sampled descriptors, clip by clip, with the clips' tickets."""
        kept = self._samples[_ROWS].entries()
        if kept is None:
            raise PermanentError(
                f"{self._where}: no clip of the first epoch has a descriptor; `essp extractor preview` shows what the "
                "feature finds in a video"
            )
        seen = self._samples[_ROWS].seen
        log.info("%s learns to encode from %d of %d descriptors", self._where, len(kept), seen)
        try:
            fitted = fitted_encoder(self._name, kept.rows, self._spec.pca, self._spec.centres, self._seed)
        except ValueError as error:
            raise PermanentError(
                f"{self._where}: {error}. Those are the descriptors of the first epoch; take fewer centres and "
                "components, or more clips (sampling.clips_per_epoch)"
            ) from error
        self._take_over(lambda: self._model.learn(fitted.arrays()))
        return self._vectors_of(kept)

    def _vectors_of(self, kept: Entries) -> Entries:
        owners, number = np.unique(kept.owners, axis=0, return_inverse=True)
        drawn = np.concatenate([self._tickets(0, owner, 1) for owner in owners])
        clips = np.argsort(drawn, kind="stable")[: self._spec.clips]
        encoder = self._model.encoder
        vectors = [encoder(kept.rows[number.ravel() == clip]).astype(np.float32) for clip in clips]
        return Entries(drawn[clips], owners[clips], np.stack(vectors))

    def _learn_to_classify(self, kept: Entries) -> StepResult:
        """Fit the linear classifier. Returns what it is on the clips that it was fitted to."""
        log.info("%s learns to classify from %d clips", self._where, len(kept))
        labels = kept.owners[:, 1].astype(np.int32)
        fitted = fitted_classifier(kept.rows.astype(np.float64), labels, self._classes, self._spec.penalty)
        head = self._model.head

        def learn() -> None:
            with torch.no_grad():
                head.weight.copy_(torch.from_numpy(fitted.weights.T))
                head.bias.copy_(torch.from_numpy(fitted.bias))

        self._take_over(learn)
        loss, correct = _figures(self._model, kept.rows, kept.owners[:, 1])
        return StepResult(float(loss) / len(kept), round(float(correct)), len(kept))

    def _take_over(self, learn: Callable[[], None]) -> None:
        """Change the model, on all ranks to the same bits."""
        wait, self._wait = self._wait, None
        if wait is not None:
            wait()
        learn()
        if self._ranks.world_size > 1:
            load_tensors(self._model, tensors_of(self._ranks.broadcast(packed(self._model.state_dict()))))


_NOTHING = Entries(np.zeros(0, np.int64), np.zeros((0, 2), np.int64), np.zeros((0, 0), np.float32))


def _figures(
    model: DescriptorClassifier, vectors: NDArray[np.float32], labels: NDArray[np.int64]
) -> NDArray[np.float64]:
    """The sum of the losses of these vectors, and how many are classified right."""
    weights, bias = model.head.weight.numpy(), model.head.bias.numpy()
    probabilities = softmax(vectors.astype(np.float64) @ weights.T + bias)
    right = int((probabilities.argmax(axis=1) == labels).sum())
    return np.array([float(log_losses(labels, probabilities).sum()), float(right)])
