"""Strategies on the means over the clips: a weighted mean or product of the streams' scores, or the best stream alone.

The weighted mean follows Simonyan & Zisserman ("Two-stream convolutional networks", 2014); the product equals averaging
before the softmax (Wang et al., "Temporal segment networks", 2016). The product is much better if each stream knows one
half of the answer, such as texture and motion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from essp_common.artifacts.figures import Labels
from essp_common.artifacts.scores import Rule, VideoScores, fuse
from essp_engine.aggregation import weights
from essp_engine.aggregation.port import Io, Needs, Parts, State, StrategyParams, truth_of

WEIGHT = "/weight"
"""The suffix of the name of the array with the weight of a trainer."""


def stored(by_trainer: Mapping[str, float]) -> dict[str, NDArray[Any]]:
    """Weights as a state."""
    return {name + WEIGHT: np.array([weight], dtype=np.float64) for name, weight in by_trainer.items()}


def shares_in(state: State) -> dict[str, float]:
    """The inverse of `stored`."""
    return {name.removesuffix(WEIGHT): float(array[0]) for name, array in state.items() if name.endswith(WEIGHT)}


Find = Callable[[Any, NDArray[np.float64]], NDArray[np.float64]]
"""Classes `(V,)`, or labels `(V, C)`, and the streams' probabilities `(N, V, C)` -> the streams' weights `(N,)`."""

FITTED: Mapping[Rule, Find] = {"mean": weights.of_a_mean, "product": weights.of_a_product}


def found_weights(find: Find, labels: Labels, parts: Mapping[str, VideoScores]) -> dict[str, float]:
    """Trainer -> weight. `parts`: scores of the labelled videos, in their order."""
    found = find(labels, np.stack([part.probabilities for part in parts.values()]))
    return dict(zip(parts, found.tolist(), strict=True))


class _OfMeans:
    """The common part of the strategies on means."""

    name: ClassVar[str]
    summary: ClassVar[str]
    needs: ClassVar[Needs] = "scores"
    io: ClassVar[Io] = "random"
    Params: ClassVar[type[StrategyParams]] = StrategyParams
    _rule: ClassVar[Rule]
    _find: ClassVar[Find]

    def __init__(self, params: StrategyParams) -> None:
        """There are no parameters."""

    @property
    def rule(self) -> Rule:
        """Mean or product."""
        return self._rule

    def fit(self, parts: Parts) -> State:
        """The weights."""
        means = {name: part.means for name, part in parts.items()}
        return stored(found_weights(type(self)._find, truth_of(parts), means))

    def predict(self, parts: Parts, state: State) -> VideoScores:
        """The rule, applied to the means of all parts that have a weight."""
        return fuse({name: part.means for name, part in parts.items()}, shares_in(state), self._rule)

    def shares(self, state: State) -> dict[str, float]:
        """The weights."""
        return shares_in(state)


class Average(_OfMeans):
    """The mean of the streams' scores. The score of a stream is the mean over its clips. Nothing is learned, so it
    suits few videos."""

    name = "average"
    summary = "The mean of the streams' scores."
    _rule = "mean"
    _find = weights.equal


class Product(_OfMeans):
    """The product of the streams' scores, which follows Bayes' rule for streams that err independently. A confident
    stream outvotes one that guesses; nothing is learned."""

    name = "product"
    summary = "The product of the streams' scores."
    _rule = "product"
    _find = weights.equal


class Best(_OfMeans):
    """Only the stream with the lowest log loss: for jobs with one stream that is much better than all others."""

    name = "best"
    summary = "The best stream alone."
    _rule = "mean"
    _find = weights.best_alone


class Weighted(_OfMeans):
    """The mean of the streams' scores with the weights of the lowest log loss, found by expectation maximisation."""

    name = "weighted"
    summary = "The mean with fitted weights."
    _rule = "mean"
    _find = weights.of_a_mean


class WeightedProduct(_OfMeans):
    """The product of the streams' scores with the exponents of the lowest log loss: logistic regression."""

    name = "weighted_product"
    summary = "The product with fitted weights."
    _rule = "product"
    _find = weights.of_a_product
