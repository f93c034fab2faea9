"""Linear weighting: clips count by their position in the video, with weights that are learned.

It is the linear weighting of Wang et al. ("Temporal segment networks", TPAMI 2018), which has a weight for each segment
of a video. Here a video is divided into parts of equal time. The score of a stream in a part is the mean over the clips
there; a clip that overlaps two parts counts in each by its overlap, so any number of clips is possible. The fused score
is the mean over all streams and parts with one weight each. Such a mean is a mixture whose log loss is convex:
expectation maximisation finds the only optimum.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from essp_common.artifacts.scores import ClipScores, VideoScores, fuse
from essp_engine.aggregation import weights
from essp_engine.aggregation.port import Io, Needs, Parts, State, StrategyParams, labels_of

_PARTS = "/parts"


class LinearParams(StrategyParams):
    """The division of a video."""

    parts: int = Field(5, ge=1, le=100)
    """Parts of equal time. Each has a weight for each stream. 1: the strategy `weighted`."""


class Linear:
    """A weight for each stream in each part of a video's time: for actions that occur late or early in a video, or for
    streams that are informative at different times."""

    name: ClassVar[str] = "linear"
    summary: ClassVar[str] = "A fitted weight for each stream in each part of a video's time."
    needs: ClassVar[Needs] = "scores"
    io: ClassVar[Io] = "sequential"
    Params: ClassVar[type[LinearParams]] = LinearParams

    def __init__(self, params: LinearParams) -> None:
        self._parts = params.parts

    @property
    def rule(self) -> None:
        """The means over all clips do not contain their times."""

    def fit(self, parts: Parts) -> State:
        """The weights of each stream's parts, `(parts,)`; all weights together sum to 1."""
        scores = np.concatenate([in_parts(part, self._parts) for part in parts.values()])
        found = weights.of_a_mean(labels_of(parts), scores).reshape(len(parts), self._parts)
        return {name + _PARTS: own for name, own in zip(parts, found, strict=True)}

    def predict(self, parts: Parts, state: State) -> VideoScores:
        """The weighted mean over streams and parts."""
        scored: dict[str, VideoScores] = {}
        weight: dict[str, float] = {}
        for name, part in parts.items():
            of_parts = state[name + _PARTS]
            if not of_parts.any():
                continue
            for number, scores in enumerate(in_parts(part, len(of_parts))):
                scored[f"{name}/{number}"] = part.pooled(scores)
                weight[f"{name}/{number}"] = float(of_parts[number])
        return fuse(scored, weight, "mean")

    def shares(self, state: State) -> dict[str, float]:
        """The weight of all parts of a stream."""
        return {name.removesuffix(_PARTS): float(own.sum()) for name, own in state.items() if name.endswith(_PARTS)}


def in_parts(part: ClipScores, parts: int) -> NDArray[np.float64]:
    """`(parts, V, C)`: the mean score in each part of the videos' time. A video's clips cover its time equally."""
    clip = np.arange(len(part.clips)) - np.repeat(part.first[:-1], part.counts)
    share = np.repeat(1 / part.counts, part.counts)
    begin, end = clip * share, (clip + 1) * share
    video = np.repeat(np.arange(len(part)), part.counts)
    found = np.zeros((parts, *part.means.probabilities.shape))
    for number in range(parts):
        inside = np.minimum(end, (number + 1) / parts) - np.maximum(begin, number / parts)
        rows = np.flatnonzero(inside > 0)
        np.add.at(found[number], video[rows], inside[rows, None] * part.clips[rows].astype(np.float64))
    shares: NDArray[np.float64] = found / found.sum(axis=2, keepdims=True)
    return shares
