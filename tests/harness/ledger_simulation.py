"""Simulates the surroundings of a ledger: decoders, extractors, a cache and consumers, each as simple as possible.

Every message waits in a bag, so that a test decides which one comes next, how often, and which one never comes.
Consumers follow the rules of `essp_engine.intake.ordered`: they take clips in index order, ack a late one again, and
report `lost` when the bytes are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from essp_common.failures import stage_named
from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import (
    DAMAGED,
    DECODER,
    ERROR,
    EXTRACTOR,
    LOST,
    TRAINER,
    CheckpointReady,
    ClipRef,
    Failed,
    LedgerState,
    Loop,
    Made,
    Progress,
    StoppedEarly,
    Trained,
)
from essp_engine.planning.planned_clip import PlannedClip
from essp_engine.seeding.instructions import (
    CompleteJob,
    FailJob,
    FinishPhase,
    Instruction,
    IssueUnits,
    PublishSkip,
    ReleaseClip,
    TellOfLoops,
)
from essp_master.ledger.config import LedgerConfig
from essp_master.ledger.ledger import Ledger
from tests.harness.ledger_config import CLIP_BYTES, STREAM_BYTES


@dataclass(frozen=True)
class Seed:
    """A seed on its way to a decoder."""

    phase_index: int
    clip: PlannedClip
    consumers: tuple[str, ...]


@dataclass
class Consumer:
    """A trainer that remembers what it has trained, in what order."""

    name: str
    stream: str
    position: Position
    checkpoint: Position
    since: Position
    """The first clip that it trains in this run: before its start in the ledger, if it went on from further back."""
    trained: list[Position] = field(default_factory=list)
    durable: list[Position] = field(default_factory=list)
    stepped_over: set[Position] = field(default_factory=set)
    """The clips that it was told to skip."""
    clips: dict[Position, PlannedClip] = field(default_factory=dict)
    """The clips that it has trained."""
    waiting: dict[Position, tuple[PlannedClip, bool]] = field(default_factory=dict)
    """Position -> (clip, skipped): messages that arrived, and that it has not taken yet."""
    held: list[tuple[Position, PlannedClip]] = field(default_factory=list)
    """The clips of the batch that is not complete."""
    reported: list[Position] = field(default_factory=list)
    """The clips that this process has reported as trained."""
    unacked: list[tuple[Position, PlannedClip, bool]] = field(default_factory=list)
    """Messages that are delivered again after a restart."""
    incarnation: int = 0
    """Of a loop: how often it has come."""
    absent: bool = False
    stopped: Position | None = None
    """Where it stopped early."""
    left: bool = False
    """Of a trainer: its final checkpoint is there, and its process has ended."""


class LedgerSimulation:
    """One job, and all who work for it."""

    def __init__(
        self, config: LedgerConfig, bad: Iterable[int] = (), bad_streams: Iterable[int] = (), batch: int = 1
    ) -> None:
        """`bad`: videos that cannot be decoded; `bad_streams`: videos whose flow cannot be extracted. `batch`: clips
        that a consumer trains, and frees, together; the last one of a phase may have fewer."""
        self.config = config
        self.batch = batch
        self.bad, self.bad_streams = set(bad), set(bad_streams)
        self.ledger = Ledger(config)
        self.seeds: list[Seed] = []
        self.extractions: list[tuple[Seed, str]] = []
        self.events: list[Progress] = []
        self.cache: dict[tuple[Position, int, str], set[str]] = {}
        self.used = self.most_used = 0
        self.finished_phases: list[int] = []
        self.issued: list[Position] = []
        self.end: CompleteJob | FailJob | None = None
        self.loses: Callable[[str], bool] = lambda consumer: False
        """Whether the bus loses the message of a clip that is on its way to this consumer."""
        starts = {name: config.start.get(name, Position(0, 0)) for name in config.parts.consumers}
        self.consumers = {
            name: Consumer(name, self._stream_of(name), position, position, position, absent=name in config.loops)
            for name, position in starts.items()
        }
        self.received: list[Progress] = []
        """Messages that the master has accounted for since the state was saved."""
        self.save_state()
        self.do(self.ledger.start())

    # --- the master's side ---

    def do(self, instructions: Sequence[Instruction]) -> None:
        """Do what the shell would do."""
        for instruction in instructions:
            match instruction:
                case IssueUnits(phase_index, units, consumers):
                    assert all(len({clip.video for clip in unit}) == 1 for unit in units), "a unit is of one video"
                    clips = [clip for unit in units for clip in unit]
                    self.seeds += [Seed(phase_index, clip, consumers) for clip in clips]
                    self.issued += [Position(phase_index, clip.index) for clip in clips]
                case PublishSkip(phase_index, clip, streams, _):
                    for consumer in self.consumers.values():
                        if consumer.stream in streams:
                            self._arrive(consumer, Position(phase_index, clip.index), clip, skipped=True)
                case ReleaseClip(phase_index, clip, consumers):
                    for name in consumers:
                        self._ack(Position(phase_index, clip.index), clip.attempt, name)
                case FinishPhase(phase_index):
                    self.finished_phases.append(phase_index)
                case TellOfLoops():
                    pass
                case CompleteJob() | FailJob():
                    self.end = instruction

    def receive(self, event: Progress) -> None:
        """Have the master handle a message."""
        self.received.append(event)
        self.do(self.handle(event))

    def handle(self, event: Progress) -> list[Instruction]:
        """What the ledger wants done after a message."""
        return [*self.ledger.account(event), *self.ledger.issue()]

    def save_state(self) -> None:
        """Write the ledger's state where the next master finds it."""
        self.saved, self.received = self.ledger.state().SerializeToString(), []

    def restart_master(self) -> None:
        """Another ledger takes over: it starts from the saved state and gets all later messages again."""
        paused = self.ledger.paused
        self.ledger = Ledger(self.config, LedgerState.FromString(self.saved))
        self.do(self.ledger.start())
        for event in self.received:
            self.do(self.handle(event))
        if paused:
            self.ledger.pause()

    def stop_and_start(self, config: LedgerConfig | None = None, late: Mapping[str, Position] | None = None) -> None:
        """Stop the job and start it again: its trainers resume from their checkpoints, and nothing else is left.

        `config`: the job as it is from now on, with other consumers or more epochs. `late`: trainers that go on in the
        run before while this one begins, up to here, and then save, leave, and come to this one. One that has trained
        everything says so, and ends.
        """
        self.flush_cache()
        self.seeds, self.extractions, self.events, self.received = [], [], [], []
        for consumer in self.consumers.values():
            consumer.position = consumer.since = consumer.checkpoint
            consumer.stepped_over = set()
            consumer.trained, consumer.durable, consumer.waiting, consumer.unacked, consumer.held = [], [], {}, [], []
        self.config = self.config if config is None else config
        for name in self.config.parts.consumers:
            beginning = Position(0, 0)
            self.consumers.setdefault(name, Consumer(name, self._stream_of(name), beginning, beginning, beginning))
        start = {name: consumer.position for name, consumer in self.consumers.items()}
        self.config = replace(self.config, start=start)
        self.ledger = Ledger(self.config)
        for name, position in (late or {}).items():
            consumer = self.consumers[name]
            clips = (Position(n, i) for n, plan in enumerate(self.config.phases) for i in range(plan.clips))
            consumer.durable = [clip for clip in clips if consumer.checkpoint <= clip < position]
            consumer.trained, consumer.position, consumer.checkpoint = list(consumer.durable), position, position
        for consumer in self.consumers.values():
            consumer.left = False
            if consumer.stopped is not None and consumer.stopped <= consumer.checkpoint:
                consumer.position = max(consumer.checkpoint, self.config.rest)
                self.do(self.ledger.account(self._stopped(consumer)))
        self.save_state()
        self.do(self.ledger.start())
        for consumer in self.consumers.values():
            consumer.reported = []
            if not self.finish(consumer.name):
                self._tell_of_resume(consumer)

    def deliver(self, number: int = 0, twice: bool = False) -> None:
        """Hand a message to the ledger; `twice`: it stays in the bag, to be delivered again."""
        self.receive(self.events[number] if twice else self.events.pop(number))

    # --- the workers' side ---

    def decode(self, number: int = 0, keep: bool = False) -> None:
        """Decode a seed; `keep`: its message stays in the bag, to be delivered again."""
        seed = self.seeds[number] if keep else self.seeds.pop(number)
        ref = self._ref(seed.phase_index, seed.clip)
        if seed.clip.video in self.bad:
            self.events.append(Progress(failed=Failed(clip=ref, stage=DECODER, reason="damaged", kind=DAMAGED)))
            return
        extracted = [s for s in self.config.parts.streams if any(self.consumers[c].stream == s for c in seed.consumers)]
        readers = {c for c in seed.consumers if self.consumers[c].stream == "rgb"} | {
            f"extractor.{s}" for s in extracted
        }
        position = Position(seed.phase_index, seed.clip.index)
        self._put((position, seed.clip.attempt, "clip"), readers)
        self.events.append(self._made(seed, "", self.actual(seed.clip, "clip")))
        for consumer in seed.consumers:
            if self.consumers[consumer].stream == "rgb":
                self._arrive(self.consumers[consumer], position, seed.clip, skipped=False)
        self.extractions += [(seed, stream) for stream in extracted]

    def gather(self) -> None:
        """Merge the workers' reports that wait in the bag: one message for each phase and stream."""
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
        position, ref = Position(seed.phase_index, seed.clip.index), self._ref(seed.phase_index, seed.clip)
        if (position, seed.clip.attempt, "clip") not in self.cache:
            failed = Failed(clip=ref, stage=EXTRACTOR, reason="gone", kind=LOST, stream=stream)
            self.events.append(Progress(failed=failed))
            return
        readers = {c for c in seed.consumers if self.consumers[c].stream == stream}
        if seed.clip.video in self.bad_streams:
            failed = Failed(clip=ref, stage=EXTRACTOR, reason="no", kind=ERROR, stream=stream)
            self.events.append(Progress(failed=failed))
        else:
            self._put((position, seed.clip.attempt, stream), readers)
            self.events.append(self._made(seed, stream, self.actual(seed.clip, stream)))
            for consumer in readers:
                self._arrive(self.consumers[consumer], position, seed.clip, skipped=False)
        self._ack(position, seed.clip.attempt, f"extractor.{stream}")

    # --- the consumers' side ---

    def take(self, name: str) -> bool:
        """Have a consumer train its next clip; False if that has not arrived."""
        consumer = self.consumers[name]
        position = self._next(consumer)
        if consumer.absent or position is None or position not in consumer.waiting:
            return False
        clip, skipped = consumer.waiting.pop(position)
        if not skipped:
            key = (position, clip.attempt, "clip" if consumer.stream == "rgb" else consumer.stream)
            ref = self._ref(position.phase_index, clip)
            if key not in self.cache:
                stage = stage_named(name.partition(".")[0])
                failed = Failed(clip=ref, stage=stage, reason="gone", kind=LOST, stream=consumer.stream, consumer=name)
                self.events.append(Progress(failed=failed))
                return True
            consumer.held.append((position, clip))
        else:
            consumer.stepped_over.add(position)
        consumer.position = Position(position.phase_index, position.index + 1)
        self._train(consumer)
        return True

    def _train(self, consumer: Consumer) -> None:
        """Have a consumer train its batch, if that is complete."""
        phase_index, index = consumer.position
        if len(consumer.held) < self.batch and index < self.config.phases[phase_index].clips:
            return
        for position, clip in consumer.held:
            self._ack(position, clip.attempt, consumer.name)
            self._report(consumer, position)
            consumer.trained.append(position)
            consumer.clips[position] = clip
        consumer.held = []

    def checkpoint(self, name: str) -> None:
        """Make durable what a consumer has trained."""
        consumer = self.consumers[name]
        consumer.checkpoint = consumer.held[0][0] if consumer.held else consumer.position
        consumer.durable = list(consumer.trained)
        consumer.unacked = [m for m in consumer.unacked if m[0] >= consumer.checkpoint]
        if name not in self.config.loops:
            self._tell_of_checkpoint(consumer)

    def _tell_of_checkpoint(self, consumer: Consumer) -> None:
        """A checkpoint is told of when all that it holds was reported."""
        self._hear_out(consumer.name)
        trainer, position = consumer.name.partition(".")[2], consumer.checkpoint.message()
        ready = CheckpointReady(trainer=trainer, position=position, final=self.done(consumer.name))
        self.events.append(Progress(checkpoint=ready))

    def _tell_of_resume(self, consumer: Consumer) -> None:
        """A trainer that goes on from a checkpoint says so; one that has stopped early has said that."""
        went_on = consumer.stopped is None or consumer.stopped > consumer.checkpoint
        if consumer.name not in self.config.loops and consumer.checkpoint > Position(0, 0) and went_on:
            trainer, position = consumer.name.partition(".")[2], consumer.checkpoint.message()
            self.events.append(Progress(checkpoint=CheckpointReady(trainer=trainer, position=position, resumed=True)))

    def finish(self, name: str) -> bool:
        """Have a trainer that has trained everything say so, and end; False if it has not, or has ended."""
        consumer = self.consumers[name]
        if consumer.left or consumer.absent or name in self.config.loops or not self.done(name):
            return False
        self.checkpoint(name)
        consumer.left = True
        return True

    def ask(self, name: str) -> None:
        """Have a consumer that waits ask for the clips that have not come, up to the last that is there, and say again
        which it has trained."""
        consumer = self.consumers[name]
        position = self._next(consumer)
        if consumer.absent or position is None:
            return
        plan, stage = self.config.phases[position.phase_index], stage_named(name.partition(".")[0])
        there = [place.index for place in consumer.waiting if place.phase_index == position.phase_index]
        for index in range(position.index, max(there, default=position.index) + 1):
            if (position.phase_index, index) not in consumer.waiting:
                clip = ClipRef(purpose=plan.purpose, epoch=plan.epoch, index=index)
                asked = Failed(clip=clip, stage=stage, kind=LOST, stream=consumer.stream, consumer=name, awaited=True)
                self.events.append(Progress(failed=asked))
        for phase_index in sorted({trained.phase_index for trained in consumer.reported}):
            indices = [trained.index for trained in consumer.reported if trained.phase_index == phase_index]
            self.events.append(self._trained(consumer, phase_index, indices, again=True))

    def lose_message(self, name: str, lost: Position) -> None:
        """The bus has lost a message that a consumer has not taken yet."""
        consumer = self.consumers[name]
        del consumer.waiting[lost]
        consumer.unacked = [message for message in consumer.unacked if message[0] != lost]

    def crash(self, name: str, older: Position | None = None) -> None:
        """Have a consumer fall back to its checkpoint. `older`: that one is damaged, and the one here is not; it asks
        for what it had trained from there to the damaged one, since nobody delivers that again.

        Its earlier messages arrive before those that it sends from now on: `essp.progress` is one partition.
        """
        self._hear_out(name)
        consumer = self.consumers[name]
        damaged, consumer.checkpoint = consumer.checkpoint, consumer.checkpoint if older is None else older
        consumer.since = min(consumer.since, consumer.checkpoint)
        consumer.durable = [clip for clip in consumer.durable if clip < consumer.checkpoint]
        consumer.position, consumer.trained, consumer.left = consumer.checkpoint, list(consumer.durable), False
        consumer.stepped_over = {clip for clip in consumer.stepped_over if clip < consumer.checkpoint}
        for phase_index, plan in enumerate(self.config.phases):
            for index in range(plan.clips):
                if consumer.checkpoint <= (phase_index, index) < damaged:
                    clip = ClipRef(purpose=plan.purpose, epoch=plan.epoch, index=index)
                    lost = Failed(clip=clip, stage=TRAINER, kind=LOST, stream=consumer.stream, consumer=name)
                    self.events.append(Progress(failed=lost))
        if consumer.stopped is not None and consumer.stopped <= consumer.checkpoint:
            consumer.position = max(consumer.checkpoint, self.config.rest)
            self.events.append(self._stopped(consumer))
        consumer.reported = []
        self._redeliver(consumer)
        self._tell_of_resume(consumer)

    def stop(self, name: str, ends: bool = False) -> None:
        """Have a trainer stop early where it is. What comes before the phases after all epochs it acks and drops.
        `ends`: nothing follows, so it takes nothing more, not even what is there."""
        consumer = self.consumers[name]
        if consumer.stopped is not None or consumer.position >= self.config.rest:
            return
        self.checkpoint(name)
        consumer.absent = ends
        consumer.stopped, consumer.position = consumer.checkpoint, self.config.rest
        consumer.reported = []
        self.events.append(self._stopped(consumer))
        self._redeliver(consumer)

    def join(self, name: str, position: Position | None) -> Position:
        """Have a loop come, in place of the process that had its name; None: with the next pass. Where it begins."""
        self._hear_out(name)
        consumer = self.consumers[name]
        consumer.incarnation += 1
        asked = None if position is None else position.message()
        self.receive(Progress(loop=Loop(consumer=name, incarnation=f"{name}/{consumer.incarnation}", position=asked)))
        [told] = [loop.position for loop in self.ledger.loops() if loop.consumer == name]
        consumer.absent, consumer.trained, consumer.durable, consumer.stepped_over = False, [], [], set()
        consumer.reported = []
        consumer.position = consumer.checkpoint = consumer.since = Position.of(told)
        self._redeliver(consumer)
        return consumer.position

    def give_sign_of_life(self, name: str) -> None:
        """Have a loop that takes part say so again."""
        consumer = self.consumers[name]
        if not consumer.absent:
            began, incarnation = consumer.since.message(), f"{name}/{consumer.incarnation}"
            self.receive(Progress(loop=Loop(consumer=name, incarnation=incarnation, position=began)))

    def leave(self, name: str) -> None:
        """Have a loop leave."""
        self._hear_out(name)
        consumer = self.consumers[name]
        self.receive(Progress(loop=Loop(consumer=name, incarnation=f"{name}/{consumer.incarnation}", left=True)))
        consumer.absent = True

    def _hear_out(self, name: str) -> None:
        """Have the master handle what a consumer has said until now."""
        sent = [event for event in self.events if _sender(event) == name]
        self.events = [event for event in self.events if _sender(event) != name]
        for event in sent:
            self.receive(event)

    def _redeliver(self, consumer: Consumer) -> None:
        redelivered, consumer.unacked, consumer.waiting, consumer.held = consumer.unacked, [], {}, []
        for position, clip, skipped in redelivered:
            self._arrive(consumer, position, clip, skipped)

    def work(self, without: Collection[str] = ()) -> None:
        """One step of every worker and consumer, except those in `without`."""
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
        """Make all that was issued, and have the master account for it; consumers take nothing."""
        while self.make_some():
            pass

    def make_some(self) -> bool:
        """One step of every worker and of the master, without consumers. False if there is nothing to do."""
        if not (self.seeds or self.extractions or self.events):
            return False
        if self.seeds:
            self.decode()
        if self.extractions:
            self.extract()
        if self.events:
            self.deliver()
        return True

    def flush_cache(self) -> None:
        """Lose all bytes."""
        self.cache.clear()
        self.used = 0

    def next_of(self, name: str) -> Position:
        """The clip that a consumer takes next, or the end."""
        return self._next(self.consumers[name]) or Position(len(self.config.phases), 0)

    def done(self, name: str) -> bool:
        """Whether a consumer has taken everything that it wants."""
        return self.consumers[name].absent or self._next(self.consumers[name]) is None

    def run(self, limit: int = 1_000) -> None:
        """Let all work until everything is done; when nothing moves the watchdog helps, and consumers ask."""
        rounds = 0
        for _ in range(limit):
            moved = False
            while self.make_some():
                moved = True
                rounds += 1
                assert rounds < 10 * limit, "the same clips are made again and again"
            for name in self.consumers:
                moved |= self.take(name) or self.finish(name)
            if self.end is not None:
                return
            if not moved:
                if all(self.done(name) for name in self.consumers) and not self.ledger.outstanding:
                    return
                self.do(self.ledger.stalled())
                for name in self.consumers:
                    self.ask(name)
                    if name in self.config.loops and self.done(name) and not self.consumers[name].absent:
                        self.leave(name)  # it has had everything; whether the master knows or not
        raise AssertionError("the job does not come to an end")

    @staticmethod
    def actual(clip: PlannedClip, part: str) -> int:
        """The bytes that a part takes up: a function of the clip, within the bounds."""
        bound = CLIP_BYTES if part == "clip" else STREAM_BYTES
        return bound // 4 + (clip.first_frame * 7 + clip.video * 13) % (bound * 3 // 4 + 1)

    def _stream_of(self, consumer: str) -> str:
        parts = self.config.parts
        return ("rgb", *parts.streams)[parts.part[consumer]]

    def _next(self, consumer: Consumer) -> Position | None:
        phase_index, index = consumer.position
        while phase_index < len(self.config.phases):
            if index < self.config.phases[phase_index].clips:
                return Position(phase_index, index)
            phase_index, index = phase_index + 1, 0
        return None

    def _arrive(self, consumer: Consumer, position: Position, clip: PlannedClip, skipped: bool) -> None:
        if self.loses(consumer.name):
            return
        if consumer.absent or consumer.left:
            consumer.unacked.append((position, clip, skipped))
            return
        if position < consumer.position:
            self._ack(position, clip.attempt, consumer.name)
            if not skipped and position not in (held for held, _ in consumer.held):
                self._report(consumer, position)
            return
        present = consumer.waiting.get(position)
        if present is None or present[0].attempt <= clip.attempt:
            consumer.waiting[position] = (clip, skipped)
            consumer.unacked.append((position, clip, skipped))

    def _put(self, key: tuple[Position, int, str], readers: set[str]) -> None:
        size = self._size(key)
        self.used += 0 if key in self.cache else size
        self.cache[key] = readers
        self.most_used = max(self.most_used, self.used)

    def _ack(self, position: Position, attempt: int, name: str) -> None:
        for key in [key for key in self.cache if key[:2] == (position, attempt)]:
            if name.startswith("extractor.") and key[2] != "clip":
                continue
            self.cache[key] = self.cache[key] - {name}
            if not self.cache[key]:
                del self.cache[key]
                self.used -= self._size(key)

    def _size(self, key: tuple[Position, int, str]) -> int:
        (phase_index, index), attempt, part = key
        return self.actual(self.config.plan_of(phase_index).clip(index, attempt), part)

    def _report(self, consumer: Consumer, position: Position) -> None:
        self.events.append(self._trained(consumer, position.phase_index, [position.index]))
        consumer.reported.append(position)

    def _trained(self, consumer: Consumer, phase_index: int, indices: Sequence[int], again: bool = False) -> Progress:
        plan, name = self.config.phases[phase_index], consumer.name
        trained = Trained(purpose=plan.purpose, epoch=plan.epoch, consumer=name, indices=indices, again=again)
        return Progress(trained=trained)

    def _stopped(self, consumer: Consumer) -> Progress:
        assert consumer.stopped is not None
        trainer, position = consumer.name.partition(".")[2], consumer.stopped.message()
        return Progress(stopped=StoppedEarly(trainer=trainer, position=position))

    def _made(self, seed: Seed, stream: str, size: int) -> Progress:
        plan, clip = self.config.phases[seed.phase_index], seed.clip
        made = Made(purpose=plan.purpose, epoch=plan.epoch, stream=stream, indices=[clip.index],
                    attempts=[clip.attempt] if clip.attempt else (), bytes=[size])  # fmt: skip
        return Progress(made=made)

    def _ref(self, phase_index: int, clip: PlannedClip) -> ClipRef:
        plan = self.config.phases[phase_index]
        return ClipRef(
            purpose=plan.purpose,
            epoch=plan.epoch,
            index=clip.index,
            attempt=clip.attempt,
            class_id=clip.class_id,
            video_id=f"v{clip.video:03d}",
            first_frame=clip.first_frame,
        )


def _sender(event: Progress) -> str:
    """The consumer that says this; empty: a worker."""
    if trainer := event.checkpoint.trainer or event.stopped.trainer:
        return f"trainer.{trainer}"
    return event.trained.consumer or event.failed.consumer
