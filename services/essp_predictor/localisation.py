"""Where in a video a class is seen: stretches of clips that score higher than what lies around them.

Every run of clips is a proposal for each class that some clip is fairly sure of. What it is worth is the mean score
within, less the mean of a margin of a quarter of its length on both sides (the outer-inner contrast of Shou et al.,
"AutoLoc", ECCV 2018): highest where a run begins and ends with what is seen. Beyond the ends of the video is nothing,
so a class that is seen throughout is found as the whole. Of runs of one class that overlap much only the best stays.

Nothing of it is learned, so it takes a model of trimmed videos as it is. It is no finer than the distance of the clips.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from essp_common.artifacts.segments import Segment

_LEAST = 0.2
"""Classes that no clip gives as much are not looked for; runs of less contrast are not told."""
_OVERLAP = 0.5
"""Of two runs of one class that share more than this part of the shorter one, one stays."""
_MARGIN = 4
"""A margin is one clip for as many within a run, or a part of them."""
_MOST = 100
"""Segments of one video."""

Scores = NDArray[np.float64]


def localise(
    video_id: str, scores: Scores, first_frames: NDArray[np.int64], span: int, classes: tuple[str, ...]
) -> list[Segment]:
    """The segments of one video, the surest first.

    `scores`: `(N, C)` of its clips in time order. `first_frames`: `(N,)`. `span`: frames that a clip reaches over.
    """
    edges = _edges(first_frames, span)
    found = []
    for class_id in np.flatnonzero(scores.max(axis=0) >= _LEAST):
        for begin, end, contrast in _best_runs(scores[:, class_id]):
            last = int(edges[end]) - 1
            found.append(Segment(video_id, classes[class_id], int(edges[begin]), last, float(contrast)))
    return sorted(found, key=lambda s: (-s.score, s.first_frame, s.class_name))[:_MOST]


def _edges(first_frames: NDArray[np.int64], span: int) -> NDArray[np.int64]:
    """`(N + 1,)`: clip `j` speaks for the frames from `edges[j]` up to `edges[j + 1]`, half way to its neighbours."""
    half_way = (first_frames[:-1] + first_frames[1:] + span) // 2
    return np.concatenate([first_frames[:1], half_way, first_frames[-1:] + span])


def _best_runs(scores: Scores) -> list[tuple[int, int, float]]:
    """Begin, end (exclusive) and contrast of the runs of one class that are worth telling, the best first."""
    clips = len(scores)
    begin, end = np.triu_indices(clips + 1, 1)
    margin = -(-(end - begin) // _MARGIN)
    before, after = np.maximum(begin - margin, 0), np.minimum(end + margin, clips)
    sums = np.concatenate([[0.0], np.cumsum(scores)])
    around = (begin - before) + (after - end)
    outer = (sums[begin] - sums[before] + sums[after] - sums[end]) / np.maximum(around, 1)
    contrast = (sums[end] - sums[begin]) / (end - begin) - outer
    order = np.argsort(-contrast, kind="stable")
    order = order[contrast[order] >= _LEAST]
    return _suppressed(begin[order], end[order], contrast[order])


def _suppressed(begin: NDArray[np.intp], end: NDArray[np.intp], contrast: Scores) -> list[tuple[int, int, float]]:
    """Of runs in falling order, those that overlap little with every better one."""
    kept = []
    left = np.arange(len(begin))
    while len(left):
        best, left = left[0], left[1:]
        kept.append((int(begin[best]), int(end[best]), float(contrast[best])))
        common = np.minimum(end[left], end[best]) - np.maximum(begin[left], begin[best])
        shorter = np.minimum(end[left] - begin[left], end[best] - begin[best])
        left = left[common <= _OVERLAP * shorter]
    return kept
