"""A consumer's clips in the order of their indices, whatever order they arrive in.

    bus ──poll──▶ parse ──▶ ReorderBuffer ──▶ fetch from the cache ──take──▶ clip 0, clip 1, ..., end of phase, ...

Used by every consumer of a stream (trainers, predictors): the run is then a function of the job alone, and "how far am
I" is one `Position`. The buffer holds messages, not bytes (but for the few values that are fetched ahead), and the
master never has more outstanding than the job's budget, so it is small.

Guarantees:

- `take` returns every index of every phase from `start` on exactly once, in order, with its bytes or as `skipped`. It
  also returns the end of each phase, even if this rank has no clip in it.
- With `IntakeOptions.fetches`, values are read from the cache before their turn; the order of `take` stays the same.
- A clip that was made for other consumers alone is dropped. If this consumer was left behind, the master makes the clip
  again for it, in its turn.
- A message for a clip that was taken before is acked again and dropped: delivery is at least once, and a clip that was
  made again for another consumer still waits for this one's ack. If the clip was released, that is reported again, so
  that a new master learns how far this consumer is.
- A record that is delivered again while this consumer has it in hand (it waits, was taken or was released, and is not
  committed) is ignored; it is committed when the consumer says so. Kafka delivers again where messages were lost, since
  it goes back to the last commit.
- Clips that an earlier run made or skipped are not taken, since their video or label may be another one by now: this
  run makes all that is still to come again. The old bytes stay in the cache until those of this run replace them.
- Of several messages for one clip, that of the latest fence counts, and among those that of the latest attempt. A skip
  counts as the last attempt, since the master makes nothing after it.
- If the bytes of the next clip are gone (`CacheMiss`), it is reported as LOST. The master issues the same seed again,
  and `take` continues with that clip when its message arrives. The clips behind it are looked up at the same time, and
  all that are gone are reported together: a consumer that was killed misses everything that it had released, and would
  otherwise wait for the decoders once for each clip. Bytes that `read` finds damaged (`BadFrames`) are reported in the
  same way.
- Bytes that a worker of another release has stored (`OtherRelease`) are asked for as a clip that has not come: during
  an upgrade that may happen to a clip any number of times, and is not held against it.
- If the next clip has not come for long, the intake asks for it, so that no lost message or report holds a consumer up
  for ever (`reports.py`).
- A message of the next run of the job is left for the intake of that run, uncommitted: what this one reported about it
  would count for nothing.

A consumer gives back what it took in two steps. `release` frees the bytes and reports to the master, which gets its
credits back. `commit` says that no redelivery is needed. A consumer whose state becomes durable later (at a checkpoint,
or when predictions are written) commits only then: if it dies before, what it had released is delivered again, found
missing, and made again. `finish` does both at once.

`take` is used from one thread; `release`, `commit` and `finish` are thread-safe. An error of cache or bus
(`Unavailable`) leaves the intake as it was: take again.
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
from essp_common.pb.v1.messages_pb2 import ClipReady, ClipRef, FeatureReady, PhasePlan, Progress, Recipe
from essp_common.runtime import ids
from essp_engine.intake.fetching import Fetching
from essp_engine.intake.reorder_buffer import Put, ReorderBuffer
from essp_engine.intake.reports import LOOK_AHEAD, IntakeReports

_POLL_RECORDS = 256

Read = Callable[[FrameCache, str, int], Any]
"""From the cache, by key and size in bytes: a stored value, or what the consumer needs of it. May raise `BadFrames`."""

Prepare = Callable[[ClipRef, Any], Any]
"""From a clip and what was read of it, what the consumer uses."""


def whole(cache: FrameCache, key: str, size_bytes: int) -> Buffer:
    """Read all of a value."""
    return cache.get(key)


class Stored(NamedTuple):
    """A clip, and where its bytes lie."""

    clip: ClipRef
    key: str
    size_bytes: int


class Elsewhere(Protocol):
    """Reads and prepares clips in other processes. Thread-safe, but for `close`."""

    def values(self, clips: Sequence[Stored]) -> list[Any] | None:
        """What `IntakeOptions.read` and `prepare` make of each, an `EsspError` in place of what cannot be made; None:
        make them here, this time."""

    def close(self) -> None:
        """End the processes."""


@dataclass(frozen=True, slots=True)
class IntakeOptions:
    """Whose clips of which stream an intake takes."""

    job: str
    consumer: str
    """The id that acks (`trainer.<name>`, `predictor.<stream>`)."""
    stream: str
    feature: str
    """`rgb`: the clips themselves."""
    worker: str = ""
    """Name of this process in messages."""
    fence: int = 0
    since: int = 0
    """The fence with which this run of the job began; 0: not known."""
    run_of: Callable[[int], int | None] | None = None
    """Gives the run that a fence belongs to, as the fence with which that run began, or None while that is not known
    (`ControlFeed.run_of`). Without such a function all messages count as of this run."""
    rank: int = 0
    world_size: int = 1
    """Rank r takes the indices whose partition is r modulo the world size."""
    fetches: int = 0
    """Clips that are read from the cache at the same time, before their turn, on threads of their own; 0: each when it
    is taken."""
    read: Read = whole
    """How to read a stored value: what it returns is the `Delivery.value`."""
    prepare: Prepare | None = None
    """What to make of it at once, on the thread that has read it: handing clips from thread to thread costs Python as
    much as fetching them."""
    set_up_thread: Callable[[], object] | None = None
    """Called once on each thread that reads."""
    elsewhere: Elsewhere | None = None
    """Has `read` and `prepare` done for the threads, which wait meanwhile; the intake closes it. None: they do it."""
    fits: Callable[[ClipRef], bool] | None = None
    """Whether a clip can be one of the job's, by what it is to be learned for; others are refused. None: all are."""

    @property
    def group(self) -> str:
        """The consumer group: one a consumer and job, shared by its ranks, which own fixed partitions."""
        return ids.consumer_group(self.consumer, self.job)

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions of this rank."""
        return tuple(range(self.rank, topics.DATA_PARTITIONS, self.world_size))

    def owns(self, index: int) -> bool:
        """Whether this rank takes the clip at `index`: `rank_of`, without a call for each clip."""
        return index % topics.DATA_PARTITIONS % self.world_size == self.rank


def rank_of(index: int, world_size: int) -> int:
    """The rank that takes the clip at `index`: partitions are dealt to ranks in turn."""
    return index % topics.DATA_PARTITIONS % world_size


def largest_share(clips: int, world_size: int) -> int:
    """The most of so many consecutive clips that one rank takes, wherever they begin.

    Where the ranks do not divide the partitions, the deal starts anew within them: a share may be larger than
    `clips / world_size` rounded up.
    """
    rounds, rest = divmod(clips, topics.DATA_PARTITIONS)
    begins = range(topics.DATA_PARTITIONS)
    whole = Counter(rank_of(index, world_size) for index in begins)
    part = (Counter(rank_of(index, world_size) for index in range(begin, begin + rest)) for begin in begins)
    return max(rounds * whole[rank] + counts[rank] for counts in part for rank in whole)


@dataclass(slots=True, eq=False)
class Delivery:
    """One clip of the stream, in its turn."""

    phase_index: int
    clip: ClipRef
    key: str
    value: Any
    """The stored bytes (empty when skipped), to be decoded with `essp_engine.video.codec`, or what `IntakeOptions.read`
    made of them."""
    skipped: str
    """Not empty: there is no clip at this index, and why."""
    record: Record

    def take_value(self) -> Any:
        """The value, which this no longer holds: it may be megabytes, and a delivery is kept until it is committed."""
        value, self.value = self.value, b""
        return value

    @property
    def position(self) -> Position:
        """Where a consumer stands that is done with this clip, and all before it."""
        return Position(self.phase_index, self.clip.index + 1)


@dataclass(frozen=True, slots=True)
class PhaseEnd:
    """All clips of a phase were taken."""

    phase_index: int
    plan: PhasePlan


@dataclass(slots=True, eq=False)
class _Arrival:
    """A message about a clip. Not frozen, as `Delivery`: one of each is made for each clip, in a third of the time."""

    clip: ClipRef
    key: str
    size_bytes: int
    skipped: str
    record: Record
    fence: int
    """Of the seed, or of the master that skips it; says which run's bytes are missing. 0: not known."""


