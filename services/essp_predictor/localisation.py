"""Where in a video a class is visible: runs of clips that score higher than the clips around them.

Every run of clips is a proposal for each class for which some clip has a fair score. Its value is the mean score inside
minus the mean score of a margin of a quarter of its length on both sides (the outer-inner contrast of Shou et al.,
"AutoLoc", ECCV 2018), which is highest if the run begins and ends with the action. There are no margins beyond the ends
of the video, so a class that is visible throughout gives one segment. Of runs of one class that overlap much, only the
best is kept.

Nothing is learned, so it works with a model of trimmed videos. It is no finer than the distance between clips.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from essp_common.artifacts.segments import Segment

_MIN_SCORE = 0.2
"""Classes without a clip of this score are not searched; runs with less contrast are not reported."""
_OVERLAP = 0.5
"""If two runs of one class share more than this part of the shorter one, only the better is kept."""
_MARGIN_PART = 4
"""A margin has one clip for this many clips of its run, rounded up."""
_MAX_SEGMENTS = 100
"""Maximum number of segments of one video."""

Scores = NDArray[np.float64]


def localise(video_id: str, scores: Scores, frames: NDArray[np.int64], classes: tuple[str, ...]) -> list[Segment]:
    """The segments of one video, the highest score first.

    `scores`: `(N, C)` of its clips in time order. `frames`: `(N, 2)`, the first and the last one of each clip.
    """
    edges = _edges(frames)
    found = []
    for class_id in np.flatnonzero(scores.max(axis=0) >= _MIN_SCORE):
        for begin, end, contrast in _best_runs(scores[:, class_id]):
            last = int(edges[end]) - 1
            found.append(Segment(video_id, classes[class_id], int(edges[begin]), last, float(contrast)))
    return sorted(found, key=lambda s: (-s.score, s.first_frame, s.class_name))[:_MAX_SEGMENTS]


def _edges(frames: NDArray[np.int64]) -> NDArray[np.int64]:
    """`(N + 1,)`: clip `j` stands for the frames from `edges[j]` up to `edges[j + 1]`, half way to its neighbours."""
    begins, ends = frames[:, 0], frames[:, 1] + 1
    return np.concatenate([begins[:1], (begins[1:] + ends[:-1]) // 2, ends[-1:]])


def _best_runs(scores: Scores) -> list[tuple[int, int, float]]:
    """Begin, end (exclusive) and contrast of the runs of one class that are to be reported, the best first."""
    clips = len(scores)
    begin, end = np.triu_indices(clips + 1, 1)
    margin = -(-(end - begin) // _MARGIN_PART)
    before, after = np.maximum(begin - margin, 0), np.minimum(end + margin, clips)
    sums = np.concatenate([[0.0], np.cumsum(scores)])
    around = (begin - before) + (after - end)
    outer = (sums[begin] - sums[before] + sums[after] - sums[end]) / np.maximum(around, 1)
    contrast = (sums[end] - sums[begin]) / (end - begin) - outer
    order = np.argsort(-contrast, kind="stable")
    order = order[contrast[order] >= _MIN_SCORE]
    return _suppressed(begin[order], end[order], contrast[order])


def _suppressed(begin: NDArray[np.intp], end: NDArray[np.intp], contrast: Scores) -> list[tuple[int, int, float]]:
    """Non-maximum suppression: of runs in descending order, those that overlap little with every better one."""
    kept = []
    left = np.arange(len(begin))
    while len(left):
        best, left = left[0], left[1:]
        kept.append((int(begin[best]), int(end[best]), float(contrast[best])))
        common = np.minimum(end[left], end[best]) - np.maximum(begin[left], begin[best])
        shorter = np.minimum(end[left] - begin[left], end[best] - begin[best])
        left = left[common <= _OVERLAP * shorter]
    return kept
