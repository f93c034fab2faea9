"""Reconstructs what happened to one clip of a job, step by step, from the job's history alone: `essp job why`. Pure.

One history entry covers what happened to many clips within some seconds. The steps within an entry have no recorded
order, so they are listed in the order in which a clip passes through them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from essp_common.artifacts.history import spans_of
from essp_common.failures import kind_word, stage_word
from essp_common.job.position import Position
from essp_common.job.status import PURPOSES, PurposeName, purpose_name
from essp_common.pb.v1.messages_pb2 import (
    LOST,
    ClipFailure,
    HistoryEntry,
    HistorySegment,
    JobSnapshot,
    PhaseEvents,
    PhasePlan,
    Runs,
)
from essp_common.runtime import ids


@dataclass(frozen=True, slots=True)
class Step:
    """One event."""

    time_ms: int
    """Unix time by which it had happened."""
    run: int
    """Run of the job, counted from 1."""
    what: str


@dataclass(frozen=True, slots=True)
class Story:
    """What happened to the clip at one index of one phase."""

    purpose: PurposeName
    epoch: int
    index: int
    steps: tuple[Step, ...]
    attempts: Mapping[str, int]
    """By consumer: the video it last used for training, as an attempt counted from 0, the planned one."""
    lacking: tuple[str, ...]
    """Consumers of the last run that have not finished the clip but may still do so."""


def story_of(segments: Iterable[HistorySegment], purpose: PurposeName, epoch: int, index: int) -> Story | None:
    """The story of a clip; None if no run of the job has such a clip."""
    teller = _Teller(purpose, epoch, index)
    for segment in segments:
        for entry in segment.entries:
            teller.hear(entry)
    if not teller.known:
        return None
    return Story(purpose, epoch, index, tuple(teller.steps), teller.attempts, tuple(sorted(teller.owed)))


def purpose_in(snapshot: JobSnapshot, plan: PhasePlan) -> PurposeName | None:
    """The purpose of one of a run's phases; None if a later version has added it."""
    if plan.purpose not in PURPOSES:
        return None
    extracts = json.loads(snapshot.spec_json or "{}").get("extract") is not None
    return purpose_name(plan.purpose, "extract" if extracts else "train")


class _Teller:
    def __init__(self, purpose: PurposeName, epoch: int, index: int) -> None:
        self._phase = (purpose, epoch)
        self._index = index
        self._position: Position | None = None
        """Position of the clip in the current run."""
        self._run = 0
        self._saved: set[str] = set()
        """Trainers with a checkpoint that includes the clip."""
        self.known = False
        self.steps: list[Step] = []
        self.attempts: dict[str, int] = {}
        self.owed: set[str] = set()

    def hear(self, entry: HistoryEntry) -> None:
        for what in self._said(entry):
            self.steps.append(Step(entry.time_ms, self._run, what))

    def _said(self, entry: HistoryEntry) -> Iterator[str]:
        if entry.HasField("started"):
            yield from self._begin(entry)
        if self._position is None:
            return
        if entry.taken_over:
            yield "another master took the job over"
        for events in entry.phases:
            if events.phase_index == self._position.phase_index:
                yield from self._made(events)
        for failure in entry.failures:
            if Position.of(failure.position) == self._position:
                yield _failed(failure)
        for events in entry.phases:
            if events.phase_index == self._position.phase_index:
                yield from self._consumed(events)
        for attempt in entry.attempts:
            if Position.of(attempt.position) == self._position:
                self.attempts[attempt.consumer] = attempt.attempt
                yield f"{consumer_words(attempt.consumer)} trained replacement {attempt.attempt} of its video"
        if entry.HasField("checkpoint"):
            trainer = entry.checkpoint.trainer
            if trainer not in self._saved and self._position < Position.of(entry.checkpoint.position):
                self._saved.add(trainer)
                yield f"in the checkpoint of trainer {trainer} after step {entry.checkpoint.step}"
        if entry.HasField("stopped") and Position.of(entry.stopped.position) <= self._position:
            self.owed.discard(ids.trainer_consumer(entry.stopped.trainer))
            yield f"trainer {entry.stopped.trainer} stopped early, before it"

    def _begin(self, entry: HistoryEntry) -> Iterator[str]:
        self._run += 1
        self._position = self._found(entry.started.snapshot)
        if self._position is None:
            return
        self.known = True
        start = {name: Position.of(position) for name, position in entry.started.start.items()}
        self.owed = {name for name, begins in start.items() if begins <= self._position}
        yield f"run {self._run} of the job began"
        for name, begins in sorted(start.items()):
            if self._position < begins:
                yield f"{consumer_words(name)} had it already and continues after it"

    def _found(self, snapshot: JobSnapshot) -> Position | None:
        for number, plan in enumerate(snapshot.phases):
            if (purpose_in(snapshot, plan), plan.epoch) == self._phase and self._index < plan.clips:
                return Position(number, self._index)
        return None

    def _made(self, events: PhaseEvents) -> Iterator[str]:
        if self._is_in(events.issued):
            yield "issued: a decoder was asked for it"
        if self._is_in(events.decoded):
            yield "decoded"
        for stream, runs in sorted(events.extracted.items()):
            if self._is_in(runs):
                yield f"stream {stream} extracted"

    def _consumed(self, events: PhaseEvents) -> Iterator[str]:
        for consumer, runs in sorted(events.released.items()):
            if self._is_in(runs):
                yield f"released unread by {consumer_words(consumer)}, to be made again later"
        for consumer, runs in sorted(events.trained_before.items()):
            if self._is_in(runs):
                self.owed.discard(consumer)
                yield f"{consumer_words(consumer)} had it already, in a checkpoint"
        for consumer, runs in sorted(events.trained.items()):
            if self._is_in(runs):
                self.owed.discard(consumer)
                self.attempts.pop(consumer, None)
                yield f"used by {consumer_words(consumer)}"
        for consumer, runs in sorted(events.retrained.items()):
            if self._is_in(runs):
                self.owed.discard(consumer)
                self.attempts.pop(consumer, None)
                yield f"used once more by {consumer_words(consumer)}, which had fallen back to a checkpoint"
        for stream, runs in sorted(events.skipped.items()):
            if self._is_in(runs):
                yield f"skipped by all that read stream {stream}: there is nothing to use"

    def _is_in(self, runs: Runs) -> bool:
        return any(begin <= self._index < end for begin, end in spans_of(runs))


def _failed(failure: ClipFailure) -> str:
    service, kind = stage_word(failure.stage), kind_word(failure.kind)
    if failure.kind == LOST:
        return f"lost between {service} and its consumer; asked for again"
    then = "another video replaces it" if failure.replaced else "nothing replaces it"
    stream = f", stream {failure.stream}" if failure.stream else ""
    return f"failed in the {service}{stream}: {failure.video} ({kind}); {then}"


def consumer_words(consumer: str) -> str:
    """A consumer in the words of users: `trainer rgb`, `loop camera`."""
    service, _, name = consumer.partition(".")
    return f"{'loop' if service == ids.CONSUMER else service} {name}"
