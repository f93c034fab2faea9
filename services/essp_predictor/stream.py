"""Scores the clips of one stream of a predict job, in index order, and saves the scores.

    views of each clip ──every batch──▶ scores ──every part──▶ saved, messages committed

Bytes are freed once a batch is scored, or earlier if no clip arrives, so the job's budget may be smaller than a batch.
The messages of a part are committed once its scores are saved (`essp_common/artifacts/partial_scores.py`). After a
predictor dies, its successor gets the messages of the unfinished part again, finds the bytes freed, and has the clips
rebuilt.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from essp_common.artifacts.partial_scores import PartialScores, ScoredPart
from essp_common.artifacts.scores import ScoreTable
from essp_common.runtime.failpoints import failpoint
from essp_engine.intake.ordered import Delivery, OrderedIntake
from essp_engine.intake.wanted import Decoded
from essp_predictor.scoring import Frames, View


class Scorer(Protocol):
    """What computes the scores of the clips of a stream, or their vectors."""

    def views(self, decoded: Decoded) -> dict[View, Frames]:
        """What it needs of a clip. Thread-safe."""

    def score(self, clips: Sequence[Mapping[View, Frames]]) -> dict[str, NDArray[np.floating[Any]]]:
        """Name of a trainer or source -> `(N, C)` scores of N clips."""

    def features(self, clips: int) -> Mapping[str, NDArray[np.floating[Any]]]:
        """The same names -> `(N, D)` features of the N clips scored last; empty if none are used."""


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Which clips to score, and in which batches."""

    stream: str
    clips: int
    batch_clips: int
    classes: tuple[str, ...]


class StreamPhase:
    """Scores the clips of one stream. Used from one thread."""

    def __init__(
        self, intake: OrderedIntake, scorer: Scorer, partial_scores: PartialScores, options: StreamOptions
    ) -> None:
        """`intake`: delivers the views of each clip that the scorer's members need (`Scorer.views`)."""
        self._intake = intake
        self._scorer = scorer
        self._partial_scores = partial_scores
        self._options = options
        self._waiting: list[tuple[Delivery, Mapping[View, Frames]]] = []
        self._unreleased: list[Delivery] = []
        self._part = _Part()
        self._part_complete = False
        """Whether all clips of the part are scored, so that it is due to be saved."""

    @property
    def finished(self) -> bool:
        """Whether all clips are taken, scored, released and saved."""
        return self._intake.finished and not self._part_complete

    def step(self, timeout_s: float) -> None:
        """Take one clip, or finish a part. Safe to call again after a `TransientError`."""
        if self._part_complete:
            self._release()
            self._save_part()
            return
        taken = self._intake.take(timeout_s)
        if isinstance(taken, Delivery):
            self._receive(taken)
        else:
            self._release()

    def close(self) -> None:
        """Leave the stream."""
        self._intake.close()

    def _receive(self, taken: Delivery) -> None:
        light = replace(taken, value=b"")
        if taken.skipped:
            self._part.errors[taken.clip.video_id] = taken.skipped
        else:
            self._waiting.append((light, taken.value))
            self._unreleased.append(light)
        self._part.taken.append(light)
        stop = taken.clip.index + 1
        self._part_complete = stop % self._partial_scores.part_clips == 0 or stop == self._options.clips
        if self._part_complete or stop % self._options.batch_clips == 0:
            self._score_waiting()
            self._release()

    def _score_waiting(self) -> None:
        if not self._waiting:
            return
        for trainer, rows in self._scorer.score([views for _, views in self._waiting]).items():
            self._part.probabilities[trainer].append(rows)
        for trainer, features in self._scorer.features(len(self._waiting)).items():
            self._part.features[trainer].append(features)
        self._part.scored.extend(item for item, _ in self._waiting)
        self._waiting.clear()

    def _release(self) -> None:
        self._intake.release(self._unreleased)
        self._unreleased.clear()

    def _save_part(self) -> None:
        part = self._part
        stop = part.taken[-1].clip.index + 1
        self._partial_scores.save(self._options.stream, stop, part.scores(self._options.classes))
        failpoint("predictor.kept")
        self._intake.commit(item.record for item in part.taken)
        self._part, self._part_complete = _Part(), False


@dataclass
class _Part:
    """The clips and scores of the current part."""

    taken: list[Delivery] = field(default_factory=list)
    scored: list[Delivery] = field(default_factory=list)
    probabilities: dict[str, list[NDArray[np.floating[Any]]]] = field(default_factory=lambda: defaultdict(list))
    features: dict[str, list[NDArray[np.floating[Any]]]] = field(default_factory=lambda: defaultdict(list))
    errors: dict[str, str] = field(default_factory=dict)
    """Video -> why one of its clips is missing."""

    def scores(self, classes: tuple[str, ...]) -> ScoredPart:
        """The part as it is to be saved."""
        videos = tuple(item.clip.video_id for item in self.scored)
        labels = np.full(len(videos), -1, dtype=np.int32)
        indices = np.array([item.clip.index for item in self.scored], dtype=np.int64)
        tables = {
            trainer: ScoreTable(videos, labels, indices, np.concatenate(rows), classes, self._features(trainer))
            for trainer, rows in self.probabilities.items()
        }
        frames = {item.clip.index: (item.clip.first_frame, item.clip.last_frame) for item in self.scored}
        return ScoredPart(tables, self.errors, frames)

    def _features(self, trainer: str) -> NDArray[np.floating[Any]] | None:
        return np.concatenate(self.features[trainer]) if trainer in self.features else None
