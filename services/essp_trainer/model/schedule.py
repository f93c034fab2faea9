"""The learning rate at each place of a training.

A function of the place alone, so there is no state of it to save, and a training that is resumed, on whatever number
of ranks, goes on with the very rate that it would have had. It is that of the whole batch, however many share it.
"""

from __future__ import annotations

import math

from essp_common.job.spec import OptimizerSpec

_COLD = 0.01
"""Share of the rate at which a warm-up begins."""


def learning_rate(rates: OptimizerSpec, epochs: int, place: float) -> float:
    """The rate at `place`, counted in epochs: 2.5 is the middle of the third of `epochs`."""
    return rates.lr * _warmth(rates, place) * (_cosine if rates.schedule == "cosine" else _steps)(rates, epochs, place)


def _warmth(rates: OptimizerSpec, place: float) -> float:
    if place >= rates.warmup_epochs:
        return 1.0
    return _COLD + (1 - _COLD) * place / rates.warmup_epochs


def _steps(rates: OptimizerSpec, epochs: int, place: float) -> float:
    return rates.gamma ** sum(place >= step for step in rates.steps)


def _cosine(rates: OptimizerSpec, epochs: int, place: float) -> float:
    """Loshchilov & Hutter, "SGDR", 2017, without restarts; it begins where the warm-up ends."""
    length = epochs - rates.warmup_epochs
    done = min(1.0, max(0.0, place - rates.warmup_epochs) / length) if length > 0 else 0.0
    return (1 + math.cos(math.pi * done)) / 2
