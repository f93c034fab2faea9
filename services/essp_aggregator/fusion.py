"""Late fusion: the weight of each stream, found on the validation split.

For each stream, the score of a video is the mean over its clips. The streams' scores are fused as a weighted mean
(Simonyan & Zisserman, "Two-stream convolutional networks", 2014) or as a weighted product, which equals averaging
before the softmax (Wang et al., "Temporal segment networks", 2016). The product is much better where each stream knows
one half of the answer, such as texture and motion.

Weights are searched on a grid over the simplex, then refined around the best point. The objective is top-1 by video;
log loss decides between equals, so that chance does not decide on a small validation split, where many weights give the
same top-1. All functions are pure and use no random numbers: equal scores give equal weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from essp_common.artifacts.figures import figures, log_loss, log_losses, top_k
from essp_common.artifacts.fused_model import Evaluation, Strategy
from essp_common.artifacts.scores import Rule, VideoScores, mix

_GRID_POINTS = 2000
"""Maximum number of grid points: 0.05 apart for two streams, 0.1 for four, coarser for more."""
_FINEST_STEP = 1 / 320

Weights = NDArray[np.float64]
Objective = Callable[[Weights], tuple[float, float]]
"""Weights -> the values to maximise, the most important first."""


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


def equal(scores: Aligned, rule: Rule) -> Weights:
    """The same weight for every trainer."""
    return np.full(len(scores.trainers), 1 / len(scores.trainers))


def searched(scores: Aligned, rule: Rule) -> Weights:
    """The best weights for these scores; never worse than equal weights, which are among the candidates."""

    def objective(weights: Weights) -> tuple[float, float]:
        mixed = mix(scores.probabilities, weights[:, None], rule)
        return top_k(scores.labels, mixed, 1), -log_loss(scores.labels, mixed)

    candidates = [equal(scores, rule), *simplex_grid(len(scores.trainers), grid_divisions(len(scores.trainers)))]
    best = max(candidates, key=objective)  # max returns the first of equals
    return refine(best, 1 / grid_divisions(len(scores.trainers)) / 2, objective)


STRATEGIES: dict[str, tuple[Rule, Callable[[Aligned, Rule], Weights]]] = {
    "average": ("mean", equal),
    "product": ("product", equal),
    "weighted": ("mean", searched),
    "weighted_product": ("product", searched),
}
"""Name in a job -> how to fuse scores, and how to find the weights."""


def grid_divisions(streams: int) -> int:
    """Grid steps of each weight, as many as keep the grid small."""
    return next(d for d in range(20, 0, -1) if d == 1 or comb(d + streams - 1, streams - 1) <= _GRID_POINTS)


def simplex_grid(streams: int, divisions: int) -> Iterator[Weights]:
    """All weights that are multiples of `1 / divisions` and sum to 1, in a fixed order."""
    slots = divisions + streams - 1
    for bars in combinations(range(slots), streams - 1):
        edges = np.array([-1, *bars, slots])
        yield (np.diff(edges) - 1) / divisions


def refine(weights: Weights, step: float, objective: Objective) -> Weights:
    """Shift weight between pairs of streams while that helps, with smaller and smaller steps."""
    best, value = weights, objective(weights)
    while step >= _FINEST_STEP:
        better = max(_shifted(best, step), key=objective, default=best)
        if objective(better) > value:
            best, value = better, objective(better)
        else:
            step /= 2
    return best


def _shifted(weights: Weights, step: float) -> list[Weights]:
    moved = []
    for giver in range(len(weights)):
        for taker in range(len(weights)):
            amount = min(step, weights[giver])
            if giver != taker and amount > 0:
                shifted = weights.copy()
                shifted[giver] -= amount
                shifted[taker] += amount
                moved.append(shifted)
    return moved


def try_strategies(names: Sequence[str], parts: Mapping[str, VideoScores]) -> tuple[Strategy, tuple[Strategy, ...]]:
    """The best strategy on the validation scores, and all that were tried.

    A strategy that is named later wins only if it is better by more than chance: in top-1, or at equal top-1 by a log
    loss that is lower by more than two standard errors of the difference. Otherwise searched weights, which always fit
    the validation videos a little better than plain averaging, would always win without being better on other videos.
    """
    scores = align(parts)
    tried: list[Strategy] = []
    best, best_losses = 0, np.empty(0)
    for number, name in enumerate(names):
        rule, find = STRATEGIES[name]
        weights = find(scores, rule)
        mixed = mix(scores.probabilities, weights[:, None], rule)
        by_trainer = dict(zip(scores.trainers, (float(w) for w in weights), strict=True))
        tried.append(Strategy(name=name, rule=rule, weights=by_trainer, validation=figures(scores.labels, mixed)))
        losses = log_losses(scores.labels, mixed)
        if number == 0 or _better(tried[number], losses, tried[best], best_losses):
            best, best_losses = number, losses
    return tried[best], tuple(tried)


def _better(new: Strategy, new_losses: Weights, old: Strategy, old_losses: Weights) -> bool:
    if new.validation["top1"] != old.validation["top1"]:
        return new.validation["top1"] > old.validation["top1"]
    gain = old_losses - new_losses
    return bool(gain.mean() > 2 * gain.std() / np.sqrt(len(gain)))


def evaluate(parts: Mapping[str, VideoScores], weights: Mapping[str, float], rule: Rule) -> Evaluation:
    """Figures of each trainer and of their fusion on one split."""
    scores = align(parts)
    mixed = mix(scores.probabilities, np.array([weights[name] for name in scores.trainers])[:, None], rule)
    return Evaluation(
        videos=len(scores.labels),
        left_out=len(scores.left_out),
        members={n: figures(scores.labels, p) for n, p in zip(scores.trainers, scores.probabilities, strict=True)},
        fused=figures(scores.labels, mixed),
    )
