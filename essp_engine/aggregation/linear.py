"""Linear weighting: clips count by when in the video they are, with weights that are learned.

It is the linear weighting of Wang et al. ("Temporal segment networks", TPAMI 2018), which has a weight for each segment
of a video. Here a video is divided into equal parts of its time. The score of a stream in a part is the mean over its
clips there, a clip that lies in two parts counting for each as much as it lies in it; so any number of clips will do.
The fused score is the mean over all streams and parts with one weight each. Such a mean is a mixture, of which the log
loss is convex: expectation maximisation finds the one optimum.
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
    """How finely a video is divided."""

    parts: int = Field(5, ge=1, le=100)
    """Equal parts of a video's time, each of which has a weight for each stream. 1: the strategy `weighted`."""


class Linear:
    """A weight for each stream in each part of a video's time: for actions that come late in a video, or early, or for
    streams that tell most at different times."""

    name: ClassVar[str] = "linear"
    summary: ClassVar[str] = "A fitted weight for each stream in each part of a video's time."
    needs: ClassVar[Needs] = "scores"
    io: ClassVar[Io] = "sequential"
    Params: ClassVar[type[LinearParams]] = LinearParams

    def __init__(self, params: LinearParams) -> None:
        self._parts = params.parts

    @property
    def rule(self) -> None:
        """The means over all clips do not tell when something was seen."""

    def fit(self, parts: Parts) -> State:
        """The weights of the parts of each stream, `(parts,)`; all together sum to 1."""
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
    """`(parts, V, C)`: the mean score in each part of the videos' time. A video's clips share its time equally."""
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
