"""The account of a job, rebuilt from its history alone: the input of audits and reports.

A job may have several runs (stopped and started again). In each run, consumers begin where their checkpoints say. Clips
are counted per run. Which attempt a consumer trained and which clips it skipped is carried over from run to run,
because its weights are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from essp_common.artifacts.history import spans_of
from essp_common.job.changes import BEGINNING, Place, place_at
from essp_common.job.position import Position, after_epochs
from essp_common.job.spec import JobSpec, stored_spec
from essp_common.pb.v1.messages_pb2 import (
    LOST,
    Change,
    ChangeTaken,
    CheckpointReady,
    FailureKind,
    HistoryEntry,
    HistorySegment,
    JobSnapshot,
    LedgerState,
    PhaseEvents,
    Runs,
    Stage,
    TrainedAttempt,
)
from essp_common.runtime import ids

Marks = NDArray[np.uint8]
"""`(clips,)` of one phase: a counter for each clip."""


@dataclass
class Run:
    """One run of the job."""

    fence: int
    snapshot: JobSnapshot
    spec: JobSpec
    start: dict[str, Position]
    """By consumer."""
    began_ms: int
    """Unix time."""
    issued: list[Marks] = field(init=False)
    done: dict[str, list[Marks]] = field(init=False)
    """By consumer and phase: how often it processed each clip, not counting repetitions after it fell back."""
    before: dict[str, list[Marks]] = field(init=False)
    """By consumer and phase: clips already contained in a checkpoint, which need not have been issued in this run."""
    skipped: dict[str, dict[int, frozenset[int]]] = field(init=False)
    """By stream and phase: the indices of the clips that it lacks, if there are any."""
    stopped: dict[str, Position] = field(default_factory=dict)
    """Consumer -> where it stopped early: it needs nothing from there until `rest`."""
    last_ms: int = 0
    """Unix time of the last entry."""
    counts: Counter[str] = field(default_factory=Counter)
    """As in `CountStatus`."""
    failures: dict[tuple[Stage, FailureKind], list[str]] = field(default_factory=dict)
    """Stage and kind -> the video of each failure, except `lost`."""

    def __post_init__(self) -> None:
        self.issued = self._marks()
        self.done = {name: self._marks() for name in self.start}
        self.before = {name: self._marks() for name in self.start}
        self.skipped = {stream: {} for stream in self.spec.readers().values()}
        for name in self.start:
            for number, marks in enumerate(self.done[name]):
                marks[: self.first(name, number)] = 1

    @property
    def lasting(self) -> list[str]:
        """The consumers that must get every clip. Loops are excluded: they come and go, and may take clips again."""
        return [name for name in self.done if ids.service_of(name) != ids.CONSUMER]

    def first(self, consumer: str, number: int) -> int:
        """The first clip of a phase that this run had to process; earlier runs processed those before it."""
        start = self.start[consumer]
        if number < start.phase_index:
            return self.snapshot.phases[number].clips
        return start.index if number == start.phase_index else 0

    @property
    def rest(self) -> Position:
        """The start of the phases after all epochs."""
        return after_epochs(self.snapshot.phases)

    def gone(self, consumer: str, number: int) -> Marks:
        """The clips of a phase that a consumer has processed or does not need: 0 or 1 per clip."""
        gone: Marks = (self.done[consumer][number] > 0).astype(np.uint8)
        gone[list(self.skipped[self.spec.readers()[consumer]].get(number, ()))] = 1
        stopped = self.stopped.get(consumer)
        if stopped is not None and stopped.phase_index <= number < self.rest.phase_index:
            gone[stopped.index if number == stopped.phase_index else 0 :] = 1
        return gone

    def _marks(self) -> list[Marks]:
        return [np.zeros(plan.clips, np.uint8) for plan in self.snapshot.phases]


@dataclass(frozen=True)
class Saved:
    """A checkpoint, with everything that determines which clips it must contain."""

    trainer: str
    step: int
    position: Position
    digest: str
    final: bool
    attempts: Mapping[int, Mapping[int, int]]
    """By phase and index: the attempts that were trained instead of the planned clips. Checkpoints share the phases
    that did not change between them."""
    skipped: Mapping[int, frozenset[int]]
    """By phase: the indices of the skipped clips."""
    epochs: int
    """The job's number of epochs in that run; later runs may have more."""
    stopped: Position | None = None
    """Where the trainer stopped early, if the checkpoint was written after that."""
    approximate: tuple[int, ...] = ()
    """Steps of the rounded checkpoints from which the training resumed before this one."""
    changes: dict[int, Place] = field(default_factory=dict)
    """The changes of the job that it contains, by number, each with the place from which it applied."""
    place: Place = BEGINNING
    """Its position, counted in training clips."""
    told: frozenset[int] = frozenset()
    """The changes whose starting place the trainer had reported by then."""


