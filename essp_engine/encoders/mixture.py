"""Mixtures of Gaussians with diagonal covariances, by expectation maximisation (Dempster, Laird & Rubin, 1977)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from essp_engine.encoders.fitting import Tell, silent
from essp_engine.encoders.kmeans import fitted_codebook

Floats = NDArray[np.float64]

_MOST_STEPS = 100
_GAIN = 1e-3
"""An increase of the mean log likelihood of a row, in nats, that is none."""
_LEAST_VARIANCE = 1e-6
"""Is added to each variance, so that a Gaussian of equal rows has some."""


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
        return self.expected(rows)[1]

    def expected(self, rows: Floats) -> tuple[Floats, float]:
        """The posteriors of `(N, D)` rows and their log likelihood, which cost little more than one of them."""
        logs = self._logs(rows)
        highest = logs.max(axis=1, keepdims=True)
        logs -= highest
        odds = np.exp(logs, out=logs)
        sums = odds.sum(axis=1, keepdims=True)
        likelihood = float(np.mean(highest + np.log(sums)))
        odds /= sums
        return odds, likelihood

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
    book = fitted_codebook(rows, gaussians, seed, tell)
    return improved_mixture(rows, maximised(rows, np.eye(gaussians)[book.nearest(rows)]), tell)


def improved_mixture(rows: Floats, mixture: Mixture, tell: Tell = silent) -> Mixture:
    """Steps of expectation and maximisation, until the likelihood hardly grows, or 100 of them."""
    before = -np.inf
    for step in range(_MOST_STEPS):
        tell("a mixture of Gaussians", step, _MOST_STEPS)
        posteriors, now = mixture.expected(rows)
        if now - before < _GAIN:
            break
        mixture, before = maximised(rows, posteriors), now
    return mixture


def maximised(rows: Floats, posteriors: Floats) -> Mixture:
    """The mixture of the highest likelihood, where `(N, k)` says how much of each row belongs to each Gaussian."""
    counts = posteriors.sum(axis=0) + 10 * np.finfo(np.float64).eps
    means = posteriors.T @ rows / counts[:, None]
    variances = posteriors.T @ rows**2 / counts[:, None] - means**2
    return Mixture(counts / counts.sum(), means, np.maximum(variances, 0) + _LEAST_VARIANCE)
