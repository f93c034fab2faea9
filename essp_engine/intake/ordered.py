"""A consumer's clips in the order of their indices, in any order of arrival.

    bus ──poll──▶ parse ──▶ ReorderBuffer ──▶ fetch from the cache ──take──▶ clip 0, clip 1, ..., end of phase, ...

Used by every consumer of a stream (trainers, predictors): the run is then a function of the job alone, and the progress
of a consumer is one `Position`. The buffer holds messages, not bytes (except for the few values that are fetched
ahead). The outstanding clips never exceed the job's budget, so the buffer is small.

Guarantees:

- `take` returns every index of every phase, beginning at `start`, exactly once and in order, with its bytes or as
  `skipped`. It also returns the end of each phase, even if this rank has no clip in it.
- With `IntakeOptions.fetches`, values are read from the cache before their turn; the order of `take` stays the same.
- A clip that was made only for other consumers is dropped. If this consumer was left behind, the master issues the clip
  again for it, in its turn.
- A message for a clip that was already taken is acked again and dropped: delivery is at least once, and a clip that was
  made again for another consumer still waits for this one's ack. If the clip was released, the release is reported
  again, so that a new master learns the progress of this consumer.
- A redelivered record is ignored while this consumer still holds it (it waits, was taken or was released, and is not
  committed); it is committed when the consumer says so. Kafka redelivers after messages were lost, since it returns to
  the last commit.
- Clips that an earlier run made or skipped are not taken, since their video or label may have changed: this run makes
  all remaining clips again. The old bytes stay in the cache until this run's bytes replace them.
- If several messages arrive for one clip, the message with the latest fence counts, and for equal fences the latest
  attempt. A skip counts as the last attempt, since the master makes nothing after it.
- If the bytes of the next clip are gone (`CacheMiss`), it is reported as LOST. The master issues the same seed again,
  and `take` continues with that clip when its message arrives. The clips after it are looked up at the same time, and
  all missing ones are reported together: a consumer that was killed misses everything that it had released, and would
  otherwise wait for the decoders once for each clip. Bytes that `read` finds damaged (`BadFrames`) are reported in the
  same way.
- A message about a clip that another rank or predictor takes is dropped, and its bytes stay: it was sent while clips
  were dealt otherwise, and the consumer that takes the clip asks for it.
- Bytes that a worker of another release has stored (`OtherRelease`) are treated as a clip that has not arrived: during
  an upgrade this may happen to a clip any number of times, and does not count as a failure of the clip.
- If the next clip is late, the intake requests it, so that a lost message or report never blocks a consumer
  (`reports.py`).
- A message of the job's next run is left uncommitted for the intake of that run: reports of this intake about it would
  be ignored.

A consumer returns what it took in two steps. `release` frees the bytes and reports to the master, which gets its
credits back. `commit` says that no redelivery is needed. A consumer whose state becomes durable later (at a checkpoint,
or when predictions are written) commits only then: if it dies before, what it had released is delivered again, found
missing, and made again. `finish` does both at once.

`take` is used from one thread; `release`, `commit` and `finish` are thread-safe. After an error of cache or bus
(`Unavailable`) the intake is unchanged: call `take` again.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from essp_common import topics
from essp_common.bus.port import Bus, Record
from essp_common.cache.port import Buffer, FrameCache
from essp_common.errors import BadFrames, CacheMiss, EsspError, OtherRelease
from essp_common.job.position import Position
from essp_common.messages.parsing import BadMessage, parsed, refuse
from essp_common.pb.v1.messages_pb2 import PREDICT, ClipReady, ClipRef, FeatureReady, PhasePlan, Progress, Recipe
from essp_common.runtime import ids
from essp_engine.intake.fetching import Fetching
from essp_engine.intake.reorder_buffer import Put, ReorderBuffer
from essp_engine.intake.reports import LOOK_AHEAD, IntakeReports

_POLL_RECORDS = 256

Read = Callable[[FrameCache, str, int], Any]
"""Reads a stored value, or the needed part of it, from the cache, by key and size in bytes. May raise `BadFrames`."""

Prepare = Callable[[ClipRef, Any], Any]
"""From a clip and the value that was read, computes what the consumer uses."""


def whole(cache: FrameCache, key: str, size_bytes: int) -> Buffer:
    """Read a whole value."""
    return cache.get(key)


class Stored(NamedTuple):
    """A clip, and the key and size of its bytes."""

    clip: ClipRef
    key: str
    size_bytes: int


class Elsewhere(Protocol):
    """Reads and prepares clips in other processes. Thread-safe, except `close`."""

    def values(self, clips: Sequence[Stored]) -> list[Any] | None:
        """The result of `IntakeOptions.read` and `prepare` for each clip, or an `EsspError` if that failed. None: the
        caller has to do the work this time."""

    def close(self) -> None:
        """End the processes."""


@dataclass(frozen=True, slots=True)
class Share:
    """The clips of a predict job that one predictor scores: the blocks on its partitions (`topics.clip_partition`)."""

    partitions: frozenset[int]
    of: int
    """Number of partitions."""
    saved: frozenset[int] = frozenset()
    """The blocks whose scores are saved: their clips are not taken."""

    def has(self, block: int) -> bool:
        """Whether a block is on one of the partitions."""
        return topics.clip_partition(PREDICT, block * topics.BLOCK_CLIPS, self.of) in self.partitions

    def takes(self, index: int) -> bool:
        """Whether the clip at an index is to be taken."""
        block = index // topics.BLOCK_CLIPS
        return block not in self.saved and self.has(block)


@dataclass(frozen=True, slots=True)
class IntakeOptions:
    """The consumer, the stream and how its clips are read."""

    job: str
    consumer: str
    """The consumer id in acks (`trainer.<name>`, `predictor.<stream>`)."""
    stream: str
    feature: str
    """`rgb`: the clips themselves."""
    worker: str = ""
    """Name of this process in messages."""
    fence: int = 0
    since: int = 0
    """The fence with which this run of the job began; 0: not known."""
    run_of: Callable[[int], int | None] | None = None
    """Returns the run of a fence, as the fence with which that run began, or None while it is unknown
    (`ControlFeed.run_of`). Without such a function all messages belong to this run."""
    rank: int = 0
    world_size: int = 1
    """Rank r takes the indices whose partition is r modulo the world size."""
    of: int = topics.DATA_PARTITIONS
    """Number of partitions of the stream's topic; the intake takes the number of its bus."""
    share: Share | None = None
    """The clips that a predictor takes; None: those of the rank."""
    fetches: int = 0
    """Clips that are read from the cache at the same time, before their turn, on separate threads; 0: each is read when
    it is taken."""
    read: Read = whole
    """Reads a stored value. Its result is the `Delivery.value`."""
    prepare: Prepare | None = None
    """Processes the value at once, on the thread that has read it: passing clips between threads costs Python as much
    as fetching them."""
    set_up_thread: Callable[[], object] | None = None
    """Called once on each thread that reads."""
    elsewhere: Elsewhere | None = None
    """Runs `read` and `prepare` in other processes, while the threads wait. The intake closes it. None: the threads run
    them."""
    fits: Callable[[ClipRef], bool] | None = None
    """Whether a clip can belong to the job, by its target; other clips are refused. None: all can."""

    @property
    def group(self) -> str:
        """The consumer group: one per consumer and job, shared by its ranks, which have fixed partitions."""
        return ids.consumer_group(self.consumer, self.job)

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions of this rank or share."""
        if self.share is not None:
            return tuple(sorted(self.share.partitions))
        return tuple(range(self.rank, self.of, self.world_size))

    def owns(self, index: int) -> bool:
        """Whether this rank takes the clip at `index`: `rank_of`, without a call for each clip."""
        if self.share is not None:
            return self.share.takes(index)
        return index % self.of % self.world_size == self.rank


def rank_of(index: int, world_size: int, partitions: int) -> int:
    """The rank that takes the clip at `index`: partitions are dealt to ranks in turn."""
    return index % partitions % world_size


def largest_share(clips: int, world_size: int, partitions: int = topics.DATA_PARTITIONS) -> int:
    """The most clips that one rank takes from any `clips` consecutive clips.

    If the ranks do not divide the partitions, the assignment restarts within the range: a share may be larger than
    `clips / world_size` rounded up.
    """
    if partitions % world_size == 0:
        return -(-clips // world_size)
    rounds, rest = divmod(clips, partitions)
    begins = range(partitions)
    whole = Counter(rank_of(index, world_size, partitions) for index in begins)
    part = (Counter(rank_of(index, world_size, partitions) for index in range(begin, begin + rest)) for begin in begins)
    return max(rounds * whole[rank] + counts[rank] for counts in part for rank in whole)


@dataclass(slots=True, eq=False)
class Delivery:
    """One clip of the stream, in its turn."""

    phase_index: int
    clip: ClipRef
    key: str
    value: Any
    """The stored bytes (empty when skipped), to decode with `essp_engine.video.codec`, or the result of
    `IntakeOptions.read`."""
    skipped: str
    """Not empty: there is no clip at this index; the reason."""
    record: Record

    def take_value(self) -> Any:
        """The value, which this delivery then drops: it may be megabytes, and a delivery is kept until it is
        committed."""
        value, self.value = self.value, b""
        return value

    @property
    def position(self) -> Position:
        """The position of a consumer that has finished this clip and all before it."""
        return Position(self.phase_index, self.clip.index + 1)


@dataclass(frozen=True, slots=True)
class PhaseEnd:
    """All clips of a phase were taken."""

    phase_index: int
    plan: PhasePlan


@dataclass(slots=True, eq=False)
class _Arrival:
    """A message about a clip. Not frozen, unlike `Delivery`: one is created for each clip, in a third of the time."""

    clip: ClipRef
    key: str
    size_bytes: int
    skipped: str
    record: Record
    fence: int
    """The fence of the seed, or of the master that skips the clip; it says which run's bytes are missing. 0: not
    known."""


class _Dropped(NamedTuple):
    """A useless message, kept until cache, bus and master know."""

    arrival: _Arrival
    ack: bool
    trained: bool


class OrderedIntake:
    """Takes one stream of one job in index order."""

    def __init__(
        self,
        bus: Bus,
        cache: FrameCache,
        options: IntakeOptions,
        phases: Sequence[PhasePlan],
        start: Position,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`phases`: as in the job's snapshot. `start`: the first phase and index to take."""
        self._bus = bus
        self._cache = cache
        options = replace(options, of=bus.partitions)
        self._options = options
        self._phases = list(phases)
        self._phase_of = {(plan.purpose, plan.epoch): i for i, plan in enumerate(self._phases)}
        self._buffer: ReorderBuffer[_Arrival] = ReorderBuffer([p.clips for p in phases], start, options.owns)
        self._clock = clock
        self._reports = IntakeReports(
            self._phases, options.job, options.consumer, options.stream, options.worker, options.fence
        )
        self._undecided: list[_Arrival] = []
        """Messages whose run is not known yet."""
        self._dropped: deque[_Dropped] = deque()
        self._in_hand: dict[int, dict[int, int]] = {partition: {} for partition in options.partitions}
        """Unfinished records: partition -> offset -> the latest `Record.delivery`."""
        topic = topics.stream_topic(options.feature)
        self._parse = _parse_clip if topic == topics.CLIPS else _parse_feature
        bus.ensure_topics({topic: topics.partitions(topic, bus.partitions)})
        self._subscription = bus.subscribe([topic], options.group, partitions=options.partitions)
        self._fetching = Fetching(
            self._read, self._read_ahead, options.fetches, options.consumer, options.set_up_thread
        )

    @property
    def finished(self) -> bool:
        """Every phase is over."""
        return self._buffer.finished

    @property
    def waiting(self) -> int:
        """Clips that arrived before their turn."""
        return len(self._buffer)

    def owns(self, index: int) -> bool:
        """Whether the clip at `index` of any phase is this rank's."""
        return self._options.owns(index)

    def take(self, timeout_s: float = 0.1) -> Delivery | PhaseEnd | None:
        """The next clip or end of a phase; None if it does not arrive within about `timeout_s`, or all phases are over.

        When all phases are over, messages that still arrive are acked and dropped.
        """
        if self.finished:
            self._poll(timeout_s)
            return None
        if (over := self._buffer.end_phase()) is not None:
            return PhaseEnd(over, self._phases[over])
        # The bus is polled only when the next clip has not arrived, and then for many records at once.
        taken = self._take_waiting()
        if taken is None:
            self._poll(timeout_s)
            taken = self._take_waiting()
        if taken is None:
            self._publish(self._reports.late(self._buffer.next, self._buffer.missing(), self._clock()))
        return taken

    def release(self, items: Iterable[Delivery]) -> None:
        """Finish these clips: free their bytes and report that durably to the master."""
        items = list(items)
        # In this order. A message that is redelivered from now on is for a released clip, not a held one. The bytes are
        # gone before the master counts them as free; if this process dies in between, its clips are redelivered, found
        # missing, and made again.
        for item in items:
            self._buffer.release(Position(item.phase_index, item.clip.index))
        clips = [item.clip for item in items if not item.skipped]
        self._cache.ack_all([item.key for item in items if not item.skipped], self._options.consumer)
        self._publish(self._reports.trained(clips))

    def commit(self, records: Iterable[Record]) -> None:
        """These records, which may be `bare`, need no redelivery."""
        for record in records:
            self._done(record)

    def finish(self, items: Sequence[Delivery]) -> None:
        """`release` and `commit`."""
        self.release(items)
        self.commit(item.record for item in items)

    def request_rebuild_range(self, start: Position, stop: Position) -> None:
        """Request all of this rank's clips between these positions again, although their messages were committed.

        For a consumer whose state is older than its last commit.
        """
        self._publish(self._reports.rebuild(start, stop, self.owns))

    def close(self) -> None:
        """Leave the group. Uncommitted records are delivered again."""
        self._fetching.close()  # first: its threads use the other processes and wait for them
        if self._options.elsewhere is not None:
            self._options.elsewhere.close()
        self._subscription.close()

    def _take_waiting(self) -> Delivery | None:
        arrival = self._buffer.peek()
        if arrival is None:
            return None
        value: Any = b""
        if not arrival.skipped:
            try:
                value = self._fetching.value(arrival, self._upcoming)
            except CacheMiss as miss:
                self._missed(arrival, miss)
                return None
            except BadFrames as error:
                self._cache.ack(arrival.key, self._options.consumer)
                self._publish([self._reports.lost(arrival.clip, f"{arrival.key}: {error}")])
                self._done(arrival.record)
                self._buffer.discard(self._buffer.next)
                return None
        # Only now that the value is read: after an error, the same clip is the next one.
        position = self._buffer.take()
        return Delivery(position.phase_index, arrival.clip, arrival.key, value, arrival.skipped, arrival.record)

    def _upcoming(self, count: int) -> list[_Arrival]:
        return [arrival for arrival in self._buffer.upcoming(count) if not arrival.skipped]

    def _read(self, arrival: _Arrival) -> Any:
        value = self._options.read(self._cache, arrival.key, arrival.size_bytes)
        prepare = self._options.prepare
        return value if prepare is None else prepare(arrival.clip, value)

    def _read_ahead(self, arrivals: Sequence[_Arrival]) -> list[Any]:
        if self._options.elsewhere is not None:
            stored = [Stored(arrival.clip, arrival.key, arrival.size_bytes) for arrival in arrivals]
            if (made := self._options.elsewhere.values(stored)) is not None:
                return made
        values: list[Any] = []
        for arrival in arrivals:
            try:
                values.append(self._read(arrival))
            except EsspError as error:
                values.append(error)
        return values

    def _missed(self, arrival: _Arrival, miss: CacheMiss) -> None:
        """The bytes of the next clip are gone: request them again, with those of later clips that are gone, too. New
        messages will replace the present ones."""
        gone = [one for one in self._upcoming(LOOK_AHEAD) if one is arrival or not self._cache.holds(one.key)]
        awaited = isinstance(miss, OtherRelease)
        # Reported before the records are committed: if this process dies in between, they are redelivered and found
        # missing again. In the other order, these clips would never be requested.
        self._publish(
            self._reports.lost(
                one.clip, str(miss) if one is arrival else f"{one.key} is not in the cache", one.fence, awaited
            )
            for one in gone
        )
        phase_index = self._buffer.next.phase_index
        for one in gone:
            self._done(one.record)
            self._buffer.discard(Position(phase_index, one.clip.index))

    def _poll(self, timeout_s: float) -> None:
        undecided, self._undecided = self._undecided, []
        for early in undecided:  # `run_of` may know their runs now; the others are kept again
            self._arrived(early)
        for record in self._subscription.poll(_POLL_RECORDS, timeout_s):
            # Before anything else: a redelivered record is not a second message, but its latest delivery is the
            # one to commit.
            in_hand = self._in_hand[record.partition]
            again = record.offset in in_hand
            in_hand[record.offset] = record.delivery
            if again:
                continue
            try:
                arrival = self._parse(record, self._options)
                self._check_fits(arrival)
            except BadMessage as error:
                refuse(self._options.consumer, record, error)
                arrival = None
            if arrival is None:
                self._done(record)
            else:
                self._arrived(arrival)
        self._settle()

    def _check_fits(self, arrival: _Arrival | None) -> None:
        fits = self._options.fits
        if arrival is not None and fits is not None and not fits(arrival.clip):
            record = arrival.record
            raise BadMessage(
                f"record {record.offset} of {record.topic}[{record.partition}]: a clip of a class or label that job "
                f"{self._options.job} does not have"
            )

    def _arrived(self, arrival: _Arrival) -> None:
        if (of_this_run := self._is_of_this_run(arrival)) is None:
            self._undecided.append(arrival)
        if not of_this_run:
            return  # a record of the next run stays uncommitted: it is delivered again, to the intake of that run
        phase_index = self._phase_of.get((arrival.clip.purpose, arrival.clip.epoch))
        if phase_index is None or arrival.clip.index >= self._phases[phase_index].clips:  # not in any phase of this run
            if arrival.fence <= self._options.fence:
                self._drop(arrival, ack=True)
            return  # perhaps of the next run: it is delivered again, to the intake of that run
        if not self._options.owns(arrival.clip.index):
            share = self._options.share
            over = share is not None and arrival.clip.index // topics.BLOCK_CLIPS in share.saved
            return self._drop(arrival, ack=over, trained=over and not arrival.skipped)
        position = Position(phase_index, arrival.clip.index)
        # From an earlier run. Its bytes stay until this run's bytes replace them: an ack could free the new ones.
        if 0 < arrival.fence < self._options.since and (arrival.skipped or position >= self._buffer.next):
            return self._drop(arrival, ack=False)
        version = (arrival.fence, arrival.clip.attempt, bool(arrival.skipped))
        outcome, other = self._buffer.put(position, version, arrival)
        match outcome:
            case Put.PASSED:
                self._drop(arrival, ack=True, trained=not arrival.skipped)
            case Put.HELD:
                self._drop(arrival, ack=True)
            # One of two messages for a clip is dropped. If their keys are equal, the bytes belong to the one that
            # stays.
            case Put.REPLACED if other is not None:
                self._drop(other, ack=arrival.key != other.key)
            case Put.DUPLICATE if other is not None:
                self._drop(arrival, ack=arrival.key != other.key)

    def _is_of_this_run(self, arrival: _Arrival) -> bool | None:
        """Whether a message is from this run and not from one before it; None: not known yet."""
        options = self._options
        if arrival.fence <= options.fence or options.run_of is None:
            return True
        run = options.run_of(arrival.fence)
        return None if run is None else run <= options.since

    def _drop(self, arrival: _Arrival, ack: bool, trained: bool = False) -> None:
        self._dropped.append(_Dropped(arrival, ack, trained))

    def _settle(self) -> None:
        """Report, ack and commit what was dropped. After an error, the next poll continues with the rest."""
        while self._dropped:
            arrival, ack, trained = self._dropped[0]
            if trained:
                self._publish(self._reports.trained([arrival.clip]))
            if ack and arrival.key:
                self._cache.ack(arrival.key, self._options.consumer)
            self._done(arrival.record)
            self._dropped.popleft()  # last: each step before may fail, and can be repeated

    def _done(self, record: Record) -> None:
        # In this order: if the bus has returned to the last commit and will redeliver this record, it does not count as
        # done there, and must not be skipped.
        latest = self._in_hand[record.partition].pop(record.offset, record.delivery)
        self._subscription.done(record if latest == record.delivery else replace(record, delivery=latest))

    def _publish(self, reports: Iterable[Progress]) -> None:
        """Report durably to the master."""
        published = False
        for report in reports:
            self._bus.publish(topics.PROGRESS, self._options.job.encode(), report.SerializeToString())
            published = True
        if published:
            self._bus.flush()


def _parse_clip(record: Record, options: IntakeOptions) -> _Arrival | None:
    message = parsed(ClipReady, record)
    if message.clip.job != options.job or not (message.skipped or _for(options, message.recipe)):
        return None
    return _Arrival(message.clip, message.key, message.bytes, message.skipped, record, message.fence)


def _for(options: IntakeOptions, recipe: Recipe) -> bool:
    """Whether a clip was made for this consumer. If it was left behind, it gets the clip later, in its turn."""
    return not recipe.streams or any(options.consumer in stream.consumers for stream in recipe.streams)


def _parse_feature(record: Record, options: IntakeOptions) -> _Arrival | None:
    message = parsed(FeatureReady, record)
    if message.clip.job != options.job or message.stream != options.stream:
        return None
    if message.consumers and options.consumer not in message.consumers:
        return None
    return _Arrival(message.clip, message.key, message.bytes, message.skipped, record, message.fence)
