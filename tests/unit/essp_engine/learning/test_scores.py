"""What a classifier gives: probabilities, or an error that says why there are none."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from essp_common.errors import PermanentError
from essp_engine.learning.scores import Scores


@pytest.mark.parametrize("independent", [False, True])
def test_scores_are_probabilities(independent: bool) -> None:
    found = Scores(torch.tensor([[0.0, 0.0], [-1e9, 1e9]]), None, independent).on_host()
    assert np.array_equal(found, [[0.5, 0.5], [0.0, 1.0]])


@pytest.mark.parametrize("logits", [[float("nan"), 0.0], [float("inf"), 0.0], [-float("inf")] * 2])
def test_numbers_that_are_not_finite_are_no_scores(logits: list[float]) -> None:
    """They would be figures and predictions, and a checkpoint with such figures cannot be read."""
    with pytest.raises(PermanentError, match="scores that are not finite: its weights have diverged"):
        Scores(torch.tensor([[0.5, 0.5], logits]), None).on_host()
