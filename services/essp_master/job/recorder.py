"""The only writer of a job's ledger, which notes every change for the history (`essp_common/artifacts/history.py`).

Because only the recorder changes the ledger, nothing happens to a clip that is missing from the history, and sums over
the history equal the ledger's own figures. Duplicates and late messages change nothing and leave no trace.

Pure: time is passed in. Noting a fact is O(1): facts are collected in sets of indices until something happens whose
order matters (a state, a checkpoint, or the same thing to the same clip again).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from essp_common.artifacts.history import runs_of
from essp_common.job.position import Position
from essp_common.job.status import JobState
from essp_common.pb.v1.messages_pb2 import (
    Change,
    ChangeTaken,
    CheckpointReady,
    ClipFailure,
    HistoryEntry,
    HistorySegment,
    PhaseEvents,
    Progress,
    Runs,
    RunStart,
    Trained,
    TrainedAttempt,
)
from essp_engine.seeding.instructions import Instruction, IssueUnits, PublishSkip, ReleaseClip
from essp_master.job.run import Run

_Fact = tuple[str, str]
"""What happened (a field of `PhaseEvents`), and the stream or consumer that it happened for, if any."""


class Recorder:
    """Passes events to the ledger, and notes what they changed."""

    def __init__(self, run: Run) -> None:
        self.ledger = run.ledger
        """For reading; only this class changes it."""
        self._run = run
        self._phase_index = {(p.purpose, p.epoch): index for index, p in enumerate(run.preflight.phases.plans)}
        self._last = run.last
        self._entries: list[HistoryEntry] = []
        self._present = HistoryEntry()
        self._facts: dict[int, dict[_Fact, set[int]]] = defaultdict(lambda: defaultdict(set))
        self._peak_bytes = 0
        self.pending = False
        """Whether something was noted since the last segment."""
        self.urgent = False
        """Whether the job's state changed since the last segment, so that the next one should be written soon."""

    @property
    def last(self) -> int:
        """The number of the newest segment."""
        return self._last

    # --- changes of the ledger ---

    def start(self) -> list[Instruction]:
        """Begin to issue, or continue."""
        return self._instructed(self.ledger.start())

    def issue(self) -> list[Instruction]:
        """Return what the ledger issues after the messages that came."""
        return self._instructed(self.ledger.issue())

    def pause(self, finishes: bool = False) -> None:
        """Issue nothing until `resume`; with `finishes`, reissue only what was lost."""
        self.ledger.pause(finishes)

    def resume(self) -> list[Instruction]:
        """Issue again after a pause."""
        return self._instructed(self.ledger.resume())

    def issue_again(self) -> list[Instruction]:
        """Issue again what no worker has made."""
        return self._instructed(self.ledger.stalled())

    def issue_inherited(self) -> list[Instruction]:
        """Issue again what another master had issued and no worker has made."""
        return self._instructed(self.ledger.issue_inherited())

    def handle(self, progress: Progress) -> list[Instruction]:
        """Account for a message and return the ledger's instructions."""
        kind = progress.WhichOneof("event")
        had_stopped = kind == "stopped" and self.ledger.has_stopped(progress.stopped.trainer)
        out = self._handle_failed(progress) if kind == "failed" else self.ledger.account(progress)
        if kind == "stopped" and not had_stopped and self.ledger.has_stopped(progress.stopped.trainer):
            self._alone(HistoryEntry(stopped=progress.stopped))
        if kind == "checkpoint":
            self.checkpoint(progress.checkpoint)
        for phase_index, fact, name, indices in self.ledger.phase_events:
            self._note(phase_index, (fact, name), indices)
        if kind == "trained" and progress.trained.attempts:
            self._note_attempts(progress.trained)
        return self._instructed(out) if out else out

    def handle_late(self, progress: Progress) -> None:
        """Handle a message after the job's end: further work of trainers counts only for their checkpoints."""
        match progress.WhichOneof("event"):
            case "trained":
                phase_index = self._phase_index.get((progress.trained.purpose, progress.trained.epoch))
                if phase_index is not None:
                    for index, attempt in zip(progress.trained.indices, progress.trained.attempts, strict=False):
                        self._note_attempt(phase_index, index, progress.trained.consumer, attempt)
            case "checkpoint":
                self.checkpoint(progress.checkpoint)

    def _instructed(self, out: list[Instruction]) -> list[Instruction]:
        """Note the ledger's decisions, which will be carried out."""
        issued: dict[int, list[int]] = defaultdict(list)
        for instruction in out:
            # by far the most frequent; a match statement takes five times as long
            if isinstance(instruction, IssueUnits):
                phase_index, units, _ = instruction
                issued[phase_index] += [clip.index for unit in units for clip in unit]
                continue
            match instruction:
                case PublishSkip(phase_index, clip, streams):
                    for stream in streams:
                        self._note(phase_index, ("skipped", stream), [clip.index])
                case ReleaseClip(phase_index, clip, consumers):
                    for consumer in consumers:
                        self._note(phase_index, ("released", consumer), [clip.index])
        for phase_index, indices in issued.items():
            if len(set(indices)) == len(indices):
                self._note(phase_index, ("issued", ""), indices)
            else:  # a clip occurs twice
                for index in indices:
                    self._note(phase_index, ("issued", ""), (index,))
        self._peak_bytes = max(self._peak_bytes, self.ledger.credits.outstanding_bytes)
        return out

    # --- other events ---

    def started(self, now_ms: int) -> None:
        """A run of the job begins."""
        start = {name: position.message() for name, position in self._run.resume.start.items()}
        started = RunStart(snapshot=self._run.snapshot, start=start, checkpoints=self._run.checkpoints)
        self._alone(HistoryEntry(time_ms=now_ms, started=started))

    def taken_over(self, now_ms: int) -> None:
        """Another master continues the run."""
        self._alone(HistoryEntry(time_ms=now_ms, taken_over=True))

    def entered(self, state: JobState, reason: str, now_ms: int) -> None:
        """The job has entered this state."""
        if state.ended:
            self.ledger.ended = True
        self._alone(HistoryEntry(time_ms=now_ms, state=state, reason=reason))
        self.urgent = True

    def checkpoint(self, checkpoint: CheckpointReady) -> None:
        """A trainer has saved."""
        self._alone(HistoryEntry(checkpoint=checkpoint))

    def changed(self, change: Change, now_ms: int) -> None:
        """Someone has changed the job."""
        self._alone(HistoryEntry(time_ms=now_ms, changed=change))
        self.urgent = True

    def change_taken(self, taken: ChangeTaken) -> None:
        """A trainer applies a change from a position."""
        self._alone(HistoryEntry(change_taken=taken))

    def swept(self, stray_keys: int, now_ms: int) -> None:
        """The cache was searched after the job's end: this many of its keys were found and freed."""
        self._alone(HistoryEntry(time_ms=now_ms, swept=True, stray_keys=stray_keys))

    def segment(self, writer: str, now_ms: int) -> HistorySegment:
        """Return the next segment of the history: what was noted since the last one, and the ledger's state."""
        self._last += 1
        self.urgent = False
        return HistorySegment(
            first=self._last,
            last=self._last,
            fence=self._run.fence,
            since=self._run.since,
            writer=writer,
            entries=self._take(now_ms),
            ledger=self.ledger.state(),
        )

    def _take(self, now_ms: int) -> list[HistoryEntry]:
        self._close()
        entries, self._entries = self._entries, []
        if not entries:
            return []
        credits = self.ledger.credits
        entries[-1].budget_bytes, entries[-1].peak_bytes = credits.budget_bytes, self._peak_bytes
        entries[-1].outstanding_bytes = credits.outstanding_bytes
        entries[-1].outstanding_clips = self.ledger.outstanding
        for entry in entries:
            entry.time_ms = entry.time_ms or now_ms
            entry.fence = self._run.fence
        self._peak_bytes = credits.outstanding_bytes
        self.pending = False
        return entries

    # --- noting ---

    def _note_attempts(self, trained: Trained) -> None:
        attempts = dict(zip(trained.indices, trained.attempts, strict=False))
        for phase_index, kind, name, indices in self.ledger.phase_events:
            for index in indices if kind in ("trained", "retrained") else ():
                self._note_attempt(phase_index, index, name, attempts.get(index, 0))

    def _note_attempt(self, phase_index: int, index: int, consumer: str, attempt: int) -> None:
        if attempt:
            self.pending = True
            position = Position(phase_index, index).message()
            self._present.attempts.append(TrainedAttempt(position=position, consumer=consumer, attempt=attempt))

    def _handle_failed(self, progress: Progress) -> list[Instruction]:
        failed, counts = progress.failed, self.ledger.counts
        before = counts.failed, counts.lost, counts.replaced
        out = self.ledger.account(progress)
        phase_index = self._phase_index.get((failed.clip.purpose, failed.clip.epoch))
        if phase_index is not None and (counts.failed, counts.lost) != before[:2]:
            self.pending = True
            self._present.failures.append(
                ClipFailure(
                    position=Position(phase_index, failed.clip.index).message(),
                    attempt=failed.clip.attempt,
                    stage=failed.stage,
                    kind=failed.kind,
                    video=failed.clip.video_id,
                    stream=failed.stream,
                    replaced=counts.replaced != before[2],
                )
            )
        return out

    def _note(self, phase_index: int, fact: _Fact, indices: Sequence[int]) -> None:
        """Note that this happened to these clips, once to each."""
        self.pending = True
        noted = self._facts[phase_index][fact]
        if not noted.isdisjoint(indices):
            # The fact is already noted for one of the clips. A set cannot hold it twice, so a new entry begins.
            self._close()
            noted = self._facts[phase_index][fact]
        noted.update(indices)

    def _alone(self, entry: HistoryEntry) -> None:
        self._close()
        self._entries.append(entry)
        self.pending = True

    def _close(self) -> None:
        """Begin a new entry unless the present one is empty."""
        present, facts = self._present, self._facts
        if not facts and not present.failures and not present.attempts:
            return
        present.phases.extend(_events(phase_index, facts[phase_index]) for phase_index in sorted(facts))
        self._entries.append(present)
        self._present = HistoryEntry()
        self._facts = defaultdict(lambda: defaultdict(set))


def _events(phase_index: int, facts: Mapping[_Fact, set[int]]) -> PhaseEvents:
    events = PhaseEvents(phase_index=phase_index)
    for (what, whom), indices in facts.items():
        runs: Runs = getattr(events, what)[whom] if whom else getattr(events, what)
        runs.CopyFrom(runs_of(indices))
    return events
