"""What the history keeps of a job (`essp_common/artifacts/history.py`): the ledger's facts, noted while it accounts for
messages.

Pure: time is passed in. A fact is noted when the ledger took notice of it, so duplicates and late messages leave no
trace, and the sums over the history are the ledger's own figures. Noting one is O(1); facts are gathered in sets of
indices until something happens whose order matters (a state, a checkpoint, or the same thing to the same clip again).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from essp_common.artifacts.history import runs_of
from essp_common.pb.v1.messages_pb2 import (
    CheckpointReady,
    ClipFailure,
    HistoryEntry,
    JobSnapshot,
    PhaseEvents,
    Progress,
    Purpose,
    Runs,
    RunStart,
    Trained,
    TrainedAttempt,
)
from essp_common.planning.position import Position
from essp_master.ledger.instructions import Instruction, IssueUnit, PublishSkip, ReleaseClip
from essp_master.ledger.ledger import Ledger

_Fact = tuple[str, str]
"""What happened (a field of `PhaseEvents`), and to which stream or consumer, if to one."""


class Recorder:
    """Has a ledger account for what comes, and notes what became of it."""

    def __init__(self, ledger: Ledger, numbers: Mapping[tuple[Purpose, int], int], fence: int) -> None:
        """`numbers`: purpose and epoch of a phase -> its place among the phases."""
        self._ledger = ledger
        self._numbers = numbers
        self._fence = fence
        self._entries: list[HistoryEntry] = []
        self._present = HistoryEntry()
        self._facts: dict[int, dict[_Fact, set[int]]] = defaultdict(lambda: defaultdict(set))
        self._peak_bytes = 0
        self.pending = False
        """Something was noted since `taken`."""

    # --- from progress ---

    def handle(self, progress: Progress) -> list[Instruction]:
        """What the ledger wants done about a message."""
        kind = progress.WhichOneof("event")
        out = self._handle_failed(progress) if kind == "failed" else self._ledger.account(progress)
        if kind == "checkpoint":
            self.checkpoint(progress.checkpoint)
        for number, what, whom, indices in self._ledger.news:
            self._note(number, (what, whom), indices)
        if kind == "trained" and progress.trained.attempts:
            self._note_attempts(progress.trained)
        if out:
            self.instructed(out)
        return out

    def issue(self) -> list[Instruction]:
        """What the ledger wants issued after the messages that came."""
        out = self._ledger.issue()
        self.instructed(out)
        return out

    def afterwards(self, progress: Progress) -> None:
        """A message of a job that has ended: what trainers still did counts for their checkpoints only."""
        match progress.WhichOneof("event"):
            case "trained":
                number = self._numbers.get((progress.trained.purpose, progress.trained.epoch))
                if number is not None:
                    for index, attempt in zip(progress.trained.indices, progress.trained.attempts, strict=False):
                        self._note_attempt(number, index, progress.trained.consumer, attempt)
            case "checkpoint":
                self.checkpoint(progress.checkpoint)

    def instructed(self, out: Sequence[Instruction]) -> None:
        """The ledger wants these things done; they will be."""
        issued: dict[int, list[int]] = defaultdict(list)
        for instruction in out:
            match instruction:
                case IssueUnit(number, clips):
                    issued[number] += [clip.index for clip in clips]
                case PublishSkip(number, clip, streams):
                    for stream in streams:
                        self._note(number, ("skipped", stream), [clip.index])
                case ReleaseClip(number, clip, consumers):
                    for consumer in consumers:
                        self._note(number, ("released", consumer), [clip.index])
        for number, indices in issued.items():
            if len(set(indices)) == len(indices):
                self._note(number, ("issued", ""), indices)
            else:  # some of them twice
                for index in indices:
                    self._note(number, ("issued", ""), (index,))
        self._peak_bytes = max(self._peak_bytes, self._ledger.credits.outstanding_bytes)

    # --- what else there is to know ---

    def started(self, snapshot: JobSnapshot, start: Mapping[str, Position], now_ms: int) -> None:
        """A run of the job begins, its consumers at these positions."""
        positions = {name: position.message() for name, position in start.items()}
        self._alone(HistoryEntry(time_ms=now_ms, started=RunStart(snapshot=snapshot, start=positions)))

    def taken_over(self, now_ms: int) -> None:
        """Another master goes on with the run."""
        self._alone(HistoryEntry(time_ms=now_ms, taken_over=True))

    def entered(self, state: str, reason: str, now_ms: int) -> None:
        """The job is in this state now."""
        self._alone(HistoryEntry(time_ms=now_ms, state=state, reason=reason))

    def checkpoint(self, checkpoint: CheckpointReady) -> None:
        """A trainer has saved."""
        self._alone(HistoryEntry(checkpoint=checkpoint))

    def swept(self, stray_keys: int, now_ms: int) -> None:
        """The cache was looked through after the end of the job: so many keys of it were there, and were freed."""
        self._alone(HistoryEntry(time_ms=now_ms, swept=True, stray_keys=stray_keys))

    def take(self, now_ms: int) -> list[HistoryEntry]:
        """What was noted since this was called last."""
        self._close()
        entries, self._entries = self._entries, []
        if not entries:
            return []
        credits = self._ledger.credits
        entries[-1].budget_bytes, entries[-1].peak_bytes = credits.budget_bytes, self._peak_bytes
        entries[-1].outstanding_bytes = credits.outstanding_bytes
        entries[-1].outstanding_clips = self._ledger.outstanding
        for entry in entries:
            entry.time_ms = entry.time_ms or now_ms
            entry.fence = self._fence
        self._peak_bytes = credits.outstanding_bytes
        self.pending = False
        return entries

    # --- noting ---

    def _note_attempts(self, trained: Trained) -> None:
        attempts = dict(zip(trained.indices, trained.attempts, strict=False))
        for number, what, whom, indices in self._ledger.news:
            for index in indices if what in ("trained", "retrained") else ():
                self._note_attempt(number, index, whom, attempts.get(index, 0))

    def _note_attempt(self, number: int, index: int, consumer: str, attempt: int) -> None:
        if attempt:
            self.pending = True
            position = Position(number, index).message()
            self._present.attempts.append(TrainedAttempt(position=position, consumer=consumer, attempt=attempt))

    def _handle_failed(self, progress: Progress) -> list[Instruction]:
        failed, counts = progress.failed, self._ledger.counts
        before = counts.failed, counts.lost, counts.replaced
        out = self._ledger.account(progress)
        number = self._numbers.get((failed.clip.purpose, failed.clip.epoch))
        if number is not None and (counts.failed, counts.lost) != before[:2]:
            self.pending = True
            self._present.failures.append(
                ClipFailure(
                    position=Position(number, failed.clip.index).message(),
                    attempt=failed.clip.attempt,
                    stage=failed.stage,
                    kind=failed.kind,
                    video=failed.clip.video_id,
                    stream=failed.stream,
                    replaced=counts.replaced != before[2],
                )
            )
        return out

    def _note(self, number: int, fact: _Fact, indices: Sequence[int]) -> None:
        """That this happened to these clips, to each of them once."""
        self.pending = True
        noted = self._facts[number][fact]
        if not noted.isdisjoint(indices):
            self._close()
            noted = self._facts[number][fact]
        noted.update(indices)

    def _alone(self, entry: HistoryEntry) -> None:
        self._close()
        self._entries.append(entry)
        self.pending = True

    def _close(self) -> None:
        """Begin a new entry, if there is anything in the present one."""
        present, facts = self._present, self._facts
        if not facts and not present.failures and not present.attempts:
            return
        present.phases.extend(_events(number, facts[number]) for number in sorted(facts))
        self._entries.append(present)
        self._present = HistoryEntry()
        self._facts = defaultdict(lambda: defaultdict(set))


def _events(number: int, facts: Mapping[_Fact, set[int]]) -> PhaseEvents:
    events = PhaseEvents(phase_index=number)
    for (what, whom), indices in facts.items():
        runs: Runs = getattr(events, what)[whom] if whom else getattr(events, what)
        runs.CopyFrom(runs_of(indices))
    return events
