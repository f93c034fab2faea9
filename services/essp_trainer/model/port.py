"""The interface of what a session trains: a network (`training.py`), a probe of one (`probing.py`), or an encoder of
descriptors (`encoding.py`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from torch import Tensor

from essp_engine.encoders.fitting import Tell
from essp_engine.learning.models import AnyClassifier
from essp_engine.learning.randomness import Share
from essp_engine.loading.batch import Batch, ClipShape
from essp_trainer.model.step_result import LaunchedStep, StepResult

Files = dict[str, Mapping[str, Tensor]]
"""File of a checkpoint -> the tensors in it."""


class Trainable(Protocol):
    """One model being trained. All ranks call the same methods in the same order."""

    updates: int
    """Number of steps so far."""

    @property
    def evaluated(self) -> AnyClassifier:
        """The model to evaluate and save."""

    def step(self, batch: Batch, share: Share, shape: ClipShape) -> StepResult | LaunchedStep:
        """Learn from one batch. This rank has `share` of it; `shape` is the shape of the batch's clips, equal on all
        ranks."""

    def end_epoch(self, tell: Tell) -> StepResult | None:
        """All clips of a training phase have come. Returns the result of learning from all of them together, if the
        model does.

        Reports the progress of long computations. Raises `FitLeft` on all ranks if `tell` raises it on one; then a
        checkpoint can be made as if this had not been called.
        """

    def files(self) -> Files:
        """Return everything that a checkpoint must contain, not copied; the weights to evaluate are in MODEL_FILE."""

    def files_to_come(self) -> Files:
        """Return shapes and types of `files` once the training is under way; possibly on the device `meta`."""

    def moving(self) -> Collection[tuple[str, str]]:
        """Return file and name of the tensors that may change before the wait of `wait_before_update` is over."""

    def load(self, files: Mapping[str, Mapping[str, Tensor]], updates: int) -> None:
        """Restore `files`."""

    def wait_before_update(self, wait: Callable[[], None]) -> None:
        """Call `wait` once before the other tensors of `files` change, since they are being copied."""
