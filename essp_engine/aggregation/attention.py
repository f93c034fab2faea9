"""Attention weighting: clips count by how informative they seem, which is learned.

As in Wang et al. ("Temporal segment networks", TPAMI 2018), the weights of a video's clips are the softmax of a linear
function of properties of each clip. There the property is the clip's feature. Here it is the clip's score, reduced to
three numbers that mean the same for any classes: how sure it is, how far the best class is ahead of the second one, and
how much it agrees with the other clips. So a stream has three numbers to learn, and few videos suffice.

The fit minimises the log loss of the weighted mean with a small penalty on the numbers. It descends from zero, where
attention is the plain mean. So it draws no random numbers, and is never worse than the mean on the videos of the fit.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from essp_common.artifacts.scores import ClipScores
from essp_engine.aggregation.pooling import FusionParams, Pooled
from essp_engine.aggregation.port import State
from essp_engine.encoders.descent import lowest

Floats = NDArray[np.float64]

PROPERTIES = ("sure", "ahead", "agrees")
"""The properties of each clip; all are between 0 and 1."""
_QUERY = "attention"
_MIN_PROBABILITY = 1e-12


class AttentionParams(FusionParams):
    """The regularisation of attention."""

    penalty: float = Field(1e-4, gt=0, le=10)
    """Penalty on the squares of the three learned numbers. The higher it is, the closer attention stays to the mean
    over all clips. With few videos, try several values, as in `[0.0001, 0.001, 0.01]`."""


class Attention(Pooled):
    """The mean over the clips, weighted by how sure and how typical they are. For videos with an unknown number of
    uninformative clips. Unlike in `top_k`, a clip counts the same for all classes."""

    name = "attention"
    summary = "The mean over clips with learned weights, by how informative they are."
    Params: ClassVar[type[AttentionParams]] = AttentionParams

    def __init__(self, params: AttentionParams) -> None:
        super().__init__(params)
        self._penalty = params.penalty

    def fit_part(self, part: ClipScores) -> State:
        """The three learned numbers."""
        return {_QUERY: fitted_query(part, self._penalty)}

    def pool(self, part: ClipScores, state: State) -> Floats:
        """The weighted mean of a stream's clips."""
        attention = softmax_by_video(properties(part) @ state[_QUERY], part)
        return _sums(attention[:, None] * part.clips.astype(np.float64), part)


def properties(part: ClipScores) -> Floats:
    """`(R, 3)` for all clips. `sure`: 1 minus the entropy of its score, as a share of the maximum. `ahead`: the highest
    probability minus the second one. `agrees`: the cosine between its score and its video's mean."""
    clips = part.clips.astype(np.float64)
    classes = clips.shape[1]
    if classes == 1:
        return np.ones((len(clips), len(PROPERTIES)))
    entropy = -(clips * np.log(np.maximum(clips, _MIN_PROBABILITY))).sum(axis=1)
    second, first = np.partition(clips, classes - 2, axis=1)[:, -2:].T
    means = np.repeat(part.means.probabilities, part.counts, axis=0)
    cosine = (clips * means).sum(axis=1) / np.sqrt((clips**2).sum(axis=1) * (means**2).sum(axis=1))
    return np.stack([1 - entropy / np.log(classes), first - second, cosine], axis=1)


def softmax_by_video(logits: Floats, part: ClipScores) -> Floats:
    """`(R,)` weights of the clips. The weights within each video sum to 1."""
    highest = np.maximum.reduceat(logits, part.first[:-1])
    odds = np.exp(logits - np.repeat(highest, part.counts))
    shares: Floats = odds / np.repeat(_sums(odds, part), part.counts)
    return shares


def fitted_query(part: ClipScores, penalty: float) -> Floats:
    """The numbers for which the weighted mean has the lowest log loss plus penalty."""
    seen = properties(part)
    label = np.repeat(part.means.class_id, part.counts)
    given = np.maximum(part.clips[np.arange(len(label)), label].astype(np.float64), _MIN_PROBABILITY)

    def loss(query: Floats) -> tuple[float, Floats]:
        attention = softmax_by_video(seen @ query, part)
        told = _sums(attention * given, part)
        explained = attention * given / np.repeat(told, part.counts)
        slope = -((explained - attention) @ seen) / len(part) + 2 * penalty * query
        return float(-np.log(told).mean() + penalty * query @ query), slope

    return lowest(loss, np.zeros(len(PROPERTIES)))


def _sums(rows: Floats, part: ClipScores) -> Floats:
    """The sum over the clips of each video."""
    summed: Floats = np.add.reduceat(rows, part.first[:-1], axis=0)
    return summed
