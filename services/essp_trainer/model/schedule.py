"""The learning rate as a function of the progress of a training, counted in epochs.

It has no state to save, so a resumed training gets the same rate on any number of ranks. The rate is that of the whole
batch, however many ranks share it.
"""

from __future__ import annotations

import math

from essp_common.job.spec import OptimizerSpec

_COLD = 0.01
"""Fraction of the rate at which a warm-up begins."""


def learning_rate(rates: OptimizerSpec, epochs: int, epochs_done: float) -> float:
    """The rate after `epochs_done` of `epochs`: 2.5 is the middle of the third epoch."""
    schedule = _cosine if rates.schedule == "cosine" else _steps
    return rates.lr * _warm_up(rates, epochs_done) * schedule(rates, epochs, epochs_done)


def _warm_up(rates: OptimizerSpec, epochs_done: float) -> float:
    if epochs_done >= rates.warmup_epochs:
        return 1.0
    return _COLD + (1 - _COLD) * epochs_done / rates.warmup_epochs


def _steps(rates: OptimizerSpec, epochs: int, epochs_done: float) -> float:
    return rates.gamma ** sum(epochs_done >= step for step in rates.steps)


def _cosine(rates: OptimizerSpec, epochs: int, epochs_done: float) -> float:
    """Loshchilov & Hutter, "SGDR", 2017, without restarts; it begins where the warm-up ends."""
    length = epochs - rates.warmup_epochs
    done = min(1.0, max(0.0, epochs_done - rates.warmup_epochs) / length) if length > 0 else 0.0
    return (1 + math.cos(math.pi * done)) / 2
