"""The result of a step: loss and accuracy, or that it diverged.

On a GPU a step is only launched, and its metrics arrive later. Reading them at once would make the GPU wait for the
host in each step. So a step returns `LaunchedStep`, whose metrics are read when the next step has been launched.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from essp_common.errors import PermanentError


class Diverged(PermanentError):
    """The loss or its gradient is not finite; that step changed no parameter."""

    kind = "diverged"


@dataclass(frozen=True, slots=True)
class StepResult:
    """Loss and accuracy of one batch, over all ranks."""

    loss: float
    """Mean over the batch."""
    correct: int
    clips: int


class LaunchedStep:
    """The metrics of a step, in transfer from the device."""

    def __init__(self, figures: tuple[Tensor, ...], clips: int, where: str) -> None:
        """`figures`: loss, correct clips, norm of the gradient, and whether the loss scale may be the reason for a
        non-finite norm (`Optimizer.may_skip`). `where`: the update and the epoch, for an error."""
        device = figures[0].device
        self._figures = torch.stack([figure.double() for figure in figures]).to("cpu", non_blocking=True)
        self._arrived = torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None
        self._clips = clips
        self._where = where

    def result(self) -> StepResult:
        """Wait for the metrics. Raises `Diverged`."""
        if self._arrived is not None:
            self._arrived.synchronize()
        loss, correct, norm, may_skip = self._figures.tolist()
        if not math.isfinite(loss) or not (math.isfinite(norm) or may_skip):
            raise Diverged(
                f"loss {loss:g}, gradient norm {norm:g} at {self._where}; lower optimizer.lr or "
                f"optimizer.clip_grad_norm, or set optimizer.warmup, and start again"
            )
        return StepResult(loss, round(correct), self._clips)
