"""Computes how much each clip counts in the score of its video: highlights, which show its class, count more.

If most of a video shows no class at all, the plain mean over its clips gives a wrong answer, because a model has to
answer something for each clip. Two measures estimate which clips to trust:

    actionness   1 minus the score of the background class, smoothed over three clips
    contrast     how far the scores of a clip, smoothed over three clips, rise above the video's median, for the class
                 in which they rise most; squared to suppress noise

A video that shows one class throughout has similar scores in all clips, so under either measure its clips count about
the same. Whatever appears in most of a video without belonging to a class has a high median and no contrast. That is
why contrast needs no background class, and why it does not help when the background changes.

Each clip counts at least `floor`, so that one outlier that is wrong cannot decide alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from essp_common.job.spec import HighlightSpec

Scores = NDArray[np.float64]


def clip_weights(probabilities: Scores, background: int | None, highlight: HighlightSpec) -> Scores:
    """`(N,)` weight of each clip of one video, from `floor` to 1.

    `probabilities`: `(N, C)` scores of its clips in time order. `background`: index of the background class, if any.
    """
    smooth = _smooth(probabilities)
    if highlight.weight == "actionness":
        if background is None:
            raise ValueError("actionness needs a background class")
        seen = 1 - smooth[:, background]
    else:
        shown = smooth if background is None else np.delete(smooth, background, axis=1)
        seen = np.maximum((shown - np.median(shown, axis=0)).max(axis=1), 0) ** 2
    weights: Scores = highlight.floor + (1 - highlight.floor) * np.clip(seen, 0, 1)
    return weights


def _smooth(scores: Scores) -> Scores:
    """Average each clip with its two neighbours; clips at the ends have only one."""
    total = scores.copy()
    total[1:] += scores[:-1]
    total[:-1] += scores[1:]
    clips = np.full((len(scores), 1), 3.0)
    clips[:1] -= 1
    clips[-1:] -= 1
    smooth: Scores = total / clips
    return smooth
