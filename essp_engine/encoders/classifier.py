"""A linear classifier of vectors: multinomial logistic regression with a penalty on the squares of its weights.

The loss is convex, so the descent from zero ends at the only optimum. If V vectors have D > V numbers, components
outside the span of the vectors do not change the loss, so the descent needs only V numbers a class.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from essp_engine.encoders.descent import MOST_STEPS, lowest
from essp_engine.encoders.fitting import Tell, silent

Floats = NDArray[np.float64]

_FLAT = 1e-6


@dataclass(frozen=True)
class LinearClassifier:
    """Scores of C classes for vectors of D numbers."""

    weights: Floats
    """(D, C)"""
    bias: Floats
    """(C,)"""

    def __call__(self, vectors: Floats) -> Floats:
        """`(V, D)` -> `(V, C)` probabilities."""
        return softmax(vectors @ self.weights + self.bias)


def fitted_classifier(
    vectors: Floats, labels: NDArray[np.int32], classes: int, penalty: float, tell: Tell = silent
) -> LinearClassifier:
    """The classifier with the lowest mean log loss of `(V, D)` vectors plus `penalty / 2` times the squares of the
    weights.

    Classes without vectors are allowed and become unlikely.
    """
    videos, width = vectors.shape
    tell("the span of its vectors", 0, 1)
    inside, back = _in_their_span(vectors) if videos < width else (vectors, None)
    wanted = np.eye(classes)[labels]
    shape = (inside.shape[1] + 1, classes)

    def loss(flat: Floats) -> tuple[float, Floats]:
        weights, bias = np.split(flat.reshape(shape), [-1])
        logits = inside @ weights + bias
        highest = logits.max(axis=1, keepdims=True)
        logs = logits - highest - np.log(np.exp(logits - highest).sum(axis=1, keepdims=True))
        wrong = (np.exp(logs) - wanted) / videos
        slope = np.concatenate([inside.T @ wrong + penalty * weights, wrong.sum(axis=0, keepdims=True)])
        return float(penalty / 2 * (weights**2).sum() - (logs * wanted).sum() / videos), slope.ravel()

    def told(step: int) -> None:
        tell("a linear classifier", step, MOST_STEPS)

    found = lowest(loss, np.zeros(shape[0] * classes), flat=_FLAT, told=told).reshape(shape)
    weights = found[:-1] if back is None else vectors.T @ (back @ found[:-1])
    return LinearClassifier(weights, found[-1])


def _in_their_span(vectors: Floats) -> tuple[Floats, Floats]:
    """`(V, r)` coordinates of the vectors along the r orthonormal axes of their span, and the `(V, r)` weights of the
    vectors in each axis."""
    squares, axes = np.linalg.eigh(vectors @ vectors.T)
    kept = squares > squares[-1] * len(squares) * np.finfo(np.float64).eps
    lengths, axes = np.sqrt(squares[kept]), axes[:, kept]
    return axes * lengths, axes / lengths


def softmax(logits: Floats) -> Floats:
    """The softmax over the last axis."""
    odds = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares: Floats = odds / odds.sum(axis=-1, keepdims=True)
    return shares
