"""One job as the master holds it: its ledger, its state, and what people are told of it.

Pure but for the event log: time is passed in, messages are given back as instructions for the shell to carry out. Not
thread-safe; `service.py` guards it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from essp_common.pb.v1.messages_pb2 import Control, Failed, Progress
from services.master import lifecycle, status
from services.master.activity import Activity, Rate, purpose_name
from services.master.events import EventLog
from services.master.instructions import CompleteJob, FailJob, FinishPass, Instruction
from services.master.launch import Launch
from services.master.seeds import SeedWriter
from services.master.status import JobState

_EXAMPLES = 3


@dataclass
class FailureTally:
    """Failures of one kind."""

    count: int = 0
    examples: dict[str, str] = field(default_factory=dict)
    """Video -> reason."""


class Job:
    """A job that was started."""

    def __init__(self, launch: Launch, since: int, now_s: float, events: EventLog) -> None:
        """`since`: the oldest fence whose messages are about this run of the job."""
        spec = launch.spec
        self.launch = launch
        self.name = spec.name
        self.fence = launch.fence
        self.ledger = launch.ledger
        self.seeds = SeedWriter(spec, launch.passes, launch.fence)
        self.state = JobState.PENDING
        self.reason = ""
        self.result: status.ResultStatus | None = None
        self.created = datetime.now(UTC)
        self.ended: datetime | None = None
        self.log = events
        self.activity = Activity(
            {name: stream.feature for name, stream in spec.streams.items()},
            {name: trainer.stream for name, trainer in spec.trainers.items()},
        )
        self.failures: dict[tuple[str, str], FailureTally] = {}
        self.pace = Rate()
        self.heard_s = now_s
        """When the last message of the job came."""
        self.silences = 0
        """How often in a row nothing was heard for long."""
        self.leftovers = False
        """The job has ended, and somebody stored bytes for it since."""
        self._since = since
        self._worked_s = 0.0
        self._resumed_s: float | None = None
        self._recall()

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
        self.log.add("state", f"job {self.name}: {wanted}" + (f": {reason}" if reason else ""), {"state": wanted})
        return True

    def elapsed_s(self, now_s: float) -> float:
        """Time it was running."""
        return self._worked_s + (now_s - self._resumed_s if self._resumed_s is not None else 0.0)

    def control(self, command: Control.Command) -> Control:
        """The message that tells everybody."""
        return Control(
            job=self.name, fence=self.fence, command=command, snapshot=self.launch.snapshot, reason=self.reason
        )

    # --- what comes in ---

    def overtaken(self, progress: Progress) -> bool:
        """Another master has started this job after this one did."""
        return progress.fence > self.fence

    def handle(self, progress: Progress, now_s: float) -> Sequence[Instruction]:
        """Account for a message, and remember what people want to know of it."""
        if 0 < progress.fence < self._since:
            return ()
        self.heard_s, self.silences = now_s, 0
        kind = progress.WhichOneof("event")
        if self.state.ended:
            self.leftovers |= kind in ("decoded", "extracted")
            return ()
        self.activity.note(progress, now_s)
        before = self.ledger.closed, self.ledger.counts.failed
        out = self.ledger.handle(progress)
        if self.ledger.closed != before[0]:
            self.pace.add(self.ledger.closed - before[0], now_s)
        if self.ledger.counts.failed != before[1]:
            self._failure(progress.failed)
        elif kind in ("pass_report", "checkpoint", "trouble"):
            self._tell(progress)
        self._tell_outcome(out)
        return out

    def stalled(self, now_s: float) -> Sequence[Instruction]:
        """Nothing was heard for long."""
        self.heard_s = now_s
        self.silences += 1
        out = self.ledger.stalled()
        if out:
            self.log.add("warning", f"nothing heard for long; {len(out)} work units issued again", {"units": len(out)})
        return out

    # --- what is told ---

    def _recall(self) -> None:
        for name, manifest in self.launch.manifests.items():
            purposes = {value: value for value in status.PURPOSES.values()}
            reports = [
                status.PassReport(purpose=purposes[r.purpose], epoch=r.epoch, metrics=r.metrics)
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
        if progress.HasField("pass_report"):
            report = progress.pass_report
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
                case FinishPass(number):
                    purpose, epoch = self.launch.passes.order[number]
                    name = purpose_name(purpose)
                    self.log.add("pass", f"{name} {epoch} is over", {"purpose": name, "epoch": epoch})
                case CompleteJob(uri, metrics):
                    self.result = status.ResultStatus(uri=uri, metrics=dict(metrics))
                    self.log.add("finished", f"made {uri}", {"uri": uri, "metrics": dict(metrics)})
                case FailJob(reason):
                    self.reason = reason

    def causes(self) -> Counter[str]:
        """Failures by kind."""
        return Counter({f"{stage}.{kind}": tally.count for (stage, kind), tally in self.failures.items()})
