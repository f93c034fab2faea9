"""The weights of streams that fit labelled videos best, by log loss: every change of weights changes the log loss, but
most change no decision, and one more correct decision on few videos is chance.

Both fits are convex: there is one optimum, and finding it needs no random numbers. All functions take `labels` `(V,)`
and `probabilities` `(N, V, C)` of N streams, and return `(N,)` non-negative weights that sum to 1. Functions that do
not fit also take labels `(V, C)` that were learned separately.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from essp_common.artifacts.figures import Labels as Truth
from essp_common.artifacts.figures import log_loss
from essp_common.artifacts.scores import logs
from essp_engine.encoders.descent import lowest

Labels = NDArray[np.int32]
Floats = NDArray[np.float64]

_MOST_STEPS = 10_000
_GAP = 1e-6
_SHARPEST = 20.0
_MIN_PROBABILITY = 1e-12


def equal(labels: Truth, probabilities: Floats) -> Floats:
    """The same weight for every stream."""
    return np.full(len(probabilities), 1 / len(probabilities))


def best_alone(labels: Truth, probabilities: Floats) -> Floats:
    """All weight for the stream with the lowest log loss; among equal ones, the first."""
    weights = np.zeros(len(probabilities))
    weights[int(np.argmin([log_loss(labels, scores) for scores in probabilities]))] = 1.0
    return weights


def of_a_mean(labels: Labels, probabilities: Floats) -> Floats:
    """The weights of a mean of probabilities, by expectation maximisation: it is a mixture (Dempster et al., 1977). The
    iteration ends when the gradient shows that no other weights lower the log loss by more than `_GAP`."""
    given = np.maximum(probabilities[:, np.arange(len(labels)), labels], _MIN_PROBABILITY)
    weights = equal(labels, probabilities)
    for _ in range(_MOST_STEPS):
        gain = given @ (1 / (weights @ given)) / len(labels)
        if gain.max() - 1 < _GAP:
            break
        weights = weights * gain
    fitted: Floats = weights / weights.sum()
    return fitted


def of_a_product(labels: Labels, probabilities: Floats) -> Floats:
    """The weights of a product of probabilities; equal weights if no stream predicts the labels at all."""
    exponents = fitted_exponents(labels, logs(probabilities))
    total = exponents.sum()
    return exponents / total if total > 0 else equal(labels, probabilities)


def sharpened(scores: Floats, sharpness: float) -> Floats:
    """`(V, C)` scores to the power of `sharpness`, normalised to sum to 1."""
    odds = sharpness * logs(scores)
    odds = np.exp(odds - odds.max(axis=1, keepdims=True))
    shares: Floats = odds / odds.sum(axis=1, keepdims=True)
    return shares


def sharpness(labels: Labels, scores: Floats) -> float:
    """The exponent that gives `(V, C)` scores the lowest log loss (temperature scaling, Guo et al., 2017)."""
    return float(fitted_exponents(labels, logs(scores)[None])[0])


def fitted_exponents(labels: Labels, logs_NVC: Floats) -> Floats:  # noqa: N803
    """The exponents of the product with the lowest log loss, from 0 to `_SHARPEST`: logistic regression."""
    given = logs_NVC[:, np.arange(len(labels)), labels]

    def loss(exponents: Floats) -> tuple[float, Floats]:
        total = np.tensordot(exponents, logs_NVC, axes=1)
        highest = total.max(axis=1, keepdims=True)
        odds = np.exp(total - highest)
        sums = odds.sum(axis=1, keepdims=True)
        expected = (odds / sums * logs_NVC).sum(axis=2)
        value = float((highest + np.log(sums)).mean() - (exponents @ given).mean())
        return value, (expected - given).mean(axis=1)

    streams = len(logs_NVC)
    return lowest(loss, np.full(streams, 1 / streams), bounds=[(0.0, _SHARPEST)] * streams)
