"""Finds where in a video a class is visible: runs of clips that score higher than the clips around them.

For each class with a sufficient score in some clip, every run of clips is a proposal. Its value is the mean score
inside minus the mean score of a margin of a quarter of its length on both sides (the outer-inner contrast of Shou et
al., "AutoLoc", ECCV 2018), which is highest if the run begins and ends with the action. There are no margins beyond the
ends of the video, so a class that is visible throughout gives one segment. Of strongly overlapping runs of one class,
only the best is kept.

Nothing is learned here, so it works with a model trained on trimmed videos. A model with a background class is more
informative: its score of a class is the actionness of a clip (1 minus the background score) times the score of the
class given that something is shown, so it is low wherever nothing is shown. The resolution is the distance between
clips.

A video may have any number of clips. All runs of up to 256 clips are tried. Longer runs are tried on clips averaged by
twos, by fours and so on, so that a run has at most 256 averages; its ends are then accurate to a hundredth of its
length. A few thousand runs are tried at a time.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from essp_common.artifacts.segments import Segment

_MIN_SCORE = 0.2
"""Classes that never reach this score are not searched; runs with less contrast are not reported."""
_OVERLAP = 0.5
"""If two runs of one class share more than this fraction of the shorter one, only the better one is kept."""
_MARGIN_PART = 4
"""A margin has one clip per this many clips of its run, rounded up."""
_MAX_SEGMENTS = 100
"""Maximum number of segments of one video; in a long video, a quarter of the number of its clips if that is larger."""
_LONGEST = 256
"""Maximum number of clips, or averages of clips, in one run."""
_AT_ONCE = 4096
"""Number of start clips whose runs are tried at once; limits memory to a few hundred MB."""

Scores = NDArray[np.float64]


def localise(video_id: str, scores: Scores, frames: NDArray[np.int64], classes: tuple[str, ...]) -> list[Segment]:
    """The segments of one video, highest score first.

    `scores`: `(N, C)` scores of its clips in time order. `frames`: `(N, 2)`, the first and the last frame of each clip.
    """
    edges = _edges(frames)
    found = []
    for class_id in np.flatnonzero(scores.max(axis=0) >= _MIN_SCORE):
        for begin, end, contrast in _best_runs(scores[:, class_id]):
            last = int(edges[end]) - 1
            found.append(Segment(video_id, classes[class_id], int(edges[begin]), last, float(contrast)))
    most = max(_MAX_SEGMENTS, len(scores) // 4)
    return sorted(found, key=lambda s: (-s.score, s.first_frame, s.class_name))[:most]


def _edges(frames: NDArray[np.int64]) -> NDArray[np.int64]:
    """`(N + 1,)`: clip `j` covers the frames from `edges[j]` up to `edges[j + 1]`, halfway to its neighbours."""
    begins, ends = frames[:, 0], frames[:, 1] + 1
    return np.concatenate([begins[:1], (begins[1:] + ends[:-1]) // 2, ends[-1:]])


def _best_runs(scores: Scores) -> list[tuple[int, int, float]]:
    """Begin, end (exclusive) and contrast of the reportable runs of one class, best first."""
    kept: list[tuple[int, int, float]] = []
    scale, coarse, longest = 1, scores, 0
    while len(coarse) * scale > longest:
        for begin, end in _runs(len(coarse), 1 if scale == 1 else _LONGEST // 2 + 1):
            contrast = _contrast(coarse, begin, end)
            fair = contrast >= _MIN_SCORE
            at, to = begin[fair] * scale, np.minimum(end[fair] * scale, len(scores))
            kept += _suppressed(*_best_first(at, to, contrast[fair]))
        longest = _LONGEST * scale
        scale *= 2
        coarse = _averaged(coarse)
    if not kept:
        return []
    return _suppressed(*_best_first(*(np.array(column) for column in zip(*kept, strict=True))))


def _runs(clips: int, shortest: int) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Yield begins and ends of all runs of at least `shortest` and at most `_LONGEST` clips, by begin, then by end."""
    for first in range(0, clips, _AT_ONCE):
        begins = np.arange(first, min(first + _AT_ONCE, clips))
        counts = np.maximum(np.minimum(begins + _LONGEST, clips) - (begins + shortest) + 1, 0)
        begin = np.repeat(begins, counts)
        place = np.arange(len(begin)) - np.repeat(np.cumsum(counts) - counts, counts)
        yield begin, begin + shortest + place


def _contrast(scores: Scores, begin: NDArray[np.intp], end: NDArray[np.intp]) -> Scores:
    """The mean score within each run, minus the mean score of its margins."""
    clips = len(scores)
    margin = -(-(end - begin) // _MARGIN_PART)
    before, after = np.maximum(begin - margin, 0), np.minimum(end + margin, clips)
    sums = np.concatenate([[0.0], np.cumsum(scores)])
    around = (begin - before) + (after - end)
    outer = (sums[begin] - sums[before] + sums[after] - sums[end]) / np.maximum(around, 1)
    contrast: Scores = (sums[end] - sums[begin]) / (end - begin) - outer
    return contrast


def _averaged(scores: Scores) -> Scores:
    """The means of adjacent pairs; with an odd number, the last one stays as it is."""
    pairs = scores[: len(scores) // 2 * 2].reshape(-1, 2).mean(axis=1)
    return pairs if len(scores) % 2 == 0 else np.append(pairs, scores[-1])


def _best_first(
    begin: NDArray[np.intp], end: NDArray[np.intp], contrast: Scores
) -> tuple[NDArray[np.intp], NDArray[np.intp], Scores]:
    order = np.argsort(-contrast, kind="stable")
    return begin[order], end[order], contrast[order]


def _suppressed(begin: NDArray[np.intp], end: NDArray[np.intp], contrast: Scores) -> list[tuple[int, int, float]]:
    """Non-maximum suppression: from runs in descending order, keep those that overlap little with every better one."""
    kept = []
    left = np.arange(len(begin))
    while len(left):
        best, left = left[0], left[1:]
        kept.append((int(begin[best]), int(end[best]), float(contrast[best])))
        common = np.minimum(end[left], end[best]) - np.maximum(begin[left], begin[best])
        shorter = np.minimum(end[left] - begin[left], end[best] - begin[best])
        left = left[common <= _OVERLAP * shorter]
    return kept
