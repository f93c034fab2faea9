"""An exponential moving average (EMA) of a model's weights, which is evaluated and saved instead of them.

Averaged weights smooth out the noise of the last steps and score a little better (Polyak & Juditsky, 1992). After few
updates n the decay is smaller, (1 + n) / (10 + n), so that the initial weights are soon forgotten. The statistics of
batch normalisation belong to the weights, so they are averaged too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from essp_common.learning.models import Classifier


class Ema:
    """The moving average of one model over its updates."""

    def __init__(self, twin: Classifier, decay: float) -> None:
        """`twin`: a model of the same shape and weights, which becomes the average."""
        self.model = twin.eval()
        self._decay = decay
        self._average = _weights(self.model)

    def update(self, model: Classifier, updates: int) -> None:
        """Include the weights after update number `updates`."""
        share = 1 - min(self._decay, (1 + updates) / (10 + updates))
        theirs, their_counts = _weights(model)
        average, counts = self._average
        with torch.no_grad():
            torch._foreach_lerp_(average, theirs, share)
            for mine, count in zip(counts, their_counts, strict=True):
                mine.copy_(count)


def _weights(model: Classifier) -> tuple[list[Tensor], list[Tensor]]:
    """Its weights and statistics, and the integers among its state. What has several names is there once."""
    state = dict.fromkeys(model.state_dict(keep_vars=True).values())
    return [t for t in state if t.is_floating_point()], [t for t in state if not t.is_floating_point()]
