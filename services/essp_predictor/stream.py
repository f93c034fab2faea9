"""Scores the clips of one stream of a predict job that fall to this predictor, and saves the scores.

    views of each clip ──every batch──▶ scores ──whole blocks, every second──▶ saved, bytes freed, messages committed

Clips arrive in index order, so one block at a time is begun (`topics.BLOCK_CLIPS`). Batches never reach from one block
into another: the scores of a clip are the same bits for any
division of the blocks.

Bytes are freed once the scores are saved (`essp_common/artifacts/partial_scores.py`). If a predictor dies before, the
next owner of its blocks reads the same bytes and makes the same scores. Only if no clip arrives, bytes of the block
that is begun are freed too: the job's budget may be smaller than a block. Those are made again after a death.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from essp_common import topics
from essp_common.artifacts.partial_scores import PartialScores, ScoredPart, fits
from essp_common.artifacts.scores import ScoreTable
from essp_common.runtime.failpoints import failpoint
from essp_engine.intake.ordered import Delivery, OrderedIntake
from essp_engine.intake.wanted import Decoded
from essp_engine.worker.heartbeat import LaneLoad
from essp_predictor.scoring import Frames, View

_SAVE_S = 1.0
"""How long scores of a block wait for those of further blocks, to be saved with them: saving each by itself would take
longer than scoring it on a GPU."""
_SAVE_CLIPS, _SAVE_BYTES = 2000, 2**27
"""Clips, and bytes of their features, that are saved before that time."""


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
        self,
        intake: OrderedIntake,
        scorer: Scorer,
        partial_scores: PartialScores,
        options: StreamOptions,
        load: LaneLoad,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`intake`: delivers the views of each clip that the scorer's members need (`Scorer.views`). `load`:
        notes how busy the predictor is."""
        self._intake = intake
        self._scorer = scorer
        self._partial_scores = partial_scores
        self._options = options
        self._load = load
        self._clock = clock
        self._waiting: list[tuple[Delivery, Mapping[View, Frames]]] = []
        self._begun = _Scored()
        """The block that is begun."""
        self._whole: list[_Scored] = []
        """The blocks that are scored and not saved, part by part."""
        self._since_s = 0.0
        """When the first of them was scored."""

    @property
    def finished(self) -> bool:
        """Whether all clips that fall to this predictor are taken, scored, saved and released."""
        return self._intake.finished and not self._whole

    def step(self, timeout_s: float) -> None:
        """Take one clip, or save whole blocks. Safe to call again after a `TransientError`."""
        if self._is_due():
            self.save()
            return
        taken = self._intake.take(timeout_s)
        if isinstance(taken, Delivery):
            self._receive(taken)
        elif self._whole:
            self.save()
        else:
            self._release(self._begun)

    def save(self) -> None:
        """Save the blocks that are scored."""
        while self._whole:
            part = self._whole[0]
            self._partial_scores.save(self._options.stream, part.blocks, part.scores(self._options.classes))
            failpoint("predictor.kept")
            self._release(part)
            self._intake.commit(item.record for item in part.taken)
            del self._whole[0]

    def close(self) -> None:
        """Leave the stream."""
        self._intake.close()

    def _is_due(self) -> bool:
        scored = sum(len(part.taken) for part in self._whole)
        if scored >= _SAVE_CLIPS or sum(part.feature_bytes for part in self._whole) >= _SAVE_BYTES:
            return True
        return scored > 0 and self._clock() - self._since_s >= _SAVE_S

    def _receive(self, taken: Delivery) -> None:
        light = replace(taken, value=b"")
        if taken.skipped:
            self._begun.missing[taken.clip.index] = (taken.clip.video_id, taken.skipped)
        else:
            self._waiting.append((light, taken.value))
            self._begun.unreleased.append(light)
        self._begun.taken.append(light)
        stop = taken.clip.index + 1
        whole = stop % topics.BLOCK_CLIPS == 0 or stop == self._options.clips
        if whole or stop % self._options.batch_clips == 0:
            self._score_waiting()
        if whole:
            self._keep(taken.clip.index // topics.BLOCK_CLIPS)

    def _keep(self, block: int) -> None:
        """Keep the scores of the block that was begun until they are saved."""
        if not self._whole:
            self._since_s = self._clock()
        if not self._whole or not fits(self._whole[-1].blocks, block):
            self._whole.append(_Scored())
        self._whole[-1].blocks.append(block)
        self._whole[-1].add(self._begun)
        self._begun = _Scored()

    def _score_waiting(self) -> None:
        if not self._waiting:
            return
        self._load.begin()
        try:
            for trainer, rows in self._scorer.score([views for _, views in self._waiting]).items():
                self._begun.probabilities[trainer].append(rows)
            for trainer, features in self._scorer.features(len(self._waiting)).items():
                self._begun.features[trainer].append(features)
        finally:
            self._load.end()
        self._begun.scored.extend(item for item, _ in self._waiting)
        self._waiting.clear()

    def _release(self, scored: _Scored) -> None:
        self._intake.release(scored.unreleased)
        scored.unreleased.clear()


@dataclass
class _Scored:
    """Clips that were taken, and their scores."""

    blocks: list[int] = field(default_factory=list)
    """The blocks that are whole."""
    taken: list[Delivery] = field(default_factory=list)
    unreleased: list[Delivery] = field(default_factory=list)
    """Those whose bytes are not freed yet."""
    scored: list[Delivery] = field(default_factory=list)
    probabilities: dict[str, list[NDArray[np.floating[Any]]]] = field(default_factory=lambda: defaultdict(list))
    features: dict[str, list[NDArray[np.floating[Any]]]] = field(default_factory=lambda: defaultdict(list))
    missing: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Index of a clip that is missing -> its video, and the reason."""

    def add(self, other: _Scored) -> None:
        """Add the clips of another block."""
        self.taken += other.taken
        self.unreleased += other.unreleased
        self.scored += other.scored
        self.missing |= other.missing
        for trainer, rows in other.probabilities.items():
            self.probabilities[trainer] += rows
        for trainer, features in other.features.items():
            self.features[trainer] += features

    @property
    def feature_bytes(self) -> int:
        """Bytes of the features."""
        return sum(rows.nbytes for of_trainer in self.features.values() for rows in of_trainer)

    def scores(self, classes: tuple[str, ...]) -> ScoredPart:
        """The scores as they are to be saved."""
        videos = tuple(item.clip.video_id for item in self.scored)
        labels = np.full(len(videos), -1, dtype=np.int32)
        indices = np.array([item.clip.index for item in self.scored], dtype=np.int64)
        tables = {
            trainer: ScoreTable(videos, labels, indices, np.concatenate(rows), classes, self._features(trainer))
            for trainer, rows in self.probabilities.items()
        }
        frames = {item.clip.index: (item.clip.first_frame, item.clip.last_frame) for item in self.scored}
        return ScoredPart(tables, self.missing, frames)

    def _features(self, trainer: str) -> NDArray[np.floating[Any]] | None:
        return np.concatenate(self.features[trainer]) if trainer in self.features else None
