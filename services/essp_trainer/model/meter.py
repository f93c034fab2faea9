"""The running metrics of one phase: loss, accuracy, speed, and how long the model waited for clips."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from essp_trainer.model.step_result import LaunchedStep, StepResult

Clock = Callable[[], float]


@dataclass
class Meter:
    """The running metrics of one phase.

    `sums` can be saved and restored, so a resumed phase reports all of it.
    """

    clock: Clock = time.monotonic
    loss_sum: float = 0.0
    correct: int = 0
    clips: int = 0
    place: int = 0
    """Index in the phase up to which clips have been counted, including skipped ones."""
    waited_s: float = 0.0
    """Time for which the model waited for clips to arrive, and for finished ones to be released."""
    earlier_s: float = 0.0
    """Time spent on this phase before the training was resumed."""

    def __post_init__(self) -> None:
        self._started = self.clock()
        self._launched: tuple[LaunchedStep, int] | None = None

    @classmethod
    def of(cls, sums: dict[str, float], clock: Clock) -> Meter:
        """Return a meter that continues from the `sums` of an earlier one."""
        return cls(
            clock,
            loss_sum=sums.get("loss_sum", 0.0),
            correct=round(sums.get("correct", 0)),
            clips=round(sums.get("clips", 0)),
            place=round(sums.get("place", 0)),
            waited_s=sums.get("waited_s", 0.0),
            earlier_s=sums.get("seconds", 0.0),
        )

    def add(self, result: StepResult | LaunchedStep, place: int) -> None:
        """Count one batch, which ends at `place`. A launched batch is counted when the next one comes. Raises
        `Diverged`."""
        self.settle()
        if isinstance(result, LaunchedStep):
            self._launched = result, place
        else:
            self._count(result, place)

    def pass_over(self, place: int) -> None:
        """Skip a batch that ends at `place`, because all of its clips were skipped. Raises `Diverged`."""
        self.settle()
        self.place = place

    def settle(self) -> None:
        """Wait for the last batch, and count it. All ranks do so at the same points. Raises `Diverged`."""
        launched, self._launched = self._launched, None
        if launched is not None:
            step, place = launched
            self._count(step.result(), place)

    def _count(self, result: StepResult, place: int) -> None:
        self.loss_sum += result.loss * result.clips
        self.correct += result.correct
        self.clips += result.clips
        self.place = place

    def leave_out(self, seconds: float) -> None:
        """Exclude a pause from the time of the phase."""
        self._started += seconds

    @property
    def seconds(self) -> float:
        """Time spent on the phase."""
        return self.earlier_s + self.clock() - self._started

    @property
    def loss(self) -> float:
        """Mean over the clips so far."""
        return self.loss_sum / self.clips if self.clips else math.nan

    @property
    def top1(self) -> float:
        """Share of the clips so far that were classified correctly."""
        return self.correct / self.clips if self.clips else math.nan

    @property
    def data_wait_ratio(self) -> float:
        """Share of the time for which the model waited for clips to arrive and to be released."""
        return min(1.0, self.waited_s / self.seconds) if self.seconds > 0 else 0.0

    @property
    def clips_per_s(self) -> float:
        """Speed over the whole phase so far."""
        return self.clips / self.seconds if self.seconds > 0 else 0.0

    def sums(self) -> dict[str, float]:
        """Return the input of `of`."""
        return {
            "loss_sum": self.loss_sum,
            "correct": float(self.correct),
            "clips": float(self.clips),
            "place": float(self.place),
            "waited_s": self.waited_s,
            "seconds": self.seconds,
        }

    def pace(self) -> dict[str, float]:
        """Return the metrics that every kind of phase has."""
        return {
            "clips": float(self.clips),
            "seconds": self.seconds,
            "clips_per_s": self.clips_per_s,
            "data_wait_ratio": self.data_wait_ratio,
        }
