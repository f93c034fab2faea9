"""What a trainer tells the master: live numbers, the figures of each phase, checkpoints, and why it gave up."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from essp_common import topics
from essp_common.artifacts.checkpoint import Manifest
from essp_common.bus.port import Bus
from essp_common.errors import EsspError, PermanentError
from essp_common.pb.v1.messages_pb2 import (
    CheckpointReady,
    ClipRef,
    Failed,
    PhasePlan,
    PhaseReport,
    Progress,
    StepReport,
    Trouble,
)
from essp_trainer.assignment import Assignment
from essp_trainer.model.training import StepResult

Clock = Callable[[], float]


@dataclass
class Meter:
    """The running figures of one phase. `sums` can be saved and given back, so a resumed phase reports all of it."""

    clock: Clock = time.monotonic
    loss_sum: float = 0.0
    correct: int = 0
    clips: int = 0
    waited_s: float = 0.0
    """Time in which the model had nothing to do."""
    earlier_s: float = 0.0
    """Time spent on this phase before this meter was made."""

    def __post_init__(self) -> None:
        self._started = self.clock()

    @classmethod
    def of(cls, sums: dict[str, float], clock: Clock) -> Meter:
        """A meter that goes on from what `sums` of an earlier one gave."""
        return cls(
            clock,
            loss_sum=sums.get("loss_sum", 0.0),
            correct=round(sums.get("correct", 0)),
            clips=round(sums.get("clips", 0)),
            waited_s=sums.get("waited_s", 0.0),
            earlier_s=sums.get("seconds", 0.0),
        )

    def add(self, result: StepResult) -> None:
        """Count one batch."""
        self.loss_sum += result.loss * result.clips
        self.correct += result.correct
        self.clips += result.clips

    def leave_out(self, seconds: float) -> None:
        """This time was a pause: it counts neither as work nor as waiting."""
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
        """Share of the clips so far that were right."""
        return self.correct / self.clips if self.clips else math.nan

    @property
    def data_wait_ratio(self) -> float:
        """Share of the time spent waiting for clips."""
        return min(1.0, self.waited_s / self.seconds) if self.seconds > 0 else 0.0

    @property
    def clips_per_s(self) -> float:
        """Over the whole phase so far."""
        return self.clips / self.seconds if self.seconds > 0 else 0.0

    def sums(self) -> dict[str, float]:
        """What `of` takes."""
        return {
            "loss_sum": self.loss_sum,
            "correct": float(self.correct),
            "clips": float(self.clips),
            "waited_s": self.waited_s,
            "seconds": self.seconds,
        }

    def pace(self) -> dict[str, float]:
        """The figures of any pass."""
        return {
            "clips": float(self.clips),
            "seconds": self.seconds,
            "clips_per_s": self.clips_per_s,
            "data_wait_ratio": self.data_wait_ratio,
        }


class Reporter:
    """Publishes one trainer's progress."""

    def __init__(self, bus: Bus, assignment: Assignment, worker: str, interval_s: float, clock: Clock) -> None:
        self._bus = bus
        self._assignment = assignment
        self._worker = worker
        self._interval_s = interval_s
        self.clock = clock
        self._last_s = -math.inf

    def step(self, plan: PhasePlan, meter: Meter, clips_done: int, queue: int) -> None:
        """Live numbers; dropped when the last were sent less than the interval ago."""
        if self.clock() - self._last_s < self._interval_s:
            return
        self._last_s = self.clock()
        report = StepReport(
            trainer=self._assignment.trainer,
            purpose=plan.purpose,
            epoch=plan.epoch,
            clips_done=clips_done,
            loss=meter.loss if meter.clips else 0.0,
            top1=meter.top1 if meter.clips else 0.0,
            data_wait_ratio=meter.data_wait_ratio,
            clips_per_s=meter.clips_per_s,
            queue=queue,
        )
        self._publish(Progress(step=report))

    def phase_over(self, plan: PhasePlan, metrics: dict[str, float]) -> None:
        """The figures of a finished pass."""
        report = PhaseReport(
            job=self._assignment.job,
            purpose=plan.purpose,
            epoch=plan.epoch,
            trainer=self._assignment.trainer,
            metrics=metrics,
        )
        self._publish(Progress(phase_report=report))
        self._bus.flush()

    def checkpoint(self, manifest: Manifest, uri: str, scores_uri: str) -> None:
        """A checkpoint is durable."""
        ready = CheckpointReady(
            job=self._assignment.job,
            trainer=self._assignment.trainer,
            uri=uri,
            epoch=manifest.epoch,
            final=manifest.final,
            scores_uri=scores_uri,
            position=manifest.position.message(),
            step=manifest.step,
            digest=manifest.digest,
        )
        self._publish(Progress(checkpoint=ready))
        self._bus.flush()

    def trouble(self, reason: str) -> None:
        """Something went wrong, and the training goes on."""
        self._publish(Progress(trouble=Trouble(trainer=self._assignment.trainer, reason=reason)))

    def failed(self, error: Exception) -> None:
        """This training cannot go on."""
        kind = error.kind if isinstance(error, PermanentError) else "error"
        reason = str(error) if isinstance(error, EsspError) else f"{type(error).__name__}: {error}"
        clip = ClipRef(job=self._assignment.job)
        failed = Failed(clip=clip, stage="trainer", reason=reason, kind=kind, stream=self._assignment.training.stream)
        self._publish(Progress(failed=failed))
        self._bus.flush()

    def _publish(self, progress: Progress) -> None:
        progress.job = self._assignment.job
        progress.worker = self._worker
        progress.fence = self._assignment.fence
        self._bus.publish(topics.PROGRESS, self._assignment.job.encode(), progress.SerializeToString())
