"""The output of a classifier for a batch of clips."""

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
    """Whether the K outputs were learned independently, and any number of them may apply; False: exactly one does."""

    def probabilities(self) -> Tensor:
        """(B, K): of classes, which sum to 1, or of labels, each independently."""
        return self.logits.sigmoid() if self.independent else self.logits.softmax(dim=1)

    def on_host(self) -> NDArray[np.floating[Any]]:
        """The probabilities in host memory. Raises `PermanentError` if some are not finite."""
        found: NDArray[np.floating[Any]] = self.probabilities().cpu().numpy()
        if not np.isfinite(found).all():
            raise PermanentError(
                "the network gives scores that are not finite: its weights have diverged, or are damaged; train it "
                "again, with a lower optimizer.lr or optimizer.clip_grad_norm"
            )
        return found
