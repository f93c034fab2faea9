"""Who takes the batches of a benchmark: a real training (`training.py`), or an accelerator that is pretended.

The pretended accelerator is busy for the same time with each batch and takes no core, as MLPerf Storage does it. So an
input pipeline can be measured for an accelerator that is not there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from essp.bench.pipeline import Batch

IMAGES, CLIPS = "alexnet", "small"
"""Models of images and records, and of clips."""


def model_for(unit: str) -> str:
    """What learns images, clips or records."""
    return CLIPS if unit == "clip" else IMAGES


class Learner(Protocol):
    """Takes batches."""

    @property
    def name(self) -> str:
        """For the results."""

    def step(self, batch: Batch) -> float:
        """Learn from a batch; for how many seconds the accelerator was busy with it."""


class Pretended:
    """An accelerator that is busy for `step_s` with each batch."""

    def __init__(self, step_s: float, sleep: Callable[[float], object] = time.sleep) -> None:
        self.name = f"pretended, {step_s * 1e3:g} ms a step"
        self._step_s = step_s
        self._sleep = sleep

    def step(self, batch: Batch) -> float:
        """Wait."""
        self._sleep(self._step_s)
        return self._step_s
