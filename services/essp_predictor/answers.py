"""Computes the predictions and segments of a job from the saved scores of its streams, a few videos at a time.

Blocks of the scores, saved by any predictor, are read one after the other. About two thousand clips are fused together,
but only whole videos: the last video waits for the next clips, which may contain more of it. So the memory is these
clips plus the longest video, at 4 bytes per clip, class and member.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from essp_common import topics
from essp_common.artifacts.fused_model import FusedModel
from essp_common.artifacts.partial_scores import PartialScores, ScoredPart
from essp_common.artifacts.predictions import Prediction, predictions
from essp_common.artifacts.scores import ClipScores, ScoreTable, VideoScores, clips_by_video
from essp_common.artifacts.segments import Segment
from essp_common.job.spec import HighlightSpec, JobSpec
from essp_engine.aggregation.fused import Fuse
from essp_predictor.highlight import clip_weights
from essp_predictor.localisation import localise

_TOGETHER = 2000 // topics.BLOCK_CLIPS
"""Blocks that are fused together."""


@dataclass(frozen=True, slots=True)
class ClipAnswers:
    """The fused scores of the clips of one video."""

    video_id: str
    index: NDArray[np.int64]
    """`(N,)` in time order."""
    probabilities: NDArray[np.float64]
    """`(N, C)`"""


class FusedAnswers:
    """The fused answers of a model's members."""

    def __init__(
        self,
        partial_scores: PartialScores,
        spec: JobSpec,
        model: FusedModel,
        fuse: Fuse,
        clips: int,
        together: int = _TOGETHER,
    ) -> None:
        """`fuse`: the model's fusion. `clips`: number of clips of each stream, all of them scored and saved.
        `together`: number of blocks that are fused together."""
        self.videos = 0
        """Number of videos that `predictions` has yielded."""
        self.failed = 0
        """Number of videos without a single decoded clip."""
        self.classes = tuple(name for name in model.classes if name != model.background)
        """The classes that a prediction may name: all except the background."""
        self._partial_scores = partial_scores
        self._streams = tuple(spec.streams)
        self._highlight = None if spec.predictor is None else spec.predictor.highlight
        self._model = model
        self._fuse = fuse
        self._clips = clips
        self._together = together
        self._background = None if model.background is None else model.classes.index(model.background)

    def predictions(self) -> Iterator[list[Prediction]]:
        """Yield the class of each video: the members' scores of its clips, fused by the model."""
        for part in self._whole_videos():
            weights = self._weights(part, self._highlight) if self._highlight is not None else {}
            parts = {name: clips_by_video(table, weights.get(name)) for name, table in part.tables.items()}
            seen: Counter[str] = Counter()
            for table in part.tables.values():
                seen |= Counter(table.video_id)
            rows = predictions(self._answered(self._fused(parts)), seen, part.errors)
            self.videos += len(rows)
            self.failed += sum(row.class_name is None for row in rows)
            yield rows

    def segments(self) -> Iterator[list[Segment]]:
        """Yield where in each video its classes are visible, from the members fused clip by clip."""
        shown = np.array([name != self._model.background for name in self._model.classes])
        for part in self._whole_videos():
            found: list[Segment] = []
            for video in self._by_clip(part):
                frames = np.array([part.frames[index] for index in video.index.tolist()])
                found += localise(video.video_id, video.probabilities[:, shown], frames, self.classes)
            yield found

    def _weights(self, part: ScoredPart, highlight: HighlightSpec) -> dict[str, NDArray[np.float64]]:
        """Trainer -> the weight of each of its clips. The weight of a clip is the same for all trainers."""
        weights: dict[int, float] = {}
        for video in self._by_clip(part):
            found = clip_weights(video.probabilities, self._background, highlight)
            weights |= zip(video.index.tolist(), found.tolist(), strict=True)
        return {
            name: np.array([weights[index] for index in table.clip_index.tolist()])
            for name, table in part.tables.items()
        }

    def _by_clip(self, part: ScoredPart) -> Iterator[ClipAnswers]:
        """Yield the videos with fused scores per clip."""
        fused = self._fused({name: _each_alone(table) for name, table in part.tables.items()})
        index = np.array([int(name) for name in fused.video_id], dtype=np.int64)
        video_of = {i: v for t in part.tables.values() for i, v in zip(t.clip_index.tolist(), t.video_id, strict=True)}
        own: defaultdict[str, list[int]] = defaultdict(list)
        for place, clip in enumerate(index.tolist()):
            own[video_of[clip]].append(place)
        for video, places in own.items():
            yield ClipAnswers(video, index[places], fused.probabilities[places])

    def _whole_videos(self) -> Iterator[ScoredPart]:
        """Yield the scores of all streams together, cut between videos.

        Clips are planned in the order of video ids, so only the last video of some clips can continue in the next ones.
        """
        waiting = ScoredPart({}, {}, {})
        blocks = range(-(-self._clips // topics.BLOCK_CLIPS))
        with ExitStack() as closes:
            streams = [closes.enter_context(closing(self._blocks(stream, blocks))) for stream in self._streams]
            for first in range(0, len(blocks), self._together):
                several = [part for stream in streams for part in islice(stream, self._together)]
                whole = ScoredPart.joined([waiting, *several])
                if first + self._together >= len(blocks):
                    yield whole
                    return
                names = _videos(whole)
                last = max(names, default="")
                waiting = _of_videos(whole, names & {last})
                if len(names) > 1:
                    yield _of_videos(whole, names - {last})

    def _blocks(self, stream: str, blocks: range) -> Generator[ScoredPart, None, None]:
        return self._partial_scores.read_blocks(stream, self._partial_scores.saved(stream), blocks)

    def _fused(self, parts: dict[str, ClipScores]) -> VideoScores:
        if parts:
            return self._fuse(parts)
        classes = self._model.classes
        return VideoScores((), np.zeros(0, np.int32), np.zeros((0, len(classes))), classes)

    def _answered(self, scores: VideoScores) -> VideoScores:
        """Scores of the classes other than background, given that a video shows one of them."""
        if self._background is None:
            return scores
        others = np.delete(scores.probabilities, self._background, axis=1)
        total = others.sum(axis=1, keepdims=True)
        even = np.full_like(others, 1 / len(self.classes))
        probabilities = np.divide(others, total, out=even, where=total > 0)
        return replace(scores, probabilities=probabilities, classes=self.classes)


def _videos(part: ScoredPart) -> set[str]:
    return {video for table in part.tables.values() for video in table.video_id} | part.errors.keys()


def _of_videos(part: ScoredPart, videos: set[str]) -> ScoredPart:
    """The share of a part that belongs to these videos."""
    tables, kept = {}, set()
    for name, table in part.tables.items():
        own = np.flatnonzero([video in videos for video in table.video_id])
        if len(own):
            tables[name] = table.at(own)
            kept.update(tables[name].clip_index.tolist())
    missing = {index: why for index, why in part.missing.items() if why[0] in videos}
    return ScoredPart(tables, missing, {index: ends for index, ends in part.frames.items() if index in kept})


def _each_alone(table: ScoreTable) -> ClipScores:
    """Scores with each clip treated as a video, in index order."""
    names = tuple(f"{index:012d}" for index in table.clip_index.tolist())
    each = VideoScores(names, table.class_id, table.probabilities.astype(np.float64), table.classes)
    return ClipScores(each, table.probabilities, np.arange(len(table) + 1), table.features)
