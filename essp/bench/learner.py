"""Consumers of a benchmark's batches: a real training (`training.py`) or a simulated accelerator.

The simulated accelerator is busy for the same time with each batch and uses no core, as in MLPerf Storage. It lets an
input pipeline be measured for an accelerator that the machine does not have.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from essp.bench.pipeline import Batch

IMAGES, CLIPS = "alexnet", "small"
"""Models for images and records, and for clips."""


def model_for(unit: str) -> str:
    """The model that learns from images, clips or records."""
    return CLIPS if unit == "clip" else IMAGES


class Learner(Protocol):
    """Consumes batches."""

    @property
    def name(self) -> str:
        """The name used in results."""

    def step(self, batch: Batch) -> float:
        """Learn from a batch. Returns the seconds that the accelerator was busy with it."""


class Pretended:
    """A simulated accelerator, which is busy for `step_s` with each batch."""

    def __init__(self, step_s: float, sleep: Callable[[float], object] = time.sleep) -> None:
        self.name = f"simulated, {step_s * 1e3:g} ms a step"
        self._step_s = step_s
        self._sleep = sleep

    def step(self, batch: Batch) -> float:
        """Wait for the duration of a step."""
        self._sleep(self._step_s)
        return self._step_s
