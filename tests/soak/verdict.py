"""What a soak came to: its figures, and which invariants they break.

`violations` is pure, so that a test can show that each invariant is able to fail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import repeat
from typing import Any

from essp_common import topics
from essp_common.bus.port import Record
from essp_common.messages.parsing import BadMessage, parsed
from essp_common.pb.v1.messages_pb2 import DeadLetter, DecodeSeed, Progress

REDIS_SHARE = 2.0
"""What Redis may hold at most, in budgets: workers that were replaced without knowing it may store once more what
others have stored, until the master's next start removes it."""
_MESSAGES: dict[str, type[DeadLetter | DecodeSeed | Progress]] = {
    topics.SEEDS: DecodeSeed,
    topics.PROGRESS: Progress,
    topics.DEADLETTER: DeadLetter,
}


@dataclass(slots=True)
class Round:
    """One job of the soak."""

    job: str
    seconds: float
    state: str
    reason: str
    weights: dict[str, str]
    """Trainer -> digest of the weights that were fused."""
    clips: int
    """Clips of all its phases."""
    skipped: int
    """Of these, without frames."""
    keys_left: int
    """Keys in Redis when the job was over and the workers had been told."""
    audited: int
    """Invariants that `essp audit` could check in the job's history."""
    broken: list[str]
    """What it found."""


@dataclass(slots=True)
class Traffic:
    """What went over the bus, counted from its log."""

    seeds_published: int = 0
    seeds: int = 0
    """Different ones: of one attempt at one index of one phase of one job."""
    decoded: int = 0
    decoded_clips: int = 0
    """Different ones."""
    extracted: int = 0
    extracted_clips: int = 0
    trained: int = 0
    """Reports of a clip as trained, by all trainers."""
    trained_clips: dict[str, dict[str, int]] = field(default_factory=dict)
    """Job -> consumer -> different clips that it reported as trained."""
    refused: Counter[str] = field(default_factory=Counter)
    """Topic -> records that hold no message."""
    dead_letters: Counter[str] = field(default_factory=Counter)
    """Topic -> letters of records that were on it."""

    @property
    def duplicates(self) -> int:
        """Reports that said again what had been said."""
        distinct = sum(count for consumers in self.trained_clips.values() for count in consumers.values())
        return self.decoded - self.decoded_clips + self.extracted - self.extracted_clips + self.trained - distinct


@dataclass(slots=True)
class Figures:
    """Everything that a soak measured."""

    seed: int
    seconds: float = 0.0
    rounds: list[Round] = field(default_factory=list)
    expected_weights: dict[str, str] = field(default_factory=dict)
    faults: dict[str, Counter[str]] = field(default_factory=dict)
    """Kind -> pool, cache or topic -> how often."""
    restarts: int = 0
    unasked: list[str] = field(default_factory=list)
    """Processes that ended, or did not end, without the soak having asked for it: their stories."""
    traffic: Traffic = field(default_factory=Traffic)
    budget_bytes: int = 0
    outstanding_bytes: int = 0
    """Most that the master ever had outstanding."""
    redis_bytes: int = 0
    """Most that the data in Redis ever took up."""
    processes_left: int = 0

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self) | {
            "duplicates": self.traffic.duplicates,
            "redecoded": self.traffic.decoded - self.traffic.decoded_clips,
            "violations": violations(self),
        }


def traffic(records: Iterable[Record]) -> Traffic:
    """Count what was said on the topics of seeds, progress and dead letters."""
    found = Traffic()
    seeds: set[tuple[str, int, int, int, int]] = set()
    made: dict[str, set[tuple[str, int, int, str, int, int]]] = {"decoded": set(), "extracted": set()}
    trained: dict[tuple[str, str], set[tuple[int, int, int]]] = {}
    for record in records:
        try:
            message = parsed(_MESSAGES[record.topic], record)
        except BadMessage:
            found.refused[record.topic] += 1
            continue
        if isinstance(message, DecodeSeed):
            found.seeds_published += len(message.seeds)
            phase = (message.job, message.purpose, message.epoch)
            seeds.update((*phase, seed.index, seed.attempt) for seed in message.seeds)
        elif isinstance(message, DeadLetter):
            found.dead_letters[message.topic] += 1
        elif isinstance(message, Progress):
            progress = message
            if progress.HasField("made"):
                event = progress.made
                kind = "extracted" if event.stream else "decoded"
                setattr(found, kind, getattr(found, kind) + len(event.indices))
                made[kind].update(
                    (progress.job, event.purpose, event.epoch, event.stream, index, attempt)
                    for index, attempt in zip(event.indices, event.attempts or repeat(0), strict=False)
                )
            elif progress.HasField("trained"):
                done = progress.trained
                found.trained += len(done.indices)
                places = trained.setdefault((done.job, done.consumer), set())
                places.update((done.purpose, done.epoch, index) for index in done.indices)
    found.seeds, found.decoded_clips, found.extracted_clips = len(seeds), len(made["decoded"]), len(made["extracted"])
    for (job, consumer), places in sorted(trained.items()):
        found.trained_clips.setdefault(job, {})[consumer] = len(places)
    return found


def violations(figures: Figures) -> list[str]:
    """Every invariant that does not hold, in words."""
    return [
        *_of_rounds(figures),
        *(f"unasked: {story}" for story in figures.unasked),
        *_of_memory(figures),
        *_of_traffic(figures.traffic),
        *([f"{figures.processes_left} processes were left behind"] if figures.processes_left else []),
        *([] if any(figures.faults.values()) else ["no fault was made, so nothing was shown"]),
    ]


def _of_rounds(figures: Figures) -> Sequence[str]:
    found = [] if figures.rounds else ["no job was run to its end"]
    for done in figures.rounds:
        if done.state != "completed":
            found.append(f"{done.job} is {done.state}: {done.reason}")
            continue
        if done.weights != figures.expected_weights:
            found.append(f"{done.job} has other weights than an undisturbed run: {done.weights}")
        consumers = figures.traffic.trained_clips.get(done.job, {})
        if not consumers:
            found.append(f"{done.job}: nobody reported that it trained anything")
        for consumer, count in consumers.items():
            if count != done.clips - done.skipped:
                found.append(f"{done.job}: {consumer} trained {count} of {done.clips - done.skipped} clips")
        if not done.audited:
            found.append(f"{done.job}: its history could not be audited")
        found += [f"{done.job}: audit: {text}" for text in done.broken]
        if done.keys_left:
            found.append(f"{done.job}: {done.keys_left} keys were left in Redis")
    return found


def _of_traffic(found: Traffic) -> Sequence[str]:
    lost = found.refused[topics.SEEDS] - found.dead_letters[topics.SEEDS]
    return [f"{lost} records among the seeds are not messages, and are not dead letters"] if lost > 0 else []


def _of_memory(figures: Figures) -> Sequence[str]:
    found = []
    if not 0 < figures.outstanding_bytes <= figures.budget_bytes:
        found.append(f"{figures.outstanding_bytes} bytes were outstanding, the budget is {figures.budget_bytes}")
    if figures.redis_bytes > REDIS_SHARE * figures.budget_bytes:
        found.append(f"Redis held {figures.redis_bytes} bytes, the budget is {figures.budget_bytes}")
    return found
