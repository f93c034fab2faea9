"""Metrics of a classifier from its scores, in NumPy, so that trainers, fusion and reports share them without torch.

All take `labels` and `scores` `(N, C)`, where higher means likelier; a row is a video or a clip. Labels are `(N,) int`,
one class per row, or `(N, C) bool`, any number of labels per row, each with an independent probability. The definitions
are scikit-learn's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.integer[Any]] | NDArray[np.bool_]
Classes = NDArray[np.integer[Any]]
Scores = NDArray[np.floating[Any]]
Figures = dict[str, float]
"""Metric -> value: `top1`, `top5` (with more than 5 classes), `mean_class` (only for classes), `mAP`, `log_loss`."""
_MANY = 5
"""With this many classes or fewer, all are among the five likeliest, and `top5` would always be 1."""
NAMES = {"top1": "top-1", "top5": "top-5", "mean_class": "mean class", "mAP": "mAP", "log_loss": "log loss"}
"""Metric -> its display name."""

_MIN_PROBABILITY = 1e-12
"""Smaller probabilities count as this, so that the log loss stays finite."""


def judged_by(found: Figures) -> str:
    """The metric that ranks these results: `top1` for classes; `mAP` for labels, which have no class accuracy."""
    return "top1" if "mean_class" in found else "mAP"


def rank(found: Figures) -> tuple[float, float]:
    """A sort key that puts better results first: by their ranking metric, then by lower log loss."""
    return -found[judged_by(found)], found["log_loss"]


def named(found: Iterable[Figures]) -> dict[str, str]:
    """Metric -> its display name, for the metrics that occur in any of the results, in the order of tables."""
    there = {name for each in found for name in each}
    return {name: shown for name, shown in NAMES.items() if name in there}


def top_k(labels: Labels, scores: Scores, k: int) -> float:
    """Fraction of rows with a label among the `k` highest scores; for equal scores, the lower class id comes first."""
    best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return float(np.mean(np.take_along_axis(relevance(labels, scores.shape[1]), best, axis=1).any(axis=1)))


def log_losses(labels: Labels, probabilities: Scores) -> NDArray[np.float64]:
    """`(N,)` negative log of the probability given to the class of each row, in nats. For labels, the mean over all
    labels of the negative log of the probability given to the truth, whether the row has the label or not."""
    if labels.ndim == 2:
        exact = probabilities.astype(np.float64)
        right = np.where(labels, exact, 1 - exact)
        losses: NDArray[np.float64] = -np.log(np.maximum(right, _MIN_PROBABILITY)).mean(axis=1)
        return losses
    given = probabilities[np.arange(len(labels)), labels].astype(np.float64)
    return -np.log(np.maximum(given, _MIN_PROBABILITY))


def log_loss(labels: Labels, probabilities: Scores) -> float:
    """Mean of the log losses."""
    return float(np.mean(log_losses(labels, probabilities)))


def average_precision(relevant: NDArray[np.bool_], scores: Scores) -> float:
    """Area under the precision-recall steps of one class; `relevant` has at least one true row."""
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    hits = np.cumsum(relevant[order])
    last_of_equals = np.append(ranked[1:] != ranked[:-1], True)
    hits_there = hits[last_of_equals]
    precision = hits_there / (np.flatnonzero(last_of_equals) + 1)
    found = np.diff(hits_there, prepend=0) / hits[-1]
    return float(np.sum(found * precision))


def mean_average_precision(labels: Labels, scores: Scores) -> float:
    """Mean of the average precisions (one class against the rest) over the classes that have rows; 0 if there are
    none."""
    found = average_precisions(labels, scores)
    return float(np.nanmean(found)) if np.isfinite(found).any() else 0.0


def average_precisions(labels: Labels, scores: Scores) -> NDArray[np.float64]:
    """`(C,)` average precision of each class against the rest; NaN if it has no rows."""
    relevant = relevance(labels, scores.shape[1])
    found = np.full(scores.shape[1], np.nan)
    for c in np.flatnonzero(relevant.any(axis=0)):
        found[c] = average_precision(relevant[:, c], scores[:, c])
    return found


def relevance(labels: Labels, classes: int) -> NDArray[np.bool_]:
    """`(N, C)`: which classes are right for each row."""
    if labels.ndim == 2:
        return labels.astype(np.bool_, copy=False)
    right: NDArray[np.bool_] = labels[:, None] == np.arange(classes)
    return right


def mean_class_accuracy(labels: Classes, scores: Scores) -> float:
    """Mean of the accuracies of the classes that have rows: each class counts the same, however rare."""
    counts = confusion(labels, scores)
    rows = counts.sum(axis=1)
    return float(np.mean(counts.diagonal()[rows > 0] / rows[rows > 0]))


def share_interval(share: float, count: int) -> tuple[float, float]:
    """The 95 % confidence interval of a proportion of `count` independent draws (Wilson, 1927)."""
    z2 = 1.959964**2 / count
    middle, half = share + z2 / 2, math.sqrt(z2 * (share * (1 - share) + z2 / 4))
    return max(0.0, (middle - half) / (1 + z2)), min(1.0, (middle + half) / (1 + z2))


def confusion(labels: Classes, scores: Scores) -> NDArray[np.int64]:
    """`(C, C)` counts: row = label, column = highest score."""
    classes = scores.shape[1]
    flat = labels.astype(np.int64) * classes + np.argmax(scores, axis=1)
    return np.bincount(flat, minlength=classes * classes).reshape(classes, classes)


def figures(labels: Labels, probabilities: Scores) -> Figures:
    """The reported metrics. Raises `ValueError` if there are no rows."""
    if len(labels) == 0:
        raise ValueError("no scores to evaluate")
    of_classes = {} if labels.ndim == 2 else {"mean_class": mean_class_accuracy(labels.astype(np.int64), probabilities)}
    return {
        "top1": top_k(labels, probabilities, 1),
        **({"top5": top_k(labels, probabilities, _MANY)} if probabilities.shape[1] > _MANY else {}),
        **of_classes,
        "mAP": mean_average_precision(labels, probabilities),
        "log_loss": log_loss(labels, probabilities),
    }
