"""Mixtures of Gaussians with diagonal covariances, by expectation maximisation (Dempster, Laird & Rubin, 1977).

This does not use scikit-learn's `GaussianMixture`, which holds all posteriors in memory several times
(docs/design/libraries-for-learning.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from essp_engine.encoders.fitting import Tell, silent
from essp_engine.encoders.kmeans import fitted_codebook
from essp_engine.encoders.rows import in_parts

Floats = NDArray[np.float64]
Expected = Callable[[Floats], tuple[Floats, float]]
"""Rows `(n, D)` -> the posteriors `(n, k)`, and the sum of the log likelihoods."""

_MOST_STEPS = 100
_GAIN = 1e-3
"""An increase of the mean log likelihood of a row, in nats, that counts as zero."""
_LEAST_VARIANCE = 1e-6
"""Added to each variance, so that a Gaussian of equal rows has a positive one."""


@dataclass(frozen=True)
class Mixture:
    """k Gaussians in D dimensions."""

    weights: Floats
    """(k,); they sum to 1."""
    means: Floats
    """(k, D)"""
    variances: Floats
    """(k, D)"""

    def posteriors(self, rows: Floats) -> Floats:
        """`(N, k)` probability of each Gaussian given each row."""
        return self.expected(rows)[0]

    def log_likelihood(self, rows: Floats) -> float:
        """Mean over the rows, in nats."""
        return maximised(rows, len(self.weights), self.expected)[1]

    def expected(self, rows: Floats) -> tuple[Floats, float]:
        """The posteriors of `(N, D)` rows, and the sum of their log likelihoods."""
        logs = self._logs(rows)
        highest = logs.max(axis=1, keepdims=True)
        logs -= highest
        odds = np.exp(logs, out=logs)
        sums = odds.sum(axis=1, keepdims=True)
        odds /= sums
        return odds, float((highest + np.log(sums)).sum())

    def _logs(self, rows: Floats) -> Floats:
        precisions = 1 / self.variances
        squares = rows**2 @ precisions.T - 2 * rows @ (self.means * precisions).T
        squares += (self.means**2 * precisions).sum(axis=1)
        size = rows.shape[1] * np.log(2 * np.pi) + np.log(self.variances).sum(axis=1)
        squares += size
        squares *= -0.5
        squares += np.log(self.weights)
        return squares


def fitted_mixture(rows: Floats, gaussians: int, seed: int = 0, tell: Tell = silent) -> Mixture:
    """The mixture of `(N, D)` rows, begun from k-means. Raises `ValueError` if there are fewer rows than Gaussians."""
    book, own = fitted_codebook(rows, gaussians, seed, tell), np.eye(gaussians)
    return improved_mixture(rows, maximised(rows, gaussians, lambda part: (own[book.nearest(part)], 0.0))[0], tell)


def improved_mixture(rows: Floats, mixture: Mixture, tell: Tell = silent) -> Mixture:
    """Iterates expectation and maximisation until the likelihood hardly grows, at most 100 times."""
    before = -np.inf
    for step in range(_MOST_STEPS):
        tell("a mixture of Gaussians", step, _MOST_STEPS)
        better, now = maximised(rows, len(mixture.weights), mixture.expected)
        if now - before < _GAIN:
            break
        mixture, before = better, now
    return mixture


def maximised(rows: Floats, gaussians: int, expected: Expected) -> tuple[Mixture, float]:
    """The mixture with the highest likelihood, and the mean log likelihood, both from the results of `expected`.

    `expected` gets some rows at a time: the posteriors of all rows may be much larger than the rows.
    """
    counts = np.full(gaussians, 10 * np.finfo(np.float64).eps)
    sums, squares = np.zeros((2, gaussians, rows.shape[1]))
    likelihood = 0.0
    for part in in_parts(rows, gaussians):
        posteriors, likelihoods = expected(part)
        counts += posteriors.sum(axis=0)
        sums += posteriors.T @ part
        squares += posteriors.T @ part**2
        likelihood += likelihoods
    means = sums / counts[:, None]
    variances = squares / counts[:, None] - means**2
    return Mixture(counts / counts.sum(), means, np.maximum(variances, 0) + _LEAST_VARIANCE), likelihood / len(rows)
