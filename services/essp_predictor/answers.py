"""The predictions and segments of a job, from the saved scores of its streams; one part at a time is in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from essp_common.aggregation.fused import Fuse
from essp_common.artifacts.partial_scores import PartialScores, ScoredPart
from essp_common.artifacts.predictions import Prediction, predictions
from essp_common.artifacts.scores import ClipScores, ScoreTable, VideoScores, clips_by_video
from essp_common.artifacts.segments import Segment
from essp_common.job.spec import JobSpec
from essp_predictor.localisation import localise


class FusedAnswers:
    """The fused answers of a model's members."""

    def __init__(
        self, partial_scores: PartialScores, spec: JobSpec, classes: tuple[str, ...], fuse: Fuse, clips: int
    ) -> None:
        """`classes`, `fuse`: of the model. `clips`: number of clips of each stream, all of them scored."""
        self.videos = 0
        """Videos that `predictions` has yielded."""
        self.failed = 0
        """Videos of which nothing could be decoded."""
        self._partial_scores = partial_scores
        self._spec = spec
        self._classes = classes
        self._fuse = fuse
        self._clips = clips

    def predictions(self) -> Iterator[list[Prediction]]:
        """The class of each video: the members' scores of its clips, fused as the model says."""
        for streams in self._parts():
            tables = _tables(streams)
            seen: Counter[str] = Counter()
            for table in tables.values():
                seen |= Counter(table.video_id)
            errors = {video: why for part in streams for video, why in part.errors.items()}
            rows = predictions(
                self._fused({name: clips_by_video(table) for name, table in tables.items()}), seen, errors
            )
            self.videos += len(rows)
            self.failed += sum(row.class_name is None for row in rows)
            yield rows

    def segments(self) -> Iterator[list[Segment]]:
        """Where in each video its classes are visible: fuses the members clip by clip."""
        for streams in self._parts():
            tables = _tables(streams)
            places = {index: ends for part in streams for index, ends in part.frames.items()}
            video_of = {i: v for t in tables.values() for i, v in zip(t.clip_index.tolist(), t.video_id, strict=True)}
            fused = self._fused({name: _by_clip(table) for name, table in tables.items()})
            found: list[Segment] = []
            rows = np.array([int(name) for name in fused.video_id])
            videos = np.array([video_of[index] for index in rows.tolist()], dtype=np.str_)
            for video in dict.fromkeys(videos.tolist()):
                own = np.flatnonzero(videos == video)
                frames = np.array([places[index] for index in rows[own].tolist()])
                found += localise(video, fused.probabilities[own], frames, fused.classes)
            yield found

    def _parts(self) -> Iterator[list[ScoredPart]]:
        for start in range(0, self._clips, self._partial_scores.part_clips):
            stop = min(self._clips, start + self._partial_scores.part_clips)
            yield [self._partial_scores.read(stream, stop) for stream in self._spec.streams]

    def _fused(self, parts: dict[str, ClipScores]) -> VideoScores:
        if parts:
            return self._fuse(parts)
        return VideoScores((), np.zeros(0, np.int32), np.zeros((0, len(self._classes))), self._classes)


def _tables(streams: list[ScoredPart]) -> dict[str, ScoreTable]:
    return {trainer: table for part in streams for trainer, table in part.tables.items()}


def _by_clip(table: ScoreTable) -> ClipScores:
    """Scores with each clip in the role of a video, in index order."""
    names = tuple(f"{index:012d}" for index in table.clip_index.tolist())
    each = VideoScores(names, table.class_id, table.probabilities.astype(np.float64), table.classes)
    return ClipScores(each, table.probabilities, np.arange(len(table) + 1), table.features)
