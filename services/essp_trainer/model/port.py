"""What a session trains, whatever it is: a network (`training.py`), a probe of one (`probing.py`), or an encoder of
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
    """Steps so far."""

    @property
    def evaluated(self) -> AnyClassifier:
        """The model to evaluate and save."""

    def step(self, batch: Batch, share: Share, shape: ClipShape) -> StepResult | LaunchedStep:
        """Learn from one batch, of which this rank has `share`. `shape`: that of its clips, on all ranks."""

    def end_epoch(self, tell: Tell) -> StepResult | None:
        """All clips of a training phase have come. What was learned of all of them together, if that is so.

        Tells how far it is with what takes long. Raises `FitLeft` on all ranks if `tell` does on one; then a checkpoint
        can be made as if it had not been called.
        """

    def files(self) -> Files:
        """All that a checkpoint has to hold, not copied; the weights to evaluate are in MODEL_FILE."""

    def files_to_come(self) -> Files:
        """Shapes and types of what `files` gives once the training is under way; may be on the device `meta`."""

    def moving(self) -> Collection[tuple[str, str]]:
        """File and name of those tensors that may change before `wait_before_update` was waited for."""

    def load(self, files: Mapping[str, Mapping[str, Tensor]], updates: int) -> None:
        """The inverse of `files`."""

    def wait_before_update(self, wait: Callable[[], None]) -> None:
        """Call `wait` once before the other tensors of `files` change: they are being copied."""