@dataclass
class Account:
    """Everything that a history records."""

    runs: list[Run] = field(default_factory=list)
    fences: list[tuple[int, bool]] = field(default_factory=list)
    """The fence of each entry, and whether a master began with it."""
    states: list[str] = field(default_factory=list)
    """The states of the last run, in order."""
    peaks: list[tuple[int, int]] = field(default_factory=list)
    """The peak of outstanding bytes, and the budget, at every sample."""
    outstanding: tuple[int, int] = (0, 0)
    """Outstanding bytes and clips at the end."""
    sweeps: list[int] = field(default_factory=list)
    """The number of keys found in the cache at each check after the end of the last run."""
    saved: list[Saved] = field(default_factory=list)
    ledger: LedgerState | None = None
    """From the newest segment."""
    status_json: str = ""
    last_ms: int = 0
    takeovers: int = 0
    changes: dict[int, Change] = field(default_factory=dict)
    """What users changed while the job ran, by number, with the places last reported by the trainers."""
    taken: dict[tuple[str, int], list[Place]] = field(default_factory=dict)
    """Trainer and number of a change -> the places reported by the trainer, in order."""
    _attempts: dict[str, dict[int, dict[int, int]]] = field(default_factory=dict)
    """By consumer, phase and index. The dict of a phase is replaced, never changed: checkpoints keep it."""

    @property
    def state(self) -> str:
        """The state of the job at the end."""
        return self.states[-1] if self.states else "pending"

    def add(self, segment: HistorySegment) -> None:
        """Add the next segment."""
        for entry in segment.entries:
            self._add(entry)
        if segment.HasField("ledger"):
            self.ledger, self.status_json = segment.ledger, segment.status_json

    def _add(self, entry: HistoryEntry) -> None:
        begins = entry.HasField("started") or entry.taken_over
        self.fences.append((entry.fence, begins))
        self.last_ms = max(self.last_ms, entry.time_ms)
        self.takeovers += entry.taken_over
        if entry.HasField("started"):
            self._begin(entry)
        if entry.state:
            self.states.append(entry.state)
        if entry.swept:
            self.sweeps.append(entry.stray_keys)
        if self.runs:
            self.runs[-1].last_ms = self.last_ms
            for events in entry.phases:
                self._note(self.runs[-1], events)
            self._note_attempts(entry.attempts)
            self._note_failures(self.runs[-1], entry)
        if entry.HasField("stopped") and self.runs:
            consumer = ids.trainer_consumer(entry.stopped.trainer)
            self.runs[-1].stopped[consumer] = Position.of(entry.stopped.position)
        if entry.HasField("changed"):
            self.changes[entry.changed.number] = entry.changed
        if entry.HasField("change_taken"):
            self._take(entry.change_taken)
        if entry.checkpoint.resumed:
            self._save_unsaid([entry.checkpoint])
        elif entry.HasField("checkpoint") and self.runs:
            self._save(self.runs[-1], entry.checkpoint)
        if entry.budget_bytes:
            self.peaks.append((max(entry.peak_bytes, entry.outstanding_bytes), entry.budget_bytes))
            self.outstanding = (entry.outstanding_bytes, entry.outstanding_clips)

    def _begin(self, entry: HistoryEntry) -> None:
        started = entry.started
        self._save_unsaid(started.checkpoints)
        spec = stored_spec(started.snapshot.spec_json, "the job of this history")
        start = {name: Position.of(position) for name, position in started.start.items()}
        run = Run(entry.fence, started.snapshot, spec, start, entry.time_ms)
        for name, position in start.items():
            known = self._attempts.get(name, {})
            self._attempts[name] = {number: _before(position, number, attempts) for number, attempts in known.items()}
        if self.runs:
            _carry_skipped(self.runs[-1], run)
            run.stopped |= {name: at for name, at in self.runs[-1].stopped.items() if at < start.get(name, at)}
        self.runs.append(run)
        self.states, self.sweeps = [], []

    def _take(self, taken: ChangeTaken) -> None:
        self.taken.setdefault((taken.trainer, taken.number), []).append(Place.of(taken.place))
        if (change := self.changes.get(taken.number)) is not None:
            change.places[taken.trainer].CopyFrom(taken.place)

    def _note(self, run: Run, events: PhaseEvents) -> None:
        number = events.phase_index
        run.counts["issued"] += _mark(run.issued[number], events.issued)
        run.counts["decoded"] += _length(events.decoded)
        run.counts["extracted"] += sum(map(_length, events.extracted.values()))
        for stream, runs in events.skipped.items():
            indices = chain.from_iterable(range(*span) for span in _inside(runs, run.snapshot.phases[number].clips))
            run.skipped[stream][number] = run.skipped[stream].get(number, frozenset()).union(indices)
        for consumer, runs in events.trained.items():
            _mark(run.done[consumer][number], runs)
        for consumer, runs in events.trained_before.items():
            _mark(run.done[consumer][number], runs)
            _mark(run.before[consumer][number], runs)
        for again in (events.trained, events.retrained):
            for consumer, runs in again.items():
                self._trained_as_planned(consumer, number, runs)

    def _trained_as_planned(self, consumer: str, number: int, runs: Runs) -> None:
        """Assume that these clips were trained as planned, until another entry says otherwise."""
        known = self._attempts.get(consumer, {})
        for begin, end in spans_of(runs) if known.get(number) else ():
            if again := {index for index in known[number] if begin <= index < end}:
                known[number] = {index: attempt for index, attempt in known[number].items() if index not in again}

    def _note_attempts(self, attempts: Iterable[TrainedAttempt]) -> None:
        found: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
        for each in attempts:
            found[each.consumer, each.position.phase_index][each.position.index] = each.attempt
        for (consumer, number), its in found.items():
            known = self._attempts.setdefault(consumer, {})
            known[number] = known.get(number, {}) | its

    def _note_failures(self, run: Run, entry: HistoryEntry) -> None:
        for failure in entry.failures:
            lost = failure.kind == LOST
            run.counts["lost"] += lost
            run.counts["failed"] += not lost
            run.counts["replaced"] += failure.replaced
            run.counts["skipped"] += not lost and not failure.replaced
            if not lost:
                run.failures.setdefault((failure.stage, failure.kind), []).append(failure.video)

    def _save_unsaid(self, checkpoints: Iterable[CheckpointReady]) -> None:
        """Add the checkpoints that a trainer wrote just before it died; the next run, or the restarted trainer, begins
        there."""
        said = {(saved.trainer, saved.step, saved.digest) for saved in self.saved}
        for checkpoint in checkpoints:
            if self.runs and (checkpoint.trainer, checkpoint.step, checkpoint.digest) not in said:
                self._save(self.runs[-1], checkpoint)

    def _save(self, run: Run, checkpoint: CheckpointReady) -> None:
        consumer = ids.trainer_consumer(checkpoint.trainer)
        position = Position.of(checkpoint.position)
        stopped = run.stopped.get(consumer)
        self.saved.append(
            Saved(
                trainer=checkpoint.trainer,
                step=checkpoint.step,
                position=position,
                digest=checkpoint.digest,
                final=checkpoint.final,
                attempts=dict(self._attempts.get(consumer, {})),
                skipped=dict(run.skipped[run.spec.readers()[consumer]]),
                epochs=run.spec.epochs,
                stopped=stopped if stopped is not None and run.rest <= position else None,
                approximate=tuple(checkpoint.approximate),
                changes={taken.number: Place.of(taken.place) for taken in checkpoint.changes},
                place=place_at(run.snapshot.phases, position),
                told=frozenset(number for trainer, number in self.taken if trainer == checkpoint.trainer),
            )
        )


