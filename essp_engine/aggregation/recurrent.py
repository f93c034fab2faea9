"""A strategy that reads the clips of a video in their order.

    features of all clips ─▶ PCA, one scale ─▶ LSTM over the clips of a video ─▶ its last state ─▶ classifier

It distinguishes classes that have the same clips in different order, such as sitting down and standing up; the other
strategies of features cannot. It has many more weights than they have, so it needs many validation videos. "Beyond
short snippets" (Ng et al., CVPR 2015) reads features of a network in this way.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from essp_common.artifacts.scores import ClipScores
from essp_common.distribution import needs_extra
from essp_engine.aggregation.encoded import FeatureParams, features_of, named, restored, sampled
from essp_engine.aggregation.pooling import Pooled
from essp_engine.aggregation.port import Io, Needs, State
from essp_engine.encoders.pca import Pca, fitted_pca

Floats = NDArray[np.float64]

_NETWORK = "network."


class LstmParams(FeatureParams):
    """The size of the network, and how long it learns."""

    pca: int = Field(64, ge=1, le=4096)
    """Principal components to which features are reduced; fewer, if there are fewer clips or numbers."""
    hidden: int = Field(32, ge=1, le=1024)
    """Cells of the memory."""
    steps: int = Field(100, ge=1, le=10_000)
    """Optimisation steps, each over all videos."""


class Lstm(Pooled):
    """A long short-term memory over the clips in time order. Its last state is classified. For classes that differ in
    the order of events."""

    name = "lstm"
    summary = "A recurrent network over the clips in time order."
    needs: ClassVar[Needs] = "features"
    io: ClassVar[Io] = "sequential"
    Params: ClassVar[type[LstmParams]] = LstmParams

    def __init__(self, params: LstmParams) -> None:
        super().__init__(params)
        self._params = params

    def fit_part(self, part: ClipScores) -> State:
        """The projection, its scale and the network."""
        params = self._params
        rows = sampled(part)
        pca = fitted_pca(rows, min(params.pca, *rows.shape))
        spread = float(pca(rows).std())
        reduced: dict[str, NDArray[Any]] = {**named("pca", pca), "scale": np.array(spread if spread > 0 else 1.0)}
        sequences, classes = _reduced(part, reduced), part.means.probabilities.shape[1]
        with needs_extra("the strategy lstm"):
            from essp_engine.aggregation.lstm import fitted_lstm  # loads torch
        network = fitted_lstm(sequences, part.means.class_id, classes, params.hidden, params.penalty, params.steps)
        return {**reduced, **{f"{_NETWORK}{name}": array for name, array in network.items()}}

    def pool(self, part: ClipScores, state: State) -> Floats:
        """The network's scores."""
        with needs_extra("the strategy lstm"):
            from essp_engine.aggregation.lstm import probabilities
        network = {name.removeprefix(_NETWORK): array for name, array in state.items() if name.startswith(_NETWORK)}
        return probabilities(network, _reduced(part, state))


def _reduced(part: ClipScores, state: State) -> list[Floats]:
    pca = restored("pca", Pca, state)
    return [pca(rows) / state["scale"] for rows in features_of(part)]
