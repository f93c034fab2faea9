"""A linear classifier of vectors: multinomial logistic regression with a penalty on the squares of its weights.

The loss is convex, and the memory-limited method of Broyden, Fletcher, Goldfarb and Shanno (Nocedal & Wright,
"Numerical optimization", 2006, algorithm 7.5) goes down it from zero, without random numbers. Of V vectors of D numbers
with V < D, nothing outside their span changes a loss, so it works in V numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from essp_engine.encoders.fitting import Tell, silent

Floats = NDArray[np.float64]
Loss = Callable[[Floats], tuple[float, Floats]]
"""Parameters -> the loss, and its slope, of the same shape."""

_KEPT = 10
_MOST_STEPS = 500
_FLAT = 1e-6
_ENOUGH = 1e-4
_SHORTEST = 1e-10


@dataclass(frozen=True)
class LinearClassifier:
    """Scores of C classes of vectors of D numbers."""

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
    """The lowest mean log loss of `(V, D)` vectors plus `penalty / 2` times the squares of the weights."""
    videos, width = vectors.shape
    tell("the span of its vectors", 0, 1)
    basis = np.linalg.qr(vectors.T)[0] if videos < width else np.eye(width)
    inside = np.column_stack([vectors @ basis, np.ones(videos)])
    wanted = np.eye(classes)[labels]
    shape = (inside.shape[1], classes)
    strength = np.full((shape[0], 1), penalty)
    strength[-1] = 0  # the bias is free

    def loss(flat: Floats) -> tuple[float, Floats]:
        own = flat.reshape(shape)
        logits = inside @ own
        highest = logits.max(axis=1, keepdims=True)
        normal = highest + np.log(np.exp(logits - highest).sum(axis=1, keepdims=True))
        slope = inside.T @ (np.exp(logits - normal) - wanted) / videos + strength * own
        value = float((normal[:, 0] - (logits * wanted).sum(axis=1)).mean() + (strength * own**2).sum() / 2)
        return value, slope.ravel()

    def told(step: int) -> None:
        tell("a linear classifier", step, _MOST_STEPS)

    found = lowest(loss, np.zeros(shape[0] * classes), told=told).reshape(shape)
    return LinearClassifier(basis @ found[:-1], found[-1])


def softmax(logits: Floats) -> Floats:
    """Over the last axis."""
    odds = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares: Floats = odds / odds.sum(axis=-1, keepdims=True)
    return shares


def lowest(
    loss: Loss, start: Floats, most_steps: int = _MOST_STEPS, told: Callable[[int], None] = lambda step: None
) -> Floats:
    """Where a smooth function has a lowest value, downhill from the start. `told` hears the number of each step."""
    place = start
    value, slope = loss(place)
    steps: deque[tuple[Floats, Floats]] = deque(maxlen=_KEPT)
    for step_number in range(most_steps):
        told(step_number)
        if np.abs(slope).max() < _FLAT:
            break
        direction = -_without_curvature(slope, steps)
        length = 1.0 if steps else 1 / max(1.0, float(np.abs(slope).sum()))
        descent = float(slope @ direction)
        found, new_slope = loss(place + length * direction)
        while found > value + _ENOUGH * length * descent:
            length /= 2
            if length < _SHORTEST:
                return place
            found, new_slope = loss(place + length * direction)
        step, turn = length * direction, new_slope - slope
        if step @ turn > 0:
            steps.append((step, turn))
        place, value, slope = place + step, found, new_slope
    return place


def _without_curvature(slope: Floats, steps: deque[tuple[Floats, Floats]]) -> Floats:
    """The slope times the inverse of the curvature that the last steps have shown (algorithm 7.4)."""
    found, shares = slope.copy(), []
    for step, turn in reversed(steps):
        share = float(step @ found) / float(step @ turn)
        shares.append(share)
        found -= share * turn
    if steps:
        step, turn = steps[-1]
        found *= float(step @ turn) / float(turn @ turn)
    for (step, turn), share in zip(steps, reversed(shares), strict=True):
        found += (share - float(turn @ found) / float(step @ turn)) * step
    return found
