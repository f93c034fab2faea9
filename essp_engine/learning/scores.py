"""What a classifier gives for a batch of clips."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from essp_common.errors import PermanentError


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

    def on_host(self) -> NDArray[np.floating[Any]]:
        """The probabilities in the memory of the host. Raises `PermanentError` for some that are not finite."""
        found: NDArray[np.floating[Any]] = self.probabilities().cpu().numpy()
        if not np.isfinite(found).all():
            raise PermanentError(
                "the network gives scores that are not finite: its weights have diverged, or are damaged; train it "
                "again, with a lower optimizer.lr or optimizer.clip_grad_norm"
            )
        return found
