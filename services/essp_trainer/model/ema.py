"""An exponential moving average of a model's weights, which is evaluated and kept in their place.

Averaged weights lie closer to the middle of what the last steps moved around in, and do a little better (Polyak &
Juditsky, 1992). While there were few updates the decay is less, (1 + n) / (10 + n), so that the initial weights are
soon forgotten. Statistics of batch normalisation are averaged as well, as they belong to the weights.
"""

from __future__ import annotations

import torch

from essp_common.learning.models import Classifier


class Ema:
    """The average of one model over its updates."""

    def __init__(self, twin: Classifier, decay: float) -> None:
        """`twin`: another model of the same shape, which becomes the average."""
        self.model = twin.eval()
        self._decay = decay

    def follow(self, model: Classifier, updates: int) -> None:
        """Take the weights after update number `updates` in."""
        share = 1 - min(self._decay, (1 + updates) / (10 + updates))
        with torch.no_grad():
            for mine, theirs in zip(self.model.state_dict().values(), model.state_dict().values(), strict=True):
                if mine.is_floating_point():
                    mine.lerp_(theirs, share)
                else:
                    mine.copy_(theirs)