class _Dropped(NamedTuple):
    """A message of no use to this intake, kept until cache, bus and master have been told."""

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
        """`phases`: as in the job's snapshot. `start`: the first phase and index that is wanted."""
        self._bus = bus
        self._cache = cache
        self._options = options
        self._phases = list(phases)
        self._phase_of = {(plan.purpose, plan.epoch): i for i, plan in enumerate(self._phases)}
        self._buffer: ReorderBuffer[_Arrival] = ReorderBuffer([p.clips for p in phases], start, options.owns)
        self._clock = clock
        self._reports = IntakeReports(
            self._phases, options.job, options.consumer, options.stream, options.worker, options.fence
        )
        self._undecided: list[_Arrival] = []
        """Messages of which it is not known yet whether they are of this run."""
        self._dropped: deque[_Dropped] = deque()
        self._in_hand: dict[int, dict[int, int]] = {partition: {} for partition in options.partitions}
        """Records that are not done: partition -> offset -> the latest `Record.delivery`."""
        topic = topics.stream_topic(options.feature)
        self._parse = _parse_clip if topic == topics.CLIPS else _parse_feature
        bus.ensure_topics({topic: topics.partitions(topic)})
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
        """The next clip or end of a phase; None when it has not come within about `timeout_s`, or all is over.

        When all is over, what still arrives is acked and dropped.
        """
        if self.finished:
            self._poll(timeout_s)
            return None
        if (over := self._buffer.end_phase()) is not None:
            return PhaseEnd(over, self._phases[over])
        # The bus is asked only when the next clip is not there, and then for many records at once.
        taken = self._take_waiting()
        if taken is None:
            self._poll(timeout_s)
            taken = self._take_waiting()
        if taken is None:
            self._publish(self._reports.late(self._buffer.next, self._buffer.missing(), self._clock()))
        return taken

    def release(self, items: Iterable[Delivery]) -> None:
        """Done with these: free their bytes and report that durably to the master."""
        items = list(items)
        # In this order. A message that comes again from now on is for a clip that was released, not one in hand. The
        # bytes are gone before the master counts them as room; if this process dies in between, its clips come again,
        # are missed, and are made again.
        for item in items:
            self._buffer.release(Position(item.phase_index, item.clip.index))
        clips = [item.clip for item in items if not item.skipped]
        self._cache.ack_all([item.key for item in items if not item.skipped], self._options.consumer)
        self._publish(self._reports.trained(clips))

    def commit(self, records: Iterable[Record]) -> None:
        """These, which may be `bare`, need no redelivery."""
        for record in records:
            self._done(record)

    def finish(self, items: Sequence[Delivery]) -> None:
        """`release` and `commit`."""
        self.release(items)
        self.commit(item.record for item in items)

    def request_rebuild_range(self, start: Position, stop: Position) -> None:
        """Have all of this rank's clips between these positions made again, though their messages were committed.

        For a consumer whose state is older than what it had committed.
        """
        self._publish(self._reports.rebuild(start, stop, self.owns))

    def close(self) -> None:
        """Leave the group; what is not committed is delivered again."""
        self._fetching.close()  # first: its threads use the other processes, and wait for them
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
        # Only now, with the value in hand: after an error, the same clip is the next one.
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
        """The bytes of the next clip are gone: have them made again, and also those of clips behind it that are gone.
        New messages will replace the present ones."""
        gone = [one for one in self._upcoming(LOOK_AHEAD) if one is arrival or not self._cache.holds(one.key)]
        awaited = isinstance(miss, OtherRelease)
        # Reported before the records are committed: if this process dies in between, they come again, and are missed
        # again. The other way round, nobody would ever ask for these clips.
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
        for early in undecided:  # of which `run_of` may know more by now; those of which it does not are kept again
            self._arrived(early)
        for record in self._subscription.poll(_POLL_RECORDS, timeout_s):
            # Before anything else: a record that comes again is not a second message, but its latest delivery is the
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
            return  # one of the next run stays in hand: it is delivered again, to the intake of that run
        phase_index = self._phase_of.get((arrival.clip.purpose, arrival.clip.epoch))
        if phase_index is None or arrival.clip.index >= self._phases[phase_index].clips:  # of no phase of this run
            if arrival.fence <= self._options.fence:
                self._drop(arrival, ack=True)
            return  # of the next run, perhaps: it is delivered again, to the intake of that one
        position = Position(phase_index, arrival.clip.index)
        # Made by an earlier run. Its bytes stay until those of this run replace them: an ack could free the new ones.
        if 0 < arrival.fence < self._options.since and (arrival.skipped or position >= self._buffer.next):
            return self._drop(arrival, ack=False)
        version = (arrival.fence, arrival.clip.attempt, bool(arrival.skipped))
        outcome, other = self._buffer.put(position, version, arrival)
        match outcome:
            case Put.PASSED:
                self._drop(arrival, ack=True, trained=not arrival.skipped)
            case Put.HELD:
                self._drop(arrival, ack=True)
            # Of two messages for one clip, one goes. With the same key, the bytes are those of the one that stays.
            case Put.REPLACED if other is not None:
                self._drop(other, ack=arrival.key != other.key)
            case Put.DUPLICATE if other is not None:
                self._drop(arrival, ack=arrival.key != other.key)

    def _is_of_this_run(self, arrival: _Arrival) -> bool | None:
        """Whether a message is of this run, or one before it; None: that is not known yet."""
        options = self._options
        if arrival.fence <= options.fence or options.run_of is None:
            return True
        run = options.run_of(arrival.fence)
        return None if run is None else run <= options.since

    def _drop(self, arrival: _Arrival, ack: bool, trained: bool = False) -> None:
        self._dropped.append(_Dropped(arrival, ack, trained))

    def _settle(self) -> None:
        """Report, ack and commit what was dropped. After an error, the next poll goes on with what is left of it."""
        while self._dropped:
            arrival, ack, trained = self._dropped[0]
            if trained:
                self._publish(self._reports.trained([arrival.clip]))
            if ack and arrival.key:
                self._cache.ack(arrival.key, self._options.consumer)
            self._done(arrival.record)
            self._dropped.popleft()  # after all of it: each of these may fail, and can be repeated

    def _done(self, record: Record) -> None:
        # In this order: where the bus has gone back and this record is still to come, the bus does not count it as
        # done, and it must not be passed over.
        latest = self._in_hand[record.partition].pop(record.offset, record.delivery)
        self._subscription.done(record if latest == record.delivery else replace(record, delivery=latest))

    def _publish(self, reports: Iterable[Progress]) -> None:
        """Report these durably to the master."""
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
    """Whether a clip was made for this consumer: one that was left behind gets it later, in its turn."""
    return not recipe.streams or any(options.consumer in stream.consumers for stream in recipe.streams)


def _parse_feature(record: Record, options: IntakeOptions) -> _Arrival | None:
    message = parsed(FeatureReady, record)
    if message.clip.job != options.job or message.stream != options.stream:
        return None
    if message.consumers and options.consumer not in message.consumers:
        return None
    return _Arrival(message.clip, message.key, message.bytes, message.skipped, record, message.fence)
