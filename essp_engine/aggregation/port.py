"""The interface of an aggregation strategy: how the scores of a job's streams become one score of each video.

A strategy is a class. ESSP's own are listed in `essp_engine.aggregation.registry`; another package adds one under the
entry-point group `essp.aggregators`. The result of learning is its **state**: named arrays and nothing else, so that
the fused model can carry it and any process can predict with it. The modules import only NumPy at the top, because the
master, which reads the classes, has nothing else. Code that fits or predicts imports its libraries when it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from essp_common.artifacts.figures import Labels
from essp_common.artifacts.scores import ClipScores, Rule, VideoScores

Needs = Literal["scores", "features"]
"""What a strategy learns from: the scores of every clip, or also their features, which a job provides on request
(`aggregation.features`)."""
Io = Literal["random", "sequential"]
"""Whether the order of a video's clips matters to a strategy."""
State = Mapping[str, NDArray[Any]]
"""The result of learning: arrays by name."""
Parts = Mapping[str, ClipScores]
"""Trainer -> its scores."""


class StrategyParams(BaseModel):
    """The parameters of a strategy: one field each, with type, bounds, default and docstring.

    The registry validates the parameters of a job against the fields, and `essp aggregator describe` lists them.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True, allow_inf_nan=False
    )


class Aggregator(Protocol):
    """One strategy with its parameters. It draws no random numbers: equal scores give an equal state."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """One line for `essp aggregator ls`."""
    needs: ClassVar[Needs]
    io: ClassVar[Io]
    Params: ClassVar[type[StrategyParams]]
    """The parameters that a job may specify in addition to the name."""

    def __init__(self, params: Any) -> None:
        """`params`: an instance of `Params`."""

    @property
    def rule(self) -> Rule | None:
        """Not None: the strategy is only this rule on the means over the clips, with `shares` as weights, and a model
        needs no further state."""

    def fit(self, parts: Parts) -> State:
        """Learn from labelled videos. All parts have the same videos in the same order, at least one.

        Parts have `features` if the strategy needs them.
        """

    def predict(self, parts: Parts, state: State) -> VideoScores:
        """The fused scores of every video that any of the parts has; each row sums to 1.

        The score of a video depends on that video alone. A part may be missing for a trainer whose share is 0, or that
        could not score any video; the fused score then comes from the others.
        """

    def shares(self, state: State) -> dict[str, float]:
        """Trainer -> its share of the fused score; they sum to 1. Trainers of share 0 need not be loaded."""


def labels_of(parts: Parts) -> NDArray[np.int32]:
    """`(V,)` classes of videos that all parts have in the same order."""
    return next(iter(parts.values())).means.class_id


def truth_of(parts: Parts) -> Labels:
    """`(V,)` classes of these videos, or `(V, C)` their labels, if each label is learned separately."""
    return next(iter(parts.values())).means.truth
