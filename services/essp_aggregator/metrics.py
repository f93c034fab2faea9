"""Figures of a classifier from its scores, in NumPy, so that fusion and reports need no torch.

All take `labels` `(V,) int` and `scores` `(V, C)`, of which higher is likelier. The definitions are scikit-learn's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from essp_common.artifacts.fused_model import Figures

Labels = NDArray[np.integer[Any]]
Scores = NDArray[np.floating[Any]]

_MIN_PROBABILITY = 1e-12
"""Smaller probabilities count as this, so that the log loss stays finite."""


def top_k(labels: Labels, scores: Scores, k: int) -> float:
    """Share of videos whose label is among the `k` highest scores; of equal scores, the lower class id comes first."""
    best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return float(np.mean(np.any(best == labels[:, None], axis=1)))


def log_losses(labels: Labels, probabilities: Scores) -> NDArray[np.float64]:
    """`(V,)` negative logarithm of the probability given to each label, in nats."""
    given = probabilities[np.arange(len(labels)), labels].astype(np.float64)
    return -np.log(np.maximum(given, _MIN_PROBABILITY))


def log_loss(labels: Labels, probabilities: Scores) -> float:
    """Mean of the log losses."""
    return float(np.mean(log_losses(labels, probabilities)))


def average_precision(relevant: NDArray[np.bool_], scores: Scores) -> float:
    """Area under the precision-recall steps of one class; `relevant` has at least one video."""
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    hits = np.cumsum(relevant[order])
    last_of_equals = np.append(ranked[1:] != ranked[:-1], True)
    hits_there = hits[last_of_equals]
    precision = hits_there / (np.flatnonzero(last_of_equals) + 1)
    found = np.diff(hits_there, prepend=0) / hits[-1]
    return float(np.sum(found * precision))


def mean_average_precision(labels: Labels, scores: Scores) -> float:
    """Mean of the average precisions (one class against the rest) of the classes that have videos."""
    present = np.unique(labels)
    return float(np.mean([average_precision(labels == c, scores[:, c]) for c in present]))


def mean_class_accuracy(labels: Labels, scores: Scores) -> float:
    """Mean of the accuracies of the classes that have videos: each class counts the same, however rare."""
    counts = confusion(labels, scores)
    videos = counts.sum(axis=1)
    return float(np.mean(counts.diagonal()[videos > 0] / videos[videos > 0]))


def confusion(labels: Labels, scores: Scores) -> NDArray[np.int64]:
    """`(C, C)` counts: row = label, column = highest score."""
    classes = scores.shape[1]
    flat = labels.astype(np.int64) * classes + np.argmax(scores, axis=1)
    return np.bincount(flat, minlength=classes * classes).reshape(classes, classes)


def figures(labels: Labels, probabilities: Scores) -> Figures:
    """The figures that are reported. Raises `ValueError` if there is no video."""
    if len(labels) == 0:
        raise ValueError("no videos to evaluate")
    return {
        "top1": top_k(labels, probabilities, 1),
        "top5": top_k(labels, probabilities, 5),
        "mean_class": mean_class_accuracy(labels, probabilities),
        "mAP": mean_average_precision(labels, probabilities),
        "log_loss": log_loss(labels, probabilities),
    }
