"""The learning rate as a function of the progress of a training: in epochs, in updates, or as a share of it.

It has no state to save, so a resumed training gets the same rate on any number of ranks. The rate is for the whole
batch, however many ranks share it.
"""

from __future__ import annotations

import math

from essp_common.job.trainer_spec import OptimizerSpec, TrainerSpec
from essp_common.pb.v1.messages_pb2 import PhasePlan

_COLD = 0.01
"""Fraction of the rate at which a warm-up begins."""


def rate_at(training: TrainerSpec, epochs: int, plan: PhasePlan, begin: int) -> float:
    """Return the rate for the batch that begins with clip `begin` of a training phase."""
    if training.optimizer.unit == "epochs":
        return learning_rate(training.optimizer, epochs, plan.epoch + begin / plan.clips)
    if training.optimizer.unit == "share":
        return learning_rate(training.optimizer, 1.0, (plan.epoch + begin / plan.clips) / epochs)
    each = training.updates(plan.clips)
    return learning_rate(training.optimizer, epochs * each, plan.epoch * each + begin // training.batch_size)


def learning_rate(rates: OptimizerSpec, whole: float, done: float) -> float:
    """Return the rate after `done` of `whole`, both in the unit of `rates`: 2.5 epochs is the middle of the
    third one."""
    schedule = _cosine if rates.schedule == "cosine" else _steps
    return rates.lr * _warm_up(rates, done) * schedule(rates, whole, done)


def _warm_up(rates: OptimizerSpec, done: float) -> float:
    if done >= rates.warmup:
        return 1.0
    return _COLD + (1 - _COLD) * done / rates.warmup


def _steps(rates: OptimizerSpec, whole: float, done: float) -> float:
    return rates.gamma ** sum(done >= step for step in rates.steps)


def _cosine(rates: OptimizerSpec, whole: float, done: float) -> float:
    """Loshchilov & Hutter, "SGDR", 2017, without restarts; it begins where the warm-up ends."""
    length = whole - rates.warmup
    part = min(1.0, max(0.0, done - rates.warmup) / length) if length > 0 else 0.0
    return (1 + math.cos(math.pi * part)) / 2
