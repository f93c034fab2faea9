"""One job as the master holds it: its ledger, its state, and what people are told of it.

Pure but for the event log: time is passed in, messages are given back as instructions for the shell to carry out. Not
thread-safe; `service.py` guards it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from essp_common.errors import Fenced
from essp_common.job import lifecycle, status
from essp_common.job.status import PURPOSES, JobState
from essp_common.pb.v1.messages_pb2 import Control, Failed, HistorySegment, Progress
from essp_common.pb.v1.messages_pb2 import FailureTally as FailureMessage
from essp_master.effects.message_builder import MessageBuilder
from essp_master.job.activity import Activity, Rate, purpose_name
from essp_master.job.events import EventLog
from essp_master.job.preflight import Launch
from essp_master.job.recorder import Recorder
from essp_master.ledger.instructions import CompleteJob, FailJob, FinishPhase, Instruction

COMMANDS = {
    JobState.PAUSED: Control.PAUSE,
    JobState.RUNNING: Control.RESUME,
    JobState.STOPPED: Control.STOP,
    JobState.COMPLETED: Control.COMPLETE,
    JobState.FAILED: Control.FAIL,
}
"""How everybody is told of a state."""
_EXAMPLES = 3
_LONGEST_STALL_S = 3600.0
_LIVE = ("step", "heartbeat")
"""What is also said while nothing gets done: a trainer tells how long it has waited."""


@dataclass
class FailureTally:
    """Failures of one kind."""

    count: int = 0
    examples: dict[str, str] = field(default_factory=dict)
    """Video -> reason."""


class Job:
    """A job that was started."""

    def __init__(self, launch: Launch, now_s: float, events: EventLog) -> None:
        spec = launch.spec
        self.launch = launch
        self.name = spec.name
        self.fence = launch.fence
        self.ledger = launch.ledger
        self.recorder = Recorder(
            launch.ledger, {(p.purpose, p.epoch): n for n, p in enumerate(launch.phases.plans)}, launch.fence
        )
        self.seeds = MessageBuilder(spec, launch.phases, launch.fence)
        self.state = JobState.PENDING
        self.reason = ""
        self.result: status.ResultStatus | None = None
        self.created = datetime.now(UTC)
        self.ended: datetime | None = None
        self.log = events
        self.activity = Activity(
            {name: stream.feature for name, stream in spec.streams.items()},
            {name: (trainer.stream, trainer.model) for name, trainer in spec.trainers.items()},
        )
        self.failures: dict[tuple[str, str], FailureTally] = {}
        self.pace = Rate()
        self.heard_s = now_s
        """When the last message came that something was done for the job."""
        self.silences = 0
        """How often in a row nothing was heard for long."""
        self.leftovers = False
        """The job has ended, and somebody stored bytes for it since."""
        self.urgent = False
        """What is noted is to be written soon."""
        self.overtaken = False
        """It is another master's now."""
        self._last = launch.last
        self._since = launch.since
        self._unheard = launch.continued is not None
        """The messages that the master before this one left unaccounted for are still to come."""
        self._made_again = launch.continued is None
        """What its work units would have made, and nobody made, was issued again."""
        self._worked_s = 0.0
        self._resumed_s: float | None = None
        self._recall()
        if launch.continued is None:
            self.recorder.started(launch.snapshot, launch.start, _now_ms())
        else:
            self._continue(launch.continued)

    # --- its state ---

    def enter(self, wanted: JobState, now_s: float, reason: str = "") -> bool:
        """Go to another state; False: it is there already. Raises `Conflict`."""
        if not lifecycle.change(self.name, self.state, wanted):
            return False
        if self._resumed_s is not None:
            self._worked_s += now_s - self._resumed_s
        self._resumed_s = now_s if wanted is JobState.RUNNING else None
        self.state, self.reason = wanted, reason
        if wanted.ended:
            self.ended = datetime.now(UTC)
            self.ledger.ended = True
        self.heard_s = now_s
        self.recorder.entered(wanted, reason, _now_ms())
        self.urgent = True
        self.log.add("state", f"job {self.name}: {wanted}" + (f": {reason}" if reason else ""), {"state": wanted})
        return True

    def let_go(self, fence: int, now_s: float) -> Fenced | None:
        """Another master has the job, if this fence is higher: leave it to that one, and say so."""
        if fence <= self.fence or self.state.ended:
            return None
        self.enter(JobState.STOPPED, now_s, "another master has taken the job over")
        self.overtaken = True
        return Fenced(
            f"another master has taken job {self.name} over (its fence is {fence}, this one's {self.fence}); "
            "only one master may run on a bus, so this one leaves",
            fence,
        )

    def elapsed_s(self, now_s: float) -> float:
        """Time it was running."""
        return self._worked_s + (now_s - self._resumed_s if self._resumed_s is not None else 0.0)

    def control(self, command: Control.Command) -> Control:
        """The message that tells everybody."""
        return Control(
            job=self.name,
            fence=self.fence,
            command=command,
            snapshot=self.launch.snapshot,
            reason=self.reason,
            since=self._since,
        )

    def mark(self) -> Progress:
        """The message (of no event) that tells this master, once it comes back, that it has read all before it."""
        return Progress(job=self.name, worker="master", fence=self.fence)

    # --- what is due to be done ---

    def start(self) -> Sequence[Instruction]:
        """Begin to issue, or go on."""
        return self._instructed(self.ledger.start())

    def pause(self) -> None:
        """Issue nothing until `resume`."""
        self.ledger.pause()

    def resume(self) -> Sequence[Instruction]:
        """Issue again."""
        return self._instructed([*self.ledger.resume(), *self._make_again()])

    def _make_again(self) -> Sequence[Instruction]:
        """Once what was left has been heard: decoders drop the work units of the master before this one."""
        if self._unheard or self._made_again or self.state is not JobState.RUNNING:
            return ()
        self._made_again = True
        return self.ledger.stalled()

    def _instructed(self, out: Sequence[Instruction]) -> Sequence[Instruction]:
        self.recorder.instructed(out)
        return out

    # --- what comes in ---

    def handle(self, progress: Progress, now_s: float) -> Sequence[Instruction]:
        """Account for a message, and remember what people want to know of it."""
        if 0 < progress.fence < self._since or progress.fence > self.fence:
            return ()
        kind = progress.WhichOneof("event")
        if kind not in _LIVE:
            self.heard_s, self.silences = now_s, 0
        if kind is None:
            return self._heard_all() if progress.fence == self.fence else ()
        if self.state.ended:
            self.leftovers |= kind == "made"
            self.recorder.afterwards(progress)
            return ()
        if kind in ("step", "phase_report") and getattr(progress, kind).purpose not in PURPOSES:
            return ()  # of a trainer of another version
        self.activity.note(progress, now_s)
        before = self.ledger.closed, self.ledger.counts.failed
        out = self.recorder.handle(progress)
        if self.ledger.closed != before[0]:
            self.pace.add(self.ledger.closed - before[0], now_s)
        if self.ledger.counts.failed != before[1]:
            self._failure(progress.failed)
        elif kind in ("phase_report", "checkpoint", "trouble"):
            self._tell(progress)
        if out:
            self._tell_outcome(out)
        return out

    def issue(self) -> Sequence[Instruction]:
        """What can be issued after the messages that came."""
        return self.recorder.issue()

    def _heard_all(self) -> Sequence[Instruction]:
        self._unheard = False
        return self._instructed(self._make_again())

    def silent(self, now_s: float, stall_s: float) -> bool:
        """Nothing was heard for long, the longer the more often that was so before."""
        patience_s = min(stall_s * 2**self.silences, _LONGEST_STALL_S)
        return self.state is JobState.RUNNING and self.ledger.outstanding > 0 and now_s - self.heard_s >= patience_s

    def stalled(self, now_s: float) -> Sequence[Instruction]:
        """Nothing was heard for long."""
        self.heard_s = now_s
        self.silences += 1
        out = self._instructed(self.ledger.stalled())
        if out:
            self.log.add("warning", f"nothing heard for long; {len(out)} work units issued again", {"units": len(out)})
        return out

    # --- its history ---

    def swept(self, stray_keys: int) -> None:
        """The cache was looked through after its end, and what was found freed; until nothing is found any more."""
        self.leftovers |= stray_keys > 0
        self.recorder.swept(stray_keys, _now_ms())

    def segment(self, writer: str, now_s: float) -> HistorySegment:
        """What was noted since the last one, and where the job stands now."""
        self._last += 1
        self.urgent = False
        return HistorySegment(
            first=self._last,
            last=self._last,
            fence=self.fence,
            since=self._since,
            writer=writer,
            entries=self.recorder.take(_now_ms()),
            ledger=self.ledger.state(),
            state=self.state,
            created_ms=round(self.created.timestamp() * 1000),
            worked_s=self.elapsed_s(now_s),
            failures=[
                FailureMessage(stage=stage, kind=kind, count=tally.count, examples=tally.examples)
                for (stage, kind), tally in self.failures.items()
            ],
        )

    def _continue(self, segment: HistorySegment) -> None:
        """Be as the job of the master before this one was."""
        self.created = datetime.fromtimestamp(segment.created_ms / 1000, UTC)
        self._worked_s = segment.worked_s
        self.failures = {(f.stage, f.kind): FailureTally(f.count, dict(f.examples)) for f in segment.failures}
        self.recorder.taken_over(_now_ms())
        told = f"taken over from {segment.writer}, where its segment {segment.last} says"
        self.log.add("state", told, {"segment": segment.last, "fence": self.fence})

    # --- what is told ---

    def _recall(self) -> None:
        for name, manifest in self.launch.manifests.items():
            purposes = {value: value for value in status.PURPOSES.values()}
            reports = [
                status.PhaseReport(purpose=purposes[r.purpose], epoch=r.epoch, metrics=r.metrics)
                for r in manifest.history
                if r.purpose in purposes
            ]
            self.activity.recall(name, reports, manifest.key)
            self.log.add(
                "checkpoint",
                f"{name} goes on from its checkpoint of {manifest.step} clips",
                {"trainer": name, "step": manifest.step},
            )
        for warning in self.launch.warnings:
            self.log.add("warning", warning, {})

    def _failure(self, failed: Failed) -> None:
        tally = self.failures.setdefault((failed.stage, failed.kind), FailureTally())
        tally.count += 1
        video = failed.clip.video_id
        if video in tally.examples or len(tally.examples) >= _EXAMPLES:
            return
        tally.examples[video] = failed.reason
        data = {"stage": failed.stage, "kind": failed.kind, "video": video, "reason": failed.reason}
        self.log.add("failure", f"{failed.stage}: {video}: {failed.reason}", data)

    def _tell(self, progress: Progress) -> None:
        if progress.HasField("phase_report"):
            report = progress.phase_report
            purpose, metrics = purpose_name(report.purpose), dict(report.metrics)
            figures = ", ".join(f"{name} {value:.4g}" for name, value in sorted(metrics.items()))
            data = {"trainer": report.trainer, "purpose": purpose, "epoch": report.epoch, "metrics": metrics}
            self.log.add("report", f"{report.trainer}: {purpose} {report.epoch}: {figures}", data)
        elif progress.HasField("trouble"):
            trouble = progress.trouble
            self.log.add("warning", f"{trouble.trainer}: {trouble.reason}", {"trainer": trouble.trainer})
        else:
            checkpoint = progress.checkpoint
            what = "final checkpoint" if checkpoint.final else "checkpoint"
            data = {"trainer": checkpoint.trainer, "uri": checkpoint.uri, "final": checkpoint.final}
            self.log.add("checkpoint", f"{checkpoint.trainer}: {what} {checkpoint.uri}", data)

    def _tell_outcome(self, out: Sequence[Instruction]) -> None:
        for instruction in out:
            match instruction:
                case FinishPhase(number):
                    purpose, epoch = self.launch.phases.order[number]
                    name = purpose_name(purpose)
                    self.log.add("phase", f"{name} {epoch} is over", {"purpose": name, "epoch": epoch})
                case CompleteJob(uri, metrics):
                    self.result = status.ResultStatus(uri=uri, metrics=dict(metrics))
                    self.log.add("finished", f"made {uri}", {"uri": uri, "metrics": dict(metrics)})
                case FailJob(reason):
                    self.reason = reason


def _now_ms() -> int:
    return round(datetime.now(UTC).timestamp() * 1000)
