"""Reports of a trainer to the master: live metrics, the metrics of each phase, checkpoints, and failures."""

from __future__ import annotations

import math
from contextlib import suppress

from essp_common import topics
from essp_common.artifacts.early_stop import EarlyStop
from essp_common.artifacts.manifest import TakenChange
from essp_common.bus.port import Bus
from essp_common.errors import TransientError
from essp_common.failures import kind_of, reason_of, shortened
from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import (
    TRAINER,
    CheckpointReady,
    ClipRef,
    Failed,
    Fit,
    PhasePlan,
    PhaseReport,
    Progress,
    StepReport,
    StoppedEarly,
    Trouble,
)
from essp_engine.encoders.fitting import Tell
from essp_trainer.assignment import Assignment
from essp_trainer.model.meter import Clock, Meter


class Reporter:
    """Publishes one trainer's progress."""

    def __init__(self, bus: Bus, assignment: Assignment, worker: str, interval_s: float, clock: Clock) -> None:
        self._bus = bus
        self._assignment = assignment
        self._worker = worker
        self._interval_s = interval_s
        self.clock = clock
        self._last_s = -math.inf

    def step(
        self,
        plan: PhasePlan,
        meter: Meter,
        queue: int,
        last: bool = False,
        fit: Fit | None = None,
        lr: float | None = None,
    ) -> None:
        """Report live metrics, unless the last report is more recent than the interval.

        `last`: the last report of the phase, however recent the one before it. `fit`: the fit under way at the end of
        the phase. `lr`: the learning rate of the newest batch, in a training phase. A report that cannot be sent is
        dropped: the next one has the same information, and an outage of the bus must not end the training.
        """
        if not last and self.clock() - self._last_s < self._interval_s:
            return
        self._last_s = self.clock()
        report = StepReport(
            trainer=self._assignment.trainer,
            purpose=plan.purpose,
            epoch=plan.epoch,
            clips_done=meter.place,
            loss=meter.loss if meter.clips else 0.0,
            top1=meter.top1 if meter.clips else 0.0,
            data_wait_ratio=meter.data_wait_ratio,
            clips_per_s=meter.clips_per_s,
            queue=queue,
            fit=fit,
            lr=lr,
        )
        with suppress(TransientError):
            self._publish(Progress(step=report))

    def fit(self, plan: PhasePlan, meter: Meter, clock: Clock) -> Tell:
        """Return a callback for the progress of a fit at the end of a phase; it reports at the intervals of `step`.
        `clock`: excludes the time for which the fit was paused."""
        begun: dict[str, float] = {}

        def tell(what: str, done: int, most: int) -> None:
            now = clock()
            gone_s = now - begun.setdefault(what, now)
            left_s = gone_s * (most - done) / done if done else 0.0
            self.step(plan, meter, 0, fit=Fit(what=what, done=done, most=most, left_s=left_s))

        return tell

    def phase_over(self, plan: PhasePlan, metrics: dict[str, float]) -> None:
        """Report the metrics of a finished phase."""
        report = PhaseReport(
            job=self._assignment.job,
            purpose=plan.purpose,
            epoch=plan.epoch,
            trainer=self._assignment.trainer,
            metrics=metrics,
        )
        self._publish(Progress(phase_report=report))
        self._bus.flush()

    def checkpoint(self, ready: CheckpointReady) -> None:
        """Report a durable checkpoint, or that the training continues from one."""
        self._publish(Progress(checkpoint=ready))
        self._bus.flush()

    def stopped(self, position: Position, stop: EarlyStop) -> None:
        """Report that this training has stopped early: it wants nothing from `position` to the end of all epochs."""
        stopped = StoppedEarly(
            trainer=self._assignment.trainer, position=position.message(), epoch=stop.epoch, best=stop.best
        )
        self._publish(Progress(stopped=stopped))
        self._bus.flush()

    def change_taken(self, change: TakenChange) -> None:
        """Report the position from which the training applies a change of the job."""
        self._publish(Progress(change_taken=change.message(self._assignment.trainer)))
        self._bus.flush()

    def trouble(self, reason: str, unsaved: bool = False) -> None:
        """Report a problem that does not stop the training."""
        trouble = Trouble(trainer=self._assignment.trainer, reason=shortened(reason), unsaved=unsaved)
        self._publish(Progress(trouble=trouble))

    def failed(self, error: Exception) -> None:
        """Report that this training cannot continue."""
        clip = ClipRef(job=self._assignment.job)
        stream = self._assignment.training.stream
        failed = Failed(clip=clip, stage=TRAINER, reason=reason_of(error), kind=kind_of(error), stream=stream)
        self._publish(Progress(failed=failed))
        self._bus.flush()

    def _publish(self, progress: Progress) -> None:
        progress.job = self._assignment.job
        progress.worker = self._worker
        progress.fence = self._assignment.fence
        self._bus.publish(topics.PROGRESS, self._assignment.job.encode(), progress.SerializeToString())
