"""What a classifier gives for a batch of clips."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Scores(NamedTuple):
    """The output of a classifier for a batch."""

    logits: Tensor
    """(B, K)"""
    auxiliary: Tensor | None
    """(B, K), from the second classifier of inception_v3 during training; otherwise None."""
    independent: bool = False
    """Each of the K was learned by itself, and any number of them may hold; False: one of them does."""

    def probabilities(self) -> Tensor:
        """(B, K): of classes, which sum to 1, or of labels, each by itself."""
        return self.logits.sigmoid() if self.independent else self.logits.softmax(dim=1)
