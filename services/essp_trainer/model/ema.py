"""An exponential moving average (EMA) of a model's weights, which is evaluated and saved instead of the weights.

Averaged weights smooth out the noise of the last steps and score a little better (Polyak & Juditsky, 1992). After few
updates n the decay is smaller, (1 + n) / (10 + n), so that the initial weights are soon forgotten. The statistics of
batch normalisation belong to the weights, so they are averaged too. Values without a meaningful mean are copied:
integers, and tensors with infinities, such as attention masks, whose average would be NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

from essp_engine.learning.models import Classifier


class Ema:
    """The moving average of one model over its updates."""

    def __init__(self, twin: Classifier, decay: float) -> None:
        """`twin`: a model with the same shape and weights, which becomes the average."""
        self.model = twin.eval()
        self._decay = decay
        self._average = [(tensor, _has_mean(tensor)) for tensor in _tensors(self.model)]

    def update(self, model: Classifier, updates: int) -> None:
        """Include the weights after update number `updates`."""
        share = 1 - min(self._decay, (1 + updates) / (10 + updates))
        theirs = _tensors(model)
        pairs = [(mine, own) for (mine, has), own in zip(self._average, theirs, strict=True) if has]
        others = [(mine, own) for (mine, has), own in zip(self._average, theirs, strict=True) if not has]
        with torch.no_grad():
            torch._foreach_lerp_([mine for mine, _ in pairs], [own for _, own in pairs], share)
            for mine, own in others:
                mine.copy_(own)


def _tensors(model: Classifier) -> list[Tensor]:
    """Return the model's weights and buffers; a tensor with several names appears once."""
    return list(dict.fromkeys(model.state_dict(keep_vars=True).values()))


def _has_mean(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and bool(tensor.isfinite().all())
