"""How busy the accelerator is, as MLPerf Storage defines it, and how long a training waits for its data.

    AU = time in which the accelerator computes / running time        passes from 90 % on

Both leave out the first step, because its batch comes from a pipeline that has just started; the number of samples per
second includes it (MLPerf Storage, Submission Guidelines 2.0, "Performance Metrics"; 90 % is the limit for ResNet-50
and 3D U-Net). A simulated accelerator counts with its nominal time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

PASSES = 0.90


@dataclass(frozen=True, slots=True)
class Step:
    """One batch, from requesting it to the end of the training step."""

    wait_s: float
    """Time that the training waited for the batch."""
    step_s: float
    """Time from the arrival of the batch to the end of the step."""
    busy_s: float
    """Time that the accelerator was busy."""


def data_wait(steps: Sequence[Step]) -> float:
    """The share of time in which the training waited for batches; 0 without steps."""
    total_s = sum(step.wait_s + step.step_s for step in steps)
    return sum(step.wait_s for step in steps) / total_s if total_s else 0.0


def utilisation(steps: Sequence[Step]) -> float | None:
    """AU; None if there is only the first step."""
    counted = steps[1:]
    total_s = sum(step.wait_s + step.step_s for step in counted)
    return sum(step.busy_s for step in counted) / total_s if total_s else None
