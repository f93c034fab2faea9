"""The weights of streams whose scores fit labelled videos best: by log loss, since a change of weights always shows in
it, while most change no decision, and one decision more on few videos is chance.

Both fits are convex: there is one optimum, and no random numbers are needed to find it. All take `labels` `(V,)` and
`probabilities` `(N, V, C)`, of N streams, and return `(N,)` weights that are not negative and sum to 1. Those that fit
nothing also take labels `(V, C)`, each of which was learned by itself.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from essp_common.artifacts.figures import Labels as Truth
from essp_common.artifacts.figures import log_loss
from essp_common.artifacts.scores import logs

Labels = NDArray[np.int32]
Floats = NDArray[np.float64]

_MOST_STEPS = 10_000
_GAP = 1e-6
_MOST_SWEEPS = 200
_CLOSE = 1e-9
"""Differences of log loss that are none."""
_SHARPEST = 20.0
_MIN_PROBABILITY = 1e-12


def equal(labels: Truth, probabilities: Floats) -> Floats:
    """The same weight for every stream."""
    return np.full(len(probabilities), 1 / len(probabilities))


def best_alone(labels: Truth, probabilities: Floats) -> Floats:
    """All weight for the stream with the lowest log loss; of equal ones, the first."""
    weights = np.zeros(len(probabilities))
    weights[int(np.argmin([log_loss(labels, scores) for scores in probabilities]))] = 1.0
    return weights


def of_a_mean(labels: Labels, probabilities: Floats) -> Floats:
    """Weights of a mean of probabilities, by expectation maximisation: they are those of a mixture (Dempster et al.,
    1977). It ends when the gradient tells that no other weights have a log loss lower by more than `_GAP`."""
    given = np.maximum(probabilities[:, np.arange(len(labels)), labels], _MIN_PROBABILITY)
    weights = equal(labels, probabilities)
    for _ in range(_MOST_STEPS):
        gain = (given / (weights @ given)).mean(axis=1)
        if gain.max() - 1 < _GAP:
            break
        weights = weights * gain
    fitted: Floats = weights / weights.sum()
    return fitted


def of_a_product(labels: Labels, probabilities: Floats) -> Floats:
    """Weights of a product of probabilities; equal ones if no stream tells anything about the labels."""
    exponents = fitted_exponents(labels, logs(probabilities))
    total = exponents.sum()
    return exponents / total if total > 0 else equal(labels, probabilities)


def sharpened(scores: Floats, sharpness: float) -> Floats:
    """`(V, C)` scores to the power of `sharpness`, summing to 1 again."""
    odds = sharpness * logs(scores)
    odds = np.exp(odds - odds.max(axis=1, keepdims=True))
    shares: Floats = odds / odds.sum(axis=1, keepdims=True)
    return shares


def sharpness(labels: Labels, scores: Floats) -> float:
    """The exponent with which `(V, C)` scores have the lowest log loss (temperature scaling, Guo et al., 2017)."""
    return float(fitted_exponents(labels, logs(scores)[None])[0])


def fitted_exponents(labels: Labels, logs_NVC: Floats) -> Floats:  # noqa: N803
    """Exponents >= 0 of the product with the lowest log loss: logistic regression, by Newton steps along one exponent
    after the other."""
    given = logs_NVC[:, np.arange(len(labels)), labels]
    exponents = np.full(len(logs_NVC), 1 / len(logs_NVC))
    total = np.tensordot(exponents, logs_NVC, axes=1)
    loss = _loss(total, exponents @ given)
    for _ in range(_MOST_SWEEPS):
        before = loss
        for stream, own in enumerate(logs_NVC):
            shares = np.exp(total - total.max(axis=1, keepdims=True))
            shares /= shares.sum(axis=1, keepdims=True)
            expected = (shares * own).sum(axis=1)
            slope = float(np.mean(expected - given[stream]))
            curvature = float(np.mean((shares * own**2).sum(axis=1) - expected**2))
            wanted = exponents[stream] - slope / max(curvature, _MIN_PROBABILITY)
            step = min(max(wanted, 0.0), _SHARPEST) - exponents[stream]
            while abs(step) > _CLOSE:
                tried = _loss(total + step * own, (exponents @ given) + step * given[stream])
                if tried <= loss:
                    exponents[stream] += step
                    total, loss = total + step * own, tried
                    break
                step /= 2
        if before - loss < _CLOSE:
            break
    return exponents


def _loss(total: Floats, given: Floats) -> float:
    highest = total.max(axis=1)
    return float(np.mean(highest + np.log(np.exp(total - highest[:, None]).sum(axis=1)) - given))
