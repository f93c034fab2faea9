"""Simulates a job with its real ledger and real intakes, over a bus and a cache in memory; workers are simple.

One thing happens at a time, and chance says which: so consumers are killed between any two of their steps, reports are
late, the cache is emptied, masters follow one another, and runs too, which trainers leave late. One that has trained
everything ends, even in a run that is over. What a consumer has called done is committed some time later, as on Kafka.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from essp_common import topics
from essp_common.bus.memory import MemoryBus, MemorySubscription
from essp_common.bus.port import Record
from essp_common.bus.tenant import TenantBus
from essp_common.cache.memory import MemoryCache
from essp_common.cache.port import clip_key, stream_key
from essp_common.errors import CacheMiss
from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import (
    EXTRACTOR,
    LOST,
    CheckpointReady,
    ClipReady,
    ClipRef,
    Failed,
    FeatureReady,
    Made,
    PhasePlan,
    Progress,
    Recipe,
    StreamRequest,
)
from essp_engine.intake.ordered import Delivery, IntakeOptions, OrderedIntake, PhaseEnd
from essp_engine.planning.planned_clip import PlannedClip
from essp_engine.seeding.instructions import Instruction, IssueUnits, ReleaseClip
from essp_master.ledger.ledger import Ledger
from tests.harness.ledger_config import CLIP_BYTES, STREAM_BYTES, ledger_config

JOB, FLOW = "job", "flow"
BATCH = 4
_EXTRACTOR = f"extractor.{FLOW}"
_BEGINNING = Position(0, 0)
_CLIP = CLIP_BYTES + STREAM_BYTES
_MOST_RUNS = 3
_PATIENCE = 20
"""Rounds without any sign of work until the ledger is told that the job has stalled."""


class _Subscription:
    """Commits late."""

    def __init__(self, inner: MemorySubscription, chance: random.Random) -> None:
        self._inner, self._chance = inner, chance
        self._done: list[Record] = []

    def poll(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        return self._inner.poll(self._chance.choice([1, 2, 5, max_records]), 0)

    def done(self, record: Record) -> None:
        self._done.append(record)

    def commit(self) -> None:
        for record in self._done:
            self._inner.done(record)
        self._done.clear()

    def pause(self) -> None:
        self._inner.pause()

    def resume(self) -> None:
        self._inner.resume()

    @property
    def partitions(self) -> int:
        return self._inner.partitions

    def owned(self, topic: str) -> frozenset[int]:
        return self._inner.owned(topic)

    def close(self) -> None:
        """Without a commit."""
        self._inner.close()


class _LateCommits(TenantBus):
    """The members of its groups commit late."""

    def __init__(self, bus: MemoryBus, chance: random.Random) -> None:
        super().__init__(bus, "")
        self._memory, self._chance = bus, chance
        self.loses = 0.0
        """How many of the messages of clips, and of the reports that clips are trained."""

    def publish(self, topic: str, key: bytes, value: bytes, partition: int | None = None) -> None:
        """As a bus does it."""
        may_be_lost = topic != topics.PROGRESS or Progress.FromString(value).HasField("trained")
        if may_be_lost and self._chance.random() < self.loses:
            return
        super().publish(topic, key, value, partition)

    def subscribe(
        self, topics: Sequence[str], group: str | None, partitions: Sequence[int] | None = None
    ) -> _Subscription:
        return _Subscription(self._memory.subscribe(topics, group, partitions), self._chance)


@dataclass(eq=False)
class Trainer:
    """One trainer, up or not."""

    name: str
    stream: str
    saved: Position = _BEGINNING
    trained: list[Position] = field(default_factory=list)
    """All clips that its state holds, in the order in which it trained them."""
    intake: OrderedIntake | None = None
    fence: int = 0
    position: Position = _BEGINNING
    saving: Position | None = None
    """Of a checkpoint that is being written."""
    batch: list[Delivery] = field(default_factory=list)
    releases: list[Delivery] = field(default_factory=list)
    unsaved: list[tuple[Position, Record]] = field(default_factory=list)
    phases: Sequence[PhasePlan] = ()
    """Of the run that it takes part in."""

    @property
    def is_done(self) -> bool:
        """Whether it has saved what it has made of all clips."""
        return self.saved.phase_index == len(self.phases)


class JobSimulation:
    """One job, and all who work for it."""

    def __init__(self, seed: int, empties: bool = False, loses: float = 0.0) -> None:
        """`empties`: the cache is emptied now and then. `loses`: so many messages are lost."""
        self._chance, self._empties = random.Random(seed), empties
        self._bus, self._cache = _LateCommits(MemoryBus(), self._chance), MemoryCache()
        self._bus.loses = loses
        self._bus.ensure_topics({topic: topics.partitions(topic) for topic in (*topics.FIXED, topics.features(FLOW))})
        self._progress = self._bus.subscribe([topics.PROGRESS], "master")
        self.trainers = [Trainer("trainer.rgb", "rgb"), Trainer("trainer.flow", FLOW)]
        self._epochs, self._runs, self._fence, self._now_s = 1, 0, 0, 0.0
        self.stalls = 0
        """How often nothing moved until what was outstanding was issued again."""
        self._known = 0
        """The fence of which workers know."""
        self._seeds: list[tuple[int, PhasePlan, PlannedClip, Sequence[str]]] = []
        self._clips: list[ClipReady] = []
        self._reports: list[Progress] = []
        self._acks: list[str] = []
        self._lags = self._chance.random() < 0.5
        """Trainers that lag get catch-up queues; else all keep within so many passes."""
        self._begin_run()

    def run(self, steps: int) -> None:
        """So many steps of chance, then let all work until the job is over. Fails if that does not come."""
        for _ in range(steps):
            self._now_s += 0.1
            self._step()
        for trainer in self.trainers:
            if trainer.fence < self._since:
                self._leave(trainer)
            self._start(trainer)
        idle = 0
        while not self._is_over():
            self._now_s += 5.0
            idle = 0 if self._work() else idle + 1
            assert idle < 3 * _PATIENCE, self._story()
            if idle and idle % _PATIENCE == 0:
                self.stalls += 1
                self._do(self._ledger.stalled())

    @property
    def clips(self) -> list[Position]:
        """All clips of the job."""
        return [Position(n, index) for n, plan in enumerate(self._config.phases) for index in range(plan.clips)]

    # --- chance ---

    def _step(self) -> None:
        trainer = self._chance.choice(self.trainers)
        rare: list[tuple[float, Callable[[], object]]] = [
            (0.006, lambda: self._kill(trainer)),
            (0.015, lambda: self._start(trainer)),
            (0.003, self._begin_next_run),
            (0.003, self._fail_over),
            (0.003, self._learn),
            (0.003 * self._empties, lambda: self._cache.purge("")),
            (0.02, lambda: self._leave_late(trainer)),
        ]
        for odds, act in rare:
            if self._chance.random() < odds:
                act()
        acts: list[Callable[[], object]] = [self._decode, self._extract, self._report, self._hear]
        if trainer.intake is not None:
            acts += [lambda: self._train(trainer)] * 4
            acts += [lambda: self._release(trainer), lambda: self._save(trainer), lambda: _commit(trainer)]
        self._chance.choice(acts)()

    def _leave_late(self, trainer: Trainer) -> None:
        if trainer.intake is not None and trainer.fence < self._since:
            self._leave(trainer)
            self._start(trainer)

    def _learn(self) -> None:
        self._known = self._fence

    def _work(self) -> bool:
        """Let everybody do what can be done. Whether anything was done."""
        moved = False
        for act in (self._decode, self._extract, self._report, self._hear):
            while act():
                moved = True
        for trainer in self.trainers:
            while self._train(trainer):
                moved = True
            self._release(trainer)
            if not trainer.position.index:  # as at the end of a pass
                self._save(trainer, at_once=True)
        return moved

    def _is_over(self) -> bool:
        ended = all(trainer.saved.phase_index == len(self._config.phases) for trainer in self.trainers)
        return ended and self._ledger.closed == len(self.clips)

    def _story(self) -> str:
        return f"{self._ledger.closed} of {len(self.clips)} clips are closed; " + "; ".join(
            f"{t.name} waits for {t.position}, {len(t.batch)} in hand" for t in self.trainers
        )

    # --- the master ---

    def _begin_run(self) -> None:
        self._fence += 1
        self._since, self._runs = self._fence, self._runs + 1
        self._config = ledger_config(
            epochs=self._epochs,
            clips=3 * BATCH,
            videos=6,
            consumers={trainer.name: trainer.stream for trainer in self.trainers},
            start={trainer.name: trainer.saved for trainer in self.trainers},
            budget=(36 if self._lags else 9) * _CLIP,
            catch_up=9 * _CLIP if self._lags else 0,
            lead=0 if self._lags else 2,
        )
        self._ledger = Ledger(self._config)
        self._do(self._ledger.start())

    def _begin_next_run(self) -> None:
        """One more epoch, one more trainer, or neither. Some trainers have not left by then."""
        if self._runs == _MOST_RUNS:
            return
        for trainer in self.trainers:
            if self._chance.random() < 0.5:
                self._leave(trainer)
        if self._runs == 1 and self._chance.random() < 0.7:
            self.trainers.append(Trainer("trainer.late", "rgb"))
        self._epochs += self._chance.random() < 0.5
        self._begin_run()

    def _fail_over(self) -> None:
        self._fence += 1
        self._ledger = Ledger(self._config, self._ledger.state())
        self._do([*self._ledger.start(), *self._ledger.stalled()])

    def _hear(self) -> bool:
        works = False
        for record in self._progress.poll(100, 0):
            heard = Progress.FromString(record.value)
            works |= not (heard.failed.awaited or heard.trained.again)
            if self._since <= heard.fence <= self._fence:
                self._do([*self._ledger.account(heard), *self._ledger.issue()])
        return works

    def _do(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case IssueUnits(phase_index, units, consumers):
                    plan = self._config.phases[phase_index]
                    self._seeds += [(self._fence, plan, clip, consumers) for unit in units for clip in unit]
                case ReleaseClip(phase_index, clip, consumers):
                    for trainer in self.trainers:
                        if trainer.name in consumers:
                            key = _key(_ref(self._config.phases[phase_index], clip), trainer.stream)
                            self._cache.ack(key, trainer.name)

    # --- workers ---

    def _decode(self) -> bool:
        if not self._seeds:
            return False
        fence, plan, clip, consumers = self._seeds.pop(self._chance.randrange(min(3, len(self._seeds))))
        if fence >= self._known:
            ref, wanting = _ref(plan, clip), [t for t in self.trainers if t.name in consumers]
            by_stream = {s: [t.name for t in wanting if t.stream == s] for s in ("rgb", FLOW)}
            readers = by_stream["rgb"] + ([_EXTRACTOR] if by_stream[FLOW] else [])
            streams = [StreamRequest(stream=s, feature=s, consumers=names) for s, names in by_stream.items()]
            ready = ClipReady(clip=ref, key=_key(ref), recipe=Recipe(streams=streams), fence=fence)
            self._cache.put(ready.key, b"clip", readers, 1e9)
            self._send(topics.CLIPS, ref, ready.SerializeToString())
            self._made(ref, fence, "", CLIP_BYTES)
            if by_stream[FLOW]:
                self._clips.append(ready)
        return True

    def _extract(self) -> bool:
        if not self._clips:
            return False
        ready = self._clips.pop(0)
        ref, fence, names = ready.clip, ready.fence, ready.recipe.streams[1].consumers
        if fence < self._known:
            return True
        try:
            self._cache.get(ready.key)
        except CacheMiss:
            failed = Failed(clip=ref, stage=EXTRACTOR, kind=LOST, stream=FLOW, consumer=_EXTRACTOR)
            self._tell(Progress(job=JOB, fence=fence, failed=failed))
            return True
        key = _key(ref, FLOW)
        self._cache.put(key, b"flow", names, 1e9)
        message = FeatureReady(clip=ref, stream=FLOW, key=key, consumers=names, fence=fence)
        self._send(topics.features(FLOW), ref, message.SerializeToString())
        self._made(ref, fence, FLOW, STREAM_BYTES)
        self._acks.append(ready.key)
        return True

    def _made(self, ref: ClipRef, fence: int, stream: str, size: int) -> None:
        made = Made(purpose=ref.purpose, epoch=ref.epoch, stream=stream, indices=[ref.index], bytes=[size])
        self._reports.append(Progress(job=JOB, fence=fence, made=made))

    def _report(self) -> bool:
        """Workers report together what they made, some time later, and only then free what they made it of."""
        reports, self._reports = self._reports, []
        for report in reports:
            self._tell(report)
        acks, self._acks = self._acks, []
        for key in acks:
            self._cache.ack(key, _EXTRACTOR)
        return bool(reports or acks)

    def _tell(self, progress: Progress) -> None:
        self._bus.publish(topics.PROGRESS, JOB.encode(), progress.SerializeToString())

    def _send(self, topic: str, ref: ClipRef, value: bytes) -> None:
        self._bus.publish(topic, b"", value, ref.index % topics.DATA_PARTITIONS)

    # --- trainers ---

    def _start(self, trainer: Trainer) -> None:
        if trainer.intake is not None:
            return
        trainer.fence, trainer.position, trainer.saving = self._fence, trainer.saved, None
        trainer.phases = self._config.phases
        if trainer.is_done:
            self._tell_of_checkpoint(trainer)
            return
        trainer.batch, trainer.releases, trainer.unsaved = [], [], []
        trainer.trained = [place for place in trainer.trained if place < trainer.saved]
        options = IntakeOptions(
            job=JOB,
            consumer=trainer.name,
            stream=trainer.stream,
            feature=trainer.stream,
            fence=self._fence,
            since=self._since,
            run_of=lambda fence: self._since if fence <= self._fence else None,
        )
        trainer.intake = OrderedIntake(
            self._bus, self._cache, options, self._config.phases, trainer.saved, lambda: self._now_s
        )
        if trainer.saved != _BEGINNING:
            self._tell_of_checkpoint(trainer)

    def _kill(self, trainer: Trainer) -> None:
        """What it called done and did not commit is delivered again; it may have freed what it did not report."""
        if trainer.intake is not None:
            if self._chance.random() < 0.4:
                self._cache.ack_all([item.key for item in trainer.releases], trainer.name)
            trainer.intake.close()
            trainer.intake = None

    def _leave(self, trainer: Trainer) -> None:
        if trainer.intake is not None:
            self._save(trainer, at_once=True)
            self._end(trainer)

    def _end(self, trainer: Trainer) -> None:
        if trainer.intake is not None:
            _commit(trainer)
            trainer.intake.close()
            trainer.intake = None

    def _tell_of_checkpoint(self, trainer: Trainer) -> None:
        name, position = trainer.name.partition(".")[2], trainer.saved.message()
        ready = CheckpointReady(trainer=name, position=position, final=trainer.is_done)
        self._tell(Progress(job=JOB, fence=trainer.fence, checkpoint=ready))

    def _train(self, trainer: Trainer) -> bool:
        item = None if trainer.intake is None else trainer.intake.take(0)
        if isinstance(item, PhaseEnd):
            trainer.position = Position(item.phase_index + 1, 0)
        elif item is not None:
            trainer.batch.append(item)
            if len(trainer.batch) == BATCH or item.position.index == self._size(item.phase_index):
                places = [Position(each.phase_index, each.clip.index) for each in trainer.batch]
                trainer.trained += places
                trainer.unsaved += zip(places, [each.record.bare for each in trainer.batch], strict=True)
                trainer.releases += trainer.batch
                trainer.position, trainer.batch = item.position, []
        return item is not None

    def _size(self, phase_index: int) -> int:
        return self._config.phases[phase_index].clips

    def _release(self, trainer: Trainer) -> None:
        if trainer.intake is not None and trainer.releases:
            trainer.intake.release(trainer.releases)
            trainer.releases = []

    def _save(self, trainer: Trainer, at_once: bool = False) -> None:
        """Begin a checkpoint, or end one: it is written meanwhile."""
        position, intake = trainer.position, trainer.intake
        if intake is None or (position.index and position.index == self._size(position.phase_index)):
            return
        self._release(trainer)
        if at_once or trainer.saving is not None:
            before = trainer.saved
            trainer.saved = saved = position if at_once or trainer.saving is None else trainer.saving
            trainer.saving = None
            intake.commit(record for place, record in trainer.unsaved if place < saved)
            trainer.unsaved = [(place, record) for place, record in trainer.unsaved if place >= saved]
            if saved != before:
                self._tell_of_checkpoint(trainer)
            if trainer.is_done:
                self._end(trainer)
        else:
            trainer.saving = position


def _commit(trainer: Trainer) -> None:
    assert trainer.intake is not None
    subscription = trainer.intake._subscription
    assert isinstance(subscription, _Subscription)
    subscription.commit()


def _ref(plan: PhasePlan, clip: PlannedClip) -> ClipRef:
    return ClipRef(job=JOB, purpose=plan.purpose, epoch=plan.epoch, index=clip.index, attempt=clip.attempt)


def _key(ref: ClipRef, stream: str = "rgb") -> str:
    key = clip_key(JOB, ref.purpose, ref.epoch, ref.index, ref.attempt)
    return key if stream == "rgb" else stream_key(key, stream)
