"""What users learn about a job while it runs: an event for everything worth a line, and failures counted by kind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from essp_common.artifacts.early_stop import EarlyStop
from essp_common.failures import kind_word, stage_word
from essp_common.job import status
from essp_common.job.changes import Place, gains, in_words, values_of
from essp_common.job.position import Position
from essp_common.job.spec import JobSpec
from essp_common.job.status import phase_title, purpose_name
from essp_common.pb.v1.messages_pb2 import (
    Change,
    ChangeTaken,
    Failed,
    FailureKind,
    FailureTally,
    HistorySegment,
    Loop,
    Progress,
    Purpose,
    Stage,
)
from essp_common.quantities import counted
from essp_common.runtime import ids
from essp_common.runtime.conditions import Condition, Subject
from essp_common.runtime.troubles import Kind
from essp_engine.planning.phases import Phases
from essp_engine.seeding.instructions import CompleteJob, FinishPhase, Instruction
from essp_master.job.events import EventLog
from essp_master.job.handshake import workers_of

_EXAMPLES = 3


class EventReporter:
    """Writes the events of one job."""

    def __init__(self, job: str, phases: Phases, log: EventLog) -> None:
        self._job = job
        self._phases = phases
        self.log = log
        self.failures: dict[tuple[Stage, FailureKind], FailureTally] = {}
        """By stage and kind."""
        self.result: status.ResultStatus | None = None
        self._loops: dict[str, Position] = {}
        """The loops that take part and have an event that says so."""
        self._told: dict[Subject, Condition] = {}
        """The present conditions that have an event."""

    def entered(self, state: status.JobState, reason: str) -> None:
        """The job has entered another state."""
        self.log.add("state", f"job {self._job}: {state}" + (f": {reason}" if reason else ""), {"state": state})

    def queued(self, place: status.QueueStatus) -> None:
        """The job waits for others."""
        message = f"job {self._job}: number {place.position} in the queue: {place.reason}"
        self.log.add("state", message, {"state": status.JobState.QUEUED, "position": place.position})

    def awaits(self, pools: Sequence[str]) -> None:
        """The job waits for workers before it begins."""
        message = f"job {self._job}: waits for {workers_of(pools)}; it begins when each is up"
        self.log.add("state", message, {"state": status.JobState.RUNNING, "awaits": list(pools)})

    def begins(self, awaited: Sequence[str], lacking: Sequence[str]) -> None:
        """The job begins after it waited for workers. `lacking`: pools that still have no worker."""
        if lacking:
            message = f"job {self._job}: begins without {workers_of(lacking)}: none came in time"
            self.log.add("warning", message, {"awaits": list(lacking)})
        elif awaited:
            message = f"job {self._job}: begins, as workers of all pools are up"
            self.log.add("state", message, {"state": status.JobState.RUNNING, "awaits": []})

    def prioritised(self, priority: int, before: int) -> None:
        """Someone has changed the job's priority."""
        self.log.add("state", f"job {self._job}: priority {priority} instead of {before}", {"priority": priority})

    def changed(self, change: Change) -> None:
        """Someone has changed the job."""
        message = f"job {self._job}: change {change.number}: {in_words(change)}"
        self.log.add("change", message, {"number": change.number, "fields": values_of(change)})

    def extended(self, before: JobSpec, after: JobSpec) -> None:
        """The job will get more epochs or trainers."""
        message = f"job {self._job}: gets {gains(before, after)} as soon as its trainers have saved"
        self.log.add("change", message, _gained(before, after))

    def renewed(self, before: JobSpec, after: JobSpec) -> None:
        """The job continues with more epochs or trainers."""
        self.log.add("change", f"job {self._job}: has {gains(before, after)}", _gained(before, after))

    def change_taken(self, change: Change, taken: ChangeTaken) -> None:
        """A trainer has applied a change."""
        place = Place.of(taken.place)
        message = f"{taken.trainer}: change {change.number} counts from {place} on: {in_words(change, taken.trainer)}"
        data = {"trainer": taken.trainer, "number": change.number, "epoch": place.epoch, "clip": place.clip}
        self.log.add("change", message, data)

    def too_late(self, changes: Iterable[Change]) -> None:
        """The streams were fused before the aggregator knew these changes."""
        for change in changes:
            message = f"change {change.number} came too late: the streams were fused without {in_words(change)}"
            self.log.add("warning", message, {"number": change.number})

    def warn(self, warnings: Iterable[str]) -> None:
        """Report the warnings of the preflight."""
        for warning in warnings:
            self.log.add("warning", warning, {})

    def taken_over(self, segment: HistorySegment, fence: int) -> None:
        """This master continues another master's run, whose failures count as well."""
        self.failures = {(tally.stage, tally.kind): tally for tally in segment.failures}
        message = f"taken over from {segment.writer}, where its segment {segment.last} says"
        self.log.add("state", message, {"segment": segment.last, "fence": fence})

    def stalled(self, units: int) -> None:
        """Nothing was reported for a long time."""
        self.log.add(
            "warning", f"nothing was reported for long; {counted(units, 'work unit')} issued again", {"units": units}
        )

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The present conditions of pools, of the master, and of this job's trainers."""
        return tuple(self._told.values())

    @property
    def paused(self) -> tuple[Condition, ...]:
        """The pools that are paused."""
        return tuple(it for it in self._told.values() if it.kind is Kind.PAUSED)

    def hindered(self, present: Iterable[Condition]) -> None:
        """Update the present conditions: add an event for each new one and for each that is over."""
        found = {(it.kind, it.subject): it for it in present if self._concerns(it)}
        for key, begun in found.items():
            if key not in self._told:
                self.log.add("condition", begun.line, begun.model_dump(mode="json") | {"over": False})
        for key, over in self._told.items():
            if key not in found:
                data = over.model_dump(mode="json") | {"over": True}
                self.log.add("condition", f"{over.subject}: {over.kind} is over", data)
        self._told = found

    def _concerns(self, condition: Condition) -> bool:
        """Whether a condition concerns this job: not if it belongs to another job's trainers, or to a trainer without a
        job."""
        subject = condition.subject
        return not ids.is_training(subject) or subject.startswith(ids.trainer_pool(self._job, ""))

    def lost_sight(self, consumer: str, patience_s: float) -> None:
        """A loop has given no sign of life."""
        message = f"{consumer}: no sign of life for {patience_s:.0f} s; the job continues without it until it is back"
        self.log.add("warning", message, {"consumer": consumer})

    def rescored(self, worker: str, clips: int) -> None:
        """A predictor has left before it had saved the scores of these clips."""
        again = f"{counted(clips, 'clip')} {'is' if clips == 1 else 'are'} made again, whose scores it had not saved"
        self.log.add("warning", f"predictor {worker} left: {again}", {"worker": worker, "clips": clips})

    def loops(self, present: Iterable[Loop]) -> None:
        """Update the loops that take part: add an event for each that has come or left."""
        found = {loop.consumer: Position.of(loop.position) for loop in present}
        for consumer, start in found.items():
            if self._loops.get(consumer) != start:
                where = self._where(start)
                self.log.add(
                    "consumer", f"{consumer}: takes part from {where} on", {"consumer": consumer, "left": False}
                )
        for consumer in self._loops:
            if consumer not in found:
                self.log.add("consumer", f"{consumer}: has left", {"consumer": consumer, "left": True})
        self._loops = found

    def _where(self, position: Position) -> str:
        if position.phase_index >= len(self._phases.order):
            return "the end"
        purpose, epoch = self._phases.order[position.phase_index]
        return f"clip {position.index} of {phase_title(self._name(purpose), epoch)}"

    def _name(self, purpose: Purpose) -> status.PurposeName:
        return purpose_name(purpose, self._phases.spec.kind)

    def failed(self, failed: Failed) -> None:
        """A clip could not be produced. Only the first few videos of each kind get an event."""
        tally = self.failures.setdefault(
            (failed.stage, failed.kind), FailureTally(stage=failed.stage, kind=failed.kind)
        )
        tally.count += 1
        video = failed.clip.video_id
        if video in tally.examples or len(tally.examples) >= _EXAMPLES:
            return
        tally.examples[video] = failed.reason
        stage = stage_word(failed.stage)
        data = {"stage": stage, "kind": kind_word(failed.kind), "video": video, "reason": failed.reason}
        self.log.add("failure", f"{stage}: {video}: {failed.reason}", data)

    def progressed(self, progress: Progress) -> None:
        """Add an event if a trainer has finished a phase, saved, resumed, stopped early, or reported trouble."""
        match progress.WhichOneof("event"):
            case "phase_report":
                report = progress.phase_report
                purpose, metrics = purpose_name(report.purpose), dict(report.metrics)
                figures = ", ".join(f"{name} {value:.4g}" for name, value in sorted(metrics.items()))
                data = {"trainer": report.trainer, "purpose": purpose, "epoch": report.epoch, "metrics": metrics}
                self.log.add("report", f"{report.trainer}: {phase_title(purpose, report.epoch)}: {figures}", data)
            case "stopped":
                stopped = progress.stopped
                data = {"consumer": ids.trainer_consumer(stopped.trainer), "epoch": stopped.epoch, "best": stopped.best}
                words = EarlyStop(stopped.epoch, stopped.best).words
                self.log.add("consumer", f"{stopped.trainer}: {words}", data)
            case "trouble":
                trouble = progress.trouble
                self.log.add("warning", f"{trouble.trainer}: {trouble.reason}", {"trainer": trouble.trainer})
            case "checkpoint" if progress.checkpoint.resumed:
                trainer, step = progress.checkpoint.trainer, progress.checkpoint.step
                data = {"trainer": trainer, "step": step}
                self.log.add("checkpoint", f"{trainer} resumes from its checkpoint after {step} clips", data)
            case "checkpoint":
                checkpoint = progress.checkpoint
                what = "final checkpoint" if checkpoint.final else "checkpoint"
                data = {"trainer": checkpoint.trainer, "uri": checkpoint.uri, "final": checkpoint.final}
                self.log.add("checkpoint", f"{checkpoint.trainer}: {what} {checkpoint.uri}", data)

    def instructed(self, out: Sequence[Instruction]) -> None:
        """Add events for those decisions of the ledger that matter to users."""
        for instruction in out:
            match instruction:
                case FinishPhase(phase_index):
                    purpose, epoch = self._phases.order[phase_index]
                    name = self._name(purpose)
                    self.log.add("phase", f"{phase_title(name, epoch)}: over", {"purpose": name, "epoch": epoch})
                case CompleteJob(uri, metrics):
                    self.result = status.ResultStatus(uri=uri, metrics=dict(metrics))
                    self.log.add("finished", f"made {uri}", {"uri": uri, "metrics": dict(metrics)})


def _gained(before: JobSpec, after: JobSpec) -> dict[str, Any]:
    """What a job gains with its next run, for programs."""
    trainers = [name for name in after.trainers if name not in before.trainers]
    return {"epochs": after.epochs, "before": before.epochs, "trainers": trainers}
