"""A world around a ledger: decoders, extractors, a cache and consumers, as simple as they can be, and all at once.

Everything that moves is a message in a bag, so that a test decides what happens next, how often, and what never does.
Consumers follow the rules of `essp_common.messages.ordered`: in index order, acked again when it is late, `lost` when
the bytes are gone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from essp_common.failures import stage_named
from essp_common.pb.v1.messages_pb2 import (
    DAMAGED,
    DECODER,
    ERROR,
    EXTRACTOR,
    LOST,
    ClipRef,
    Failed,
    LedgerState,
    Made,
    Progress,
    Trained,
)
from essp_common.planning.plan import PlannedClip
from essp_common.planning.position import Position
from essp_master.ledger.config import LedgerConfig
from essp_master.ledger.instructions import (
    CompleteJob,
    FailJob,
    FinishPhase,
    Instruction,
    IssueUnit,
    PublishSkip,
    ReleaseClip,
)
from essp_master.ledger.ledger import Ledger
from tests.harness.ledger_terms import CLIP_BYTES, CONSUMERS, STREAM_BYTES

Place = tuple[int, int]


@dataclass(frozen=True)
class Seed:
    """A seed on its way to a decoder."""

    number: int
    clip: PlannedClip
    consumers: tuple[str, ...]


@dataclass
class Consumer:
    """A trainer, which remembers what it trained in what order."""

    name: str
    stream: str
    position: Position
    checkpoint: Position
    trained: list[Place] = field(default_factory=list)
    durable: list[Place] = field(default_factory=list)
    clips: dict[Place, PlannedClip] = field(default_factory=dict)
    """What it got."""
    waiting: dict[Place, tuple[PlannedClip, bool]] = field(default_factory=dict)
    """Place -> (clip, skipped): messages that came and were not taken."""
    unacked: list[tuple[Place, PlannedClip, bool]] = field(default_factory=list)
    """Messages that would be delivered again after a restart."""


class World:
    """One job, with everybody who works for it."""

    def __init__(self, the_terms: LedgerConfig, bad: Sequence[int] = (), bad_streams: Sequence[int] = ()) -> None:
        """`bad`: videos that cannot be decoded; `bad_streams`: videos whose flow cannot be extracted."""
        self.terms = the_terms
        self.bad, self.bad_streams = set(bad), set(bad_streams)
        self.ledger = Ledger(the_terms)
        self.seeds: list[Seed] = []
        self.extractions: list[tuple[Seed, str]] = []
        self.events: list[Progress] = []
        self.cache: dict[tuple[Place, int, str], set[str]] = {}
        self.used = self.most_used = 0
        self.finished_phases: list[int] = []
        self.issued: list[Place] = []
        self.end: CompleteJob | FailJob | None = None
        starts = {name: the_terms.start.get(name, Position(0, 0)) for name in the_terms.parts.consumers}
        self.consumers = {
            name: Consumer(name, CONSUMERS.get(name, "rgb"), position, position) for name, position in starts.items()
        }
        self.heard: list[Progress] = []
        """Since the state was saved."""
        self.save_state()
        self.do(self.ledger.start())

    # --- the master's side ---

    def do(self, instructions: Sequence[Instruction]) -> None:
        """What the shell would do."""
        for instruction in instructions:
            match instruction:
                case IssueUnit(number, clips, consumers):
                    self.seeds += [Seed(number, clip, consumers) for clip in clips]
                    self.issued += [(number, clip.index) for clip in clips]
                case PublishSkip(number, clip, streams, _):
                    for consumer in self.consumers.values():
                        if consumer.stream in streams:
                            self._arrive(consumer, (number, clip.index), clip, skipped=True)
                case ReleaseClip(number, clip, consumers):
                    for name in consumers:
                        self._ack((number, clip.index), clip.attempt, name)
                case FinishPhase(number):
                    self.finished_phases.append(number)
                case CompleteJob() | FailJob():
                    self.end = instruction

    def hear(self, event: Progress) -> None:
        """Have the master account for an event."""
        self.heard.append(event)
        self.do(self.ledger.handle(event))

    def save_state(self) -> None:
        """Write the ledger's state where a master that starts will find it."""
        self.saved, self.heard = self.ledger.state().SerializeToString(), []

    def restart_master(self) -> None:
        """A ledger takes over that knows the saved state, and hears again what came since."""
        paused = self.ledger.paused
        self.ledger = Ledger(self.terms, LedgerState.FromString(self.saved))
        self.do(self.ledger.start())
        for event in self.heard:
            self.do(self.ledger.handle(event))
        if paused:
            self.ledger.pause()

    def stop_and_start(self) -> None:
        """Stop the job and start it again: its trainers go on at their checkpoints, and nothing else is left of it."""
        self.flush_cache()
        self.seeds, self.extractions, self.events, self.heard = [], [], [], []
        for consumer in self.consumers.values():
            consumer.position = consumer.checkpoint
            consumer.trained, consumer.durable, consumer.waiting, consumer.unacked = [], [], {}, []
        start = {name: consumer.position for name, consumer in self.consumers.items()}
        self.terms = replace(self.terms, start=start)
        self.ledger = Ledger(self.terms)
        self.save_state()
        self.do(self.ledger.start())

    def deliver(self, number: int = 0, twice: bool = False) -> None:
        """Hand an event to the ledger; `twice`: it stays in the bag."""
        self.hear(self.events[number] if twice else self.events.pop(number))

    # --- the workers' side ---

    def decode(self, number: int = 0, keep: bool = False) -> None:
        """Decode a seed; `keep`: its message is delivered again later."""
        seed = self.seeds[number] if keep else self.seeds.pop(number)
        ref = self._ref(seed.number, seed.clip)
        if seed.clip.video in self.bad:
            self.events.append(Progress(failed=Failed(clip=ref, stage=DECODER, reason="damaged", kind=DAMAGED)))
            return
        extracted = [s for s in self.terms.parts.streams if any(self.consumers[c].stream == s for c in seed.consumers)]
        readers = {c for c in seed.consumers if self.consumers[c].stream == "rgb"} | {
            f"extractor.{s}" for s in extracted
        }
        place = (seed.number, seed.clip.index)
        self._put((place, seed.clip.attempt, "clip"), readers)
        self.events.append(self._made(seed, "", self.actual(seed.clip, "clip")))
        for consumer in seed.consumers:
            if self.consumers[consumer].stream == "rgb":
                self._arrive(self.consumers[consumer], place, seed.clip, skipped=False)
        self.extractions += [(seed, stream) for stream in extracted]

    def gather(self) -> None:
        """Have what workers made, and have not been heard of yet, told in one message for each phase and stream."""
        alike: dict[tuple[int, int, str], Made] = {}
        for event in [event for event in self.events if event.HasField("made")]:
            self.events.remove(event)
            made = event.made
            whole = alike.setdefault(
                (made.purpose, made.epoch, made.stream),
                Made(purpose=made.purpose, epoch=made.epoch, stream=made.stream),
            )
            whole.attempts.extend(made.attempts or [0] * len(made.indices))
            whole.indices.extend(made.indices)
            whole.bytes.extend(made.bytes)
        self.events += [Progress(made=made) for made in alike.values()]

    def extract(self, number: int = 0) -> None:
        """Make a stream of a clip."""
        seed, stream = self.extractions.pop(number)
        place, ref = (seed.number, seed.clip.index), self._ref(seed.number, seed.clip)
        if (place, seed.clip.attempt, "clip") not in self.cache:
            failed = Failed(clip=ref, stage=EXTRACTOR, reason="gone", kind=LOST, stream=stream)
            self.events.append(Progress(failed=failed))
            return
        readers = {c for c in seed.consumers if self.consumers[c].stream == stream}
        if seed.clip.video in self.bad_streams:
            failed = Failed(clip=ref, stage=EXTRACTOR, reason="no", kind=ERROR, stream=stream)
            self.events.append(Progress(failed=failed))
        else:
            self._put((place, seed.clip.attempt, stream), readers)
            self.events.append(self._made(seed, stream, self.actual(seed.clip, stream)))
            for consumer in readers:
                self._arrive(self.consumers[consumer], place, seed.clip, skipped=False)
        self._ack(place, seed.clip.attempt, f"extractor.{stream}")

    # --- the consumers' side ---

    def take(self, name: str) -> bool:
        """Have a consumer train its next clip; False: that has not come."""
        consumer = self.consumers[name]
        place = self._next(consumer)
        if place is None or place not in consumer.waiting:
            return False
        clip, skipped = consumer.waiting.pop(place)
        if not skipped:
            key = (place, clip.attempt, "clip" if consumer.stream == "rgb" else consumer.stream)
            ref = self._ref(place[0], clip)
            if key not in self.cache:
                stage = stage_named(name.partition(".")[0])
                failed = Failed(clip=ref, stage=stage, reason="gone", kind=LOST, stream=consumer.stream, consumer=name)
                self.events.append(Progress(failed=failed))
                return True
            self._ack(place, clip.attempt, name)
            self.events.append(self._trained(consumer, place))
            consumer.trained.append(place)
            consumer.clips[place] = clip
        consumer.position = Position(place[0], place[1] + 1)
        return True

    def checkpoint(self, name: str) -> None:
        """Make durable what a consumer has trained."""
        consumer = self.consumers[name]
        consumer.checkpoint, consumer.durable = consumer.position, list(consumer.trained)
        here = consumer.position
        consumer.unacked = [m for m in consumer.unacked if m[0] >= here]

    def crash(self, name: str) -> None:
        """Have a consumer fall back to its checkpoint.

        What it said before comes before what it says from now on: `essp.progress` is one partition, in order.
        """
        said = [e for e in self.events if name in (e.trained.consumer, e.failed.consumer)]
        self.events = [e for e in self.events if name not in (e.trained.consumer, e.failed.consumer)]
        for event in said:
            self.hear(event)
        consumer = self.consumers[name]
        consumer.position, consumer.trained = consumer.checkpoint, list(consumer.durable)
        redelivered, consumer.unacked, consumer.waiting = consumer.unacked, [], {}
        for place, clip, skipped in redelivered:
            self._arrive(consumer, place, clip, skipped)

    def work(self, without: Collection[str] = ()) -> None:
        """One step of everybody, but for some consumers."""
        if self.seeds:
            self.decode()
        if self.extractions:
            self.extract()
        for _ in range(min(4, len(self.events))):
            self.deliver()
        for name in self.consumers:
            if name not in without:
                self.take(name)

    def make_all(self) -> None:
        """Have all that was issued made and accounted for; consumers take nothing."""
        while self.seeds or self.extractions or self.events:
            if self.seeds:
                self.decode()
            if self.extractions:
                self.extract()
            if self.events:
                self.deliver()

    def flush_cache(self) -> None:
        """Lose all bytes."""
        self.cache.clear()
        self.used = 0

    def done(self, name: str) -> bool:
        """Whether a consumer is through with everything."""
        return self._next(self.consumers[name]) is None

    def run(self, limit: int = 1_000) -> None:
        """Let everybody work until all is done; the watchdog helps when nothing moves."""
        rounds = 0
        for _ in range(limit):
            moved = False
            while self.seeds or self.extractions or self.events:
                moved = True
                rounds += 1
                assert rounds < 10 * limit, "the same clips are made for ever"
                if self.seeds:
                    self.decode()
                if self.extractions:
                    self.extract()
                if self.events:
                    self.deliver()
            for name in self.consumers:
                moved |= self.take(name)
            if self.end is not None:
                return
            if not moved:
                if all(self.done(name) for name in self.consumers) and not self.ledger.outstanding:
                    return
                self.do(self.ledger.stalled())
        raise AssertionError("the job does not come to an end")

    @staticmethod
    def actual(clip: PlannedClip, part: str) -> int:
        """How many bytes a part takes up: a function of the clip, within the bounds."""
        bound = CLIP_BYTES if part == "clip" else STREAM_BYTES
        return bound // 4 + (clip.first_frame * 7 + clip.video * 13) % (bound * 3 // 4 + 1)

    def _next(self, consumer: Consumer) -> Place | None:
        number, index = consumer.position
        while number < len(self.terms.phases):
            if index < self.terms.phases[number].clips:
                return (number, index)
            number, index = number + 1, 0
        return None

    def _arrive(self, consumer: Consumer, place: Place, clip: PlannedClip, skipped: bool) -> None:
        if place < consumer.position:
            self._ack(place, clip.attempt, consumer.name)
            if not skipped:
                self.events.append(self._trained(consumer, place))
            return
        present = consumer.waiting.get(place)
        if present is None or present[0].attempt <= clip.attempt:
            consumer.waiting[place] = (clip, skipped)
            consumer.unacked.append((place, clip, skipped))

    def _put(self, key: tuple[Place, int, str], readers: set[str]) -> None:
        size = self._size(key)
        self.used += 0 if key in self.cache else size
        self.cache[key] = readers
        self.most_used = max(self.most_used, self.used)

    def _ack(self, place: Place, attempt: int, name: str) -> None:
        for key in [key for key in self.cache if key[:2] == (place, attempt)]:
            if name.startswith("extractor.") and key[2] != "clip":
                continue
            self.cache[key] = self.cache[key] - {name}
            if not self.cache[key]:
                del self.cache[key]
                self.used -= self._size(key)

    def _size(self, key: tuple[Place, int, str]) -> int:
        (number, index), attempt, part = key
        return self.actual(self.terms.plan_of(number).clip(index, attempt), part)

    def _trained(self, consumer: Consumer, place: Place) -> Progress:
        plan = self.terms.phases[place[0]]
        return Progress(
            trained=Trained(purpose=plan.purpose, epoch=plan.epoch, consumer=consumer.name, indices=[place[1]])
        )

    def _made(self, seed: Seed, stream: str, size: int) -> Progress:
        plan, clip = self.terms.phases[seed.number], seed.clip
        made = Made(purpose=plan.purpose, epoch=plan.epoch, stream=stream, indices=[clip.index],
                    attempts=[clip.attempt] if clip.attempt else (), bytes=[size])  # fmt: skip
        return Progress(made=made)

    def _ref(self, number: int, clip: PlannedClip) -> ClipRef:
        plan = self.terms.phases[number]
        return ClipRef(
            purpose=plan.purpose,
            epoch=plan.epoch,
            index=clip.index,
            attempt=clip.attempt,
            class_id=clip.class_id,
            video_id=f"v{clip.video:03d}",
            first_frame=clip.first_frame,
        )
