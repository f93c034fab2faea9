"""How much each clip counts in the score of its video: highlights, in which its class is seen, count more.

A video of which most shows nothing of any class is answered wrong by the plain mean over its clips, since a model has
to say something of each of them. Two measures tell which clips to trust.

    actionness   1 minus the score of the background class, smooth over three clips
    contrast     how far the scores of a clip, smooth over three clips, rise above the median over the video, for the
                 class in which they rise most; squared, since a little of that is noise

A video that shows one class throughout has scores about as high in all clips, so by either measure they count about the
same. What comes in most of a video without being of any class has a high median, and no contrast; that is why contrast
needs no background class, and why it does not help where the background changes.

Each clip counts `floor` at least, so that one clip which stands out, and is wrong, cannot decide alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from essp_common.job.spec import HighlightSpec

Scores = NDArray[np.float64]


def clip_weights(probabilities: Scores, background: int | None, highlight: HighlightSpec) -> Scores:
    """`(N,)` how much each clip of one video counts, from `floor` to 1.

    `probabilities`: `(N, C)` of its clips in time order. `background`: which of the classes is the background.
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
    """Each clip with its two neighbours; at the ends with one."""
    total = scores.copy()
    total[1:] += scores[:-1]
    total[:-1] += scores[1:]
    clips = np.full((len(scores), 1), 3.0)
    clips[:1] -= 1
    clips[-1:] -= 1
    smooth: Scores = total / clips
    return smooth
