"""Learns an encoder of local descriptors, and its linear classifier.

    first epoch     descriptors of its clips ─▶ a bounded sample ─▶ at its end: PCA, mixture or codebook
    later epochs    clips ─▶ vectors ─▶ a bounded sample ─▶ at the end of each: linear classifier (`fitted.py`)

The first epoch also ends with a classifier, of vectors that are computed from the sampled descriptors only. If the
sample contains all descriptors, these are the vectors of its clips, and are kept with the later ones.

The result does not depend on the order of arrival, the batches or the number of ranks.

A clip without descriptors is ignored.
"""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import NDArray

from essp_common.errors import PermanentError
from essp_engine.encoders.classifier import LinearClassifier
from essp_engine.encoders.fitting import Tell
from essp_engine.encoders.rows import Entries, Sample
from essp_engine.learning.descriptors import DescriptorClassifier
from essp_engine.learning.randomness import Share
from essp_engine.loading.batch import Batch
from essp_trainer.assignment import Assignment
from essp_trainer.distributed.ranks import Ranks
from essp_trainer.model.fits import fitted
from essp_trainer.model.fitted import CLIPS, NOTHING, Fitted
from essp_trainer.model.step_result import StepResult

log = logging.getLogger(__name__)

_ROWS = "rows"
_PASSES = 100
"""About how often k-means reads all rows, which is one step of a fit."""


class Encoding(Fitted[DescriptorClassifier]):
    """Implements `essp_trainer.model.port.Trainable`. Runs entirely on the CPU."""

    def __init__(self, model: DescriptorClassifier, assignment: Assignment, ranks: Ranks) -> None:
        self._spec = assignment.training.encoder
        sizes = {_ROWS: self._spec.samples, CLIPS: self._spec.clips}
        super().__init__(model, model.head, assignment, "encoder", ranks, sizes)
        self._name = assignment.training.model
        self._only_epoch = assignment.spec.epochs == 1

    def taught(self, batch: Batch, owners: NDArray[np.int64], share: Share) -> NDArray[np.float64]:
        """Sample the descriptors of these clips, or encode them."""
        clips = [] if batch.input is None else self._model.descriptors(batch.input.here())
        if not self._model.has_learned:
            self.keep(_ROWS, self._drawn(batch.plan.epoch, clips, owners))
            return self.guesses(len(clips))
        encoder = self._model.encoder
        vectors = np.array([encoder(rows) for rows in clips], np.float32)
        found = vectors.any(axis=-1)
        self.keep(CLIPS, self.entries_of(batch.plan.epoch, owners[found], vectors[found]) if clips else NOTHING)
        return self.figures_of(vectors, owners[:, 1])

    def end_epoch(self, tell: Tell) -> StepResult:
        if not self._model.has_learned or self._samples[_ROWS].seen:
            return self._end_first_epoch(tell)
        kept = self._samples[CLIPS].entries()
        if kept is None:
            raise PermanentError(f"{self.where}: no clip of this epoch has a descriptor to learn from")
        return self.learn_to_classify(kept, tell)

    def classifier_of(self, vectors: NDArray[np.float32], labels: NDArray[np.int32], tell: Tell) -> LinearClassifier:
        return self.fitted_classifier(vectors, labels, self._spec.penalty, tell)

    def _end_first_epoch(self, tell: Tell) -> StepResult:
        """Learn everything from the sampled descriptors. They are dropped only afterwards: a trainer that leaves
        earlier still needs them."""
        sample = self._samples[_ROWS]
        kept = sample.entries()
        if kept is None:
            raise PermanentError(
                f"{self.where}: no clip of the first epoch has a descriptor; `essp extractor preview` shows what the "
                "feature finds in a video"
            )
        if not self._model.has_learned:
            self._learn_to_encode(kept, tell)
        vectors = self.unless_left(lambda: self._vectors_of(kept, tell))
        learned = self.learn_to_classify(vectors, tell)
        if sample.whole:
            self._samples[CLIPS].add(vectors)
        elif self._only_epoch:
            log.warning(
                "%s: samples leaves out some of the %d descriptors, and no epoch follows to encode them all: the "
                "classifier has learned from parts of clips; give the job 2 epochs, or raise samples",
                self.where,
                sample.seen,
            )
        self._samples[_ROWS] = Sample(self._spec.samples)
        return learned

    def _drawn(self, epoch: int, clips: list[NDArray[np.generic]], owners: NDArray[np.int64]) -> Entries:
        """Return the descriptors of these clips, each with its ticket."""
        parts = [
            Entries(self.tickets(epoch, owner, len(rows)), np.tile(owner, (len(rows), 1)), rows.astype(np.float32))
            for owner, rows in zip(owners, clips, strict=True)
        ]
        return Entries.joined(parts) if parts else NOTHING

    def _learn_to_encode(self, kept: Entries, tell: Tell) -> None:
        """Fit the encoder to these descriptors."""
        log.info("%s learns to encode from %d of %d descriptors", self.where, len(kept), self._samples[_ROWS].seen)
        sizes = {"pca": self._spec.pca, "centres": self._spec.centres}
        work = _PASSES * len(kept) * max(kept.rows.shape[1], self._spec.centres) * self._spec.pca
        arrays = {"rows": kept.rows}
        try:
            encoder = self.unless_left(
                lambda: fitted("encoder", work, tell, arrays, kind=self._name, seed=self._seed, **sizes)
            )
        except ValueError as error:
            raise PermanentError(
                f"{self.where}: {error}. Those are the descriptors of the first epoch; take fewer centres and "
                "components, or more clips (sampling.clips_per_epoch)"
            ) from error
        self.take_over(self._model, lambda: self._model.learn(encoder))

    def _vectors_of(self, kept: Entries, tell: Tell) -> Entries:
        owners, number, rows = np.unique(kept.owners, axis=0, return_inverse=True, return_counts=True)
        of_clips = np.split(np.argsort(number.ravel(), kind="stable"), np.cumsum(rows)[:-1])
        drawn = np.concatenate([self.tickets(0, owner, 1) for owner in owners])
        clips = np.argsort(drawn, kind="stable")[: self._spec.clips]
        encoder = self._model.encoder
        vectors: list[NDArray[np.float32]] = []
        for clip in clips:
            tell("vectors of its clips", len(vectors), len(clips))
            vectors.append(encoder(kept.rows[of_clips[clip]]).astype(np.float32))
        return Entries(drawn[clips], owners[clips], np.stack(vectors))