def account_of(segments: Iterable[HistorySegment]) -> Account:
    """The account of a history."""
    account = Account()
    for segment in segments:
        account.add(segment)
    return account


def open_clips(run: Run) -> int:
    """The number of clips that were issued and that at least one consumer has not processed."""
    count = 0
    for number, issued in enumerate(run.issued):
        everyone = np.ones_like(issued)
        for consumer in run.lasting:
            everyone &= run.gone(consumer, number)
        count += int(np.count_nonzero((issued > 0) & (everyone == 0)))
    return count


def _carry_skipped(before: Run, after: Run) -> None:
    """Carry over clips skipped before the point where all consumers of a stream start again: they stay skipped.

    The later run may have more phases, or different ones at the end.
    """
    for stream, phases in after.skipped.items():
        start = min(after.start[name] for name, read in after.spec.readers().items() if read == stream)
        for number, skipped in before.skipped.get(stream, {}).items():
            phases[number] = frozenset(index for index in skipped if (number, index) < start)


def _before(position: Position, number: int, attempts: dict[int, int]) -> dict[int, int]:
    """The attempts of a phase at clips before this position."""
    return {index: attempt for index, attempt in attempts.items() if (number, index) < position}


def _mark(marks: Marks, runs: Runs) -> int:
    count = 0
    for begin, end in _inside(runs, len(marks)):
        marks[begin:end] += marks[begin:end] < 255
        count += end - begin
    return count


def _inside(runs: Runs, clips: int) -> Iterator[tuple[int, int]]:
    for begin, end in spans_of(runs):
        if end > clips:
            raise ValueError(f"a phase of {clips} clips has none at {end - 1}")
        yield begin, end


def _length(runs: Runs) -> int:
    return sum(runs.lengths[1::2])
