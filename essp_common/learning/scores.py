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
