"""Late fusion: how the scores of several streams become one, chosen on the validation split.

For each stream, the score of a video is the mean over its clips. The streams' scores are fused as a weighted mean
(Simonyan & Zisserman, "Two-stream convolutional networks", 2014) or as a weighted product, which equals averaging
before the softmax (Wang et al., "Temporal segment networks", 2016). The product is much better where each stream knows
one half of the answer, such as texture and motion. Or the best stream decides alone.

The choice goes by log loss under cross-validation, since fitted weights always do a little better on the videos that
they were fitted to, and one right video more may be chance. All functions are pure and use no random numbers: equal
scores give equal weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from essp_aggregator import weights
from essp_common.artifacts.figures import figures, log_losses
from essp_common.artifacts.fused_model import Evaluation, Strategy
from essp_common.artifacts.scores import Rule, VideoScores, mix

_FOLDS = 5

Weights = NDArray[np.float64]
Find = Callable[[NDArray[np.int32], Weights], Weights]
"""Labels and the streams' probabilities -> the streams' weights."""


@dataclass(frozen=True)
class Aligned:
    """The scores of several trainers for the videos that all of them scored."""

    trainers: tuple[str, ...]
    labels: NDArray[np.int32]
    """(V,)"""
    probabilities: NDArray[np.float64]
    """(N, V, C), by trainer."""
    left_out: tuple[str, ...]
    """Videos that a trainer did not score, because none of their clips could be decoded."""


def align(parts: Mapping[str, VideoScores]) -> Aligned:
    """Keep the videos that every trainer scored and whose label is known.

    Raises `ValueError` if none is left, or if the trainers disagree on classes or labels.
    """
    names = tuple(parts)
    labelled = [{v for v, c in zip(p.video_id, p.class_id, strict=True) if c >= 0} for p in parts.values()]
    common = sorted(labelled[0].intersection(*labelled[1:]))
    if not common:
        raise ValueError(f"there is no video that all of {', '.join(names)} scored")
    chosen = [part.select(common) for part in parts.values()]
    for name, part in zip(names, chosen, strict=True):
        if part.classes != chosen[0].classes or not np.array_equal(part.class_id, chosen[0].class_id):
            raise ValueError(f"trainers {names[0]} and {name} disagree on the classes of the same videos")
    everything = set().union(*(part.video_id for part in parts.values()))
    return Aligned(
        trainers=names,
        labels=chosen[0].class_id,
        probabilities=np.stack([part.probabilities for part in chosen]),
        left_out=tuple(sorted(everything.difference(common))),
    )


STRATEGIES: Mapping[str, tuple[Rule, Find]] = {
    "average": ("mean", weights.equal),
    "product": ("product", weights.equal),
    "best": ("mean", weights.best_alone),
    "weighted": ("mean", weights.of_a_mean),
    "weighted_product": ("product", weights.of_a_product),
}
"""Name in a job -> how to fuse scores, and how to find the weights."""


def try_strategies(names: Sequence[str], parts: Mapping[str, VideoScores]) -> tuple[Strategy, tuple[Strategy, ...]]:
    """The best strategy on the validation scores, and all that were tried.

    The best is the one with the lowest log loss on videos that its weights were not fitted to: each fifth of the videos
    is scored with weights fitted to the other four. Of equal ones the first named is chosen, and so it is if there is
    one video only. The weights of the chosen one are fitted to all videos.
    """
    scores = align(parts)
    losses = {name: held_out_losses(scores, name) for name in names} if len(scores.labels) > 1 else {}
    chosen = min(losses, key=lambda name: _comparable(losses[name].mean()), default=names[0])
    tried = {name: _tried(scores, name, losses.get(name), losses.get(chosen)) for name in names}
    return tried[chosen], tuple(tried.values())


def held_out_losses(scores: Aligned, name: str) -> Weights:
    """`(V,)` log loss of each video with weights that were fitted to others.

    Sums of products are too sure of themselves, means too little. That says nothing about their decisions, so each
    strategy is compared at the sharpness that fits best, which is found on the other videos, too.
    """
    rule, find = STRATEGIES[name]
    losses = np.empty(len(scores.labels))
    for held_out in _folds(scores.labels):
        others = ~held_out
        found = find(scores.labels[others], scores.probabilities[:, others])[:, None]
        fitted, asked = (mix(scores.probabilities[:, rows], found, rule) for rows in (others, held_out))
        sharpness = weights.sharpness(scores.labels[others], fitted)
        losses[held_out] = log_losses(scores.labels[held_out], weights.sharpened(asked, sharpness))
    return losses


def _folds(labels: NDArray[np.int32]) -> Iterator[NDArray[np.bool_]]:
    """The videos in fifths (each for itself, if there are fewer), of which each has its share of every class."""
    folds = min(_FOLDS, len(labels))
    fold = np.empty(len(labels), dtype=np.int64)
    fold[np.argsort(labels, kind="stable")] = np.arange(len(labels)) % folds
    return (fold == number for number in range(folds))


def _tried(scores: Aligned, name: str, losses: Weights | None, of_chosen: Weights | None) -> Strategy:
    rule, find = STRATEGIES[name]
    found = find(scores.labels, scores.probabilities)
    return Strategy(
        name=name,
        rule=rule,
        weights=dict(zip(scores.trainers, (float(weight) for weight in found), strict=True)),
        validation=figures(scores.labels, mix(scores.probabilities, found[:, None], rule)),
        held_out_log_loss=None if losses is None else float(losses.mean()),
        uncertainty=None if losses is None or of_chosen is None else _standard_error(losses - of_chosen),
    )


def _standard_error(differences: Weights) -> float:
    return float(differences.std(ddof=1) / np.sqrt(len(differences)))


def _comparable(loss: float) -> float:
    """Differences that only come from rounding do not decide."""
    return round(float(loss), 6)


def evaluate(parts: Mapping[str, VideoScores], by_trainer: Mapping[str, float], rule: Rule) -> Evaluation:
    """Figures of each trainer and of their fusion on one split."""
    scores = align(parts)
    mixed = mix(scores.probabilities, np.array([by_trainer[name] for name in scores.trainers])[:, None], rule)
    return Evaluation(
        videos=len(scores.labels),
        left_out=len(scores.left_out),
        members={n: figures(scores.labels, p) for n, p in zip(scores.trainers, scores.probabilities, strict=True)},
        fused=figures(scores.labels, mixed),
    )
