"""Strategies that pool the clips of each stream differently from the mean, for videos with few informative clips.

The pooled scores of a video sum to 1 again. The streams are then fused as in the strategies on means: by mean or
product, with equal or fitted weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from essp_common.artifacts.scores import ClipScores, Rule, VideoScores, fuse
from essp_engine.aggregation import weights
from essp_engine.aggregation.means import FITTED, found_weights, shares_in, stored
from essp_engine.aggregation.port import Io, Needs, Parts, State, StrategyParams, labels_of

Floats = NDArray[np.float64]


class FusionParams(StrategyParams):
    """How the streams are fused after the clips of each are pooled."""

    rule: Rule = "mean"
    """`mean` or `product` of the streams' scores."""
    weights: Literal["equal", "fitted"] = "equal"
    """`fitted`: the streams' weights have the lowest log loss on the validation split."""


class TopKParams(FusionParams):
    """How many clips count."""

    k: int = Field(3, ge=1, le=10_000)
    """For each class, the mean of this number of its highest clip scores; in a video with fewer clips, the mean of
    all."""


class Pooled:
    """A strategy that pools the clips of each stream separately, and then fuses the streams."""

    name: ClassVar[str]
    summary: ClassVar[str]
    needs: ClassVar[Needs] = "scores"
    io: ClassVar[Io] = "random"

    def __init__(self, params: Any) -> None:
        """`params`: `FusionParams`, or a subclass with the strategy's own parameters."""
        self._fusion: FusionParams = params

    @property
    def rule(self) -> None:
        """The means do not contain what is pooled here."""

    def fit(self, parts: Parts) -> State:
        """First fits the pooling of each stream, then the weights of the pooled streams."""
        labels = labels_of(parts)
        learned = {f"{name}/{key}": array for name, part in parts.items() for key, array in self.fit_part(part).items()}
        find = FITTED[self._fusion.rule] if self._fusion.weights == "fitted" else weights.equal
        return {**learned, **stored(found_weights(find, labels, self._pooled(parts, learned)))}

    def predict(self, parts: Parts, state: State) -> VideoScores:
        """Pool and fuse all parts that have a weight."""
        shares = shares_in(state)
        used = {name: part for name, part in parts.items() if shares[name] > 0}
        return fuse(self._pooled(used, state), shares, self._fusion.rule)

    def shares(self, state: State) -> dict[str, float]:
        """The weights of the pooled streams."""
        return shares_in(state)

    def fit_part(self, part: ClipScores) -> State:
        """What the pooling of one stream needs; empty, if there is nothing to learn."""
        return {}

    def pool(self, part: ClipScores, state: State) -> Floats:
        """`(V, C)` scores of one stream's videos."""
        raise NotImplementedError

    def _pooled(self, parts: Parts, state: State) -> dict[str, VideoScores]:
        return {name: part.pooled(self.pool(part, _of(name, state))) for name, part in parts.items()}


class Max(Pooled):
    """For each class, the highest score of a clip. One confident clip decides, even if it is wrong."""

    name = "max"
    summary = "The highest clip score of each class."
    Params: ClassVar[type[FusionParams]] = FusionParams

    def pool(self, part: ClipScores, state: State) -> Floats:
        """The highest scores, summing to 1."""
        return _shares(_by_count(part, lambda clips: clips.max(axis=1)))


class TopK(Pooled):
    """For each class, the mean of its `k` highest clip scores: between `max` (k: 1) and `average` (all clips). For
    videos that show their class only part of the time."""

    name = "top_k"
    summary = "The mean of the k highest clip scores of each class."
    Params: ClassVar[type[TopKParams]] = TopKParams

    def __init__(self, params: TopKParams) -> None:
        super().__init__(params)
        self._k = params.k

    def pool(self, part: ClipScores, state: State) -> Floats:
        """The means of the highest scores, summing to 1."""

        def of_best(clips: Floats) -> Floats:
            count = clips.shape[1]
            ordered = np.partition(clips, count - self._k, axis=1) if self._k < count else clips
            best: Floats = ordered[:, -self._k :].mean(axis=1)
            return best

        return _shares(_by_count(part, of_best))


def _by_count(part: ClipScores, pool: Callable[[Floats], Floats]) -> Floats:
    """`(V, C)`: applies `pool` to all videos with the same number T of clips together, `(v, T, C)` -> `(v, C)`."""
    pooled = np.empty(part.means.probabilities.shape)
    for count in np.unique(part.counts).tolist():
        videos = np.flatnonzero(part.counts == count)
        rows = part.first[videos][:, None] + np.arange(count)
        pooled[videos] = pool(part.clips[rows].astype(np.float64))
    return pooled


def _shares(scores: Floats) -> Floats:
    shares: Floats = scores / scores.sum(axis=1, keepdims=True)
    return shares


def _of(trainer: str, state: State) -> Mapping[str, NDArray[Any]]:
    """The arrays of one trainer. Names of trainers have no slash."""
    begin = f"{trainer}/"
    return {name.removeprefix(begin): array for name, array in state.items() if name.startswith(begin)}
