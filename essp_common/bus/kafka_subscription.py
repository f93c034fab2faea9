"""Reading from Kafka: one consumer, polled by a separate thread, and commits of finished records.

kafka-python takes part in a rebalance only while it is being polled, and a join that completes between two polls is
discarded and started again. Hence a thread polls without a pause, and buffers what it has read until the subscriber
asks for it (a few thousand messages, then it pauses the partitions). It does everything else with the consumer too,
which is not thread-safe: commits, seeks, leaving. The subscriber's `poll` only waits for that thread. One lock guards
the state that they share with `done`, which any thread may call, and with kafka-python's own thread, which reports
rebalances.

Commits are sent at most every `COMMIT_INTERVAL_S`, before partitions are given up, and at close; each only after
everything published before has been flushed. If that fails permanently, the consumer goes back to the last commit, so
that work whose messages were lost is done again. Partitions are assigned cooperatively: a rebalance takes only the
partitions that move. A subscriber that does not poll for `ABANDONED_S` soon loses its share.

After an error that is neither Kafka's nor the system's (an answer that no broker gives, a defect of kafka-python),
messages that the consumer had read may be lost, so another consumer replaces it and reads from the last commit. If that
does not help `DEFECTS` times in a row, the thread ends. From then on each `poll` raises the error, so that the process
ends and another one continues.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer, OffsetAndMetadata, TopicPartition
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.structs import MemberState

from essp_common.bus.kafka_clients import (
    Layout,
    OnLogin,
    TopicsGone,
    Undelivered,
    Unexpected,
    check_topics,
    connected,
    denial,
    has_to_join,
    layout_of,
    leave,
    no_topic,
    notice_rebalance,
    on_reset,
    position_of,
)
from essp_common.bus.kafka_rights import ANYTHING, Rights
from essp_common.bus.liveness import Membership
from essp_common.bus.losses import Losses
from essp_common.bus.port import SUSPECTS, Record
from essp_common.bus.read_ahead import ReadAhead
from essp_common.bus.watermark import Watermark
from essp_common.errors import EsspError, TransientError
from essp_common.runtime.failpoints import failpoint
from essp_common.runtime.troubles import Troubles

log = logging.getLogger(__name__)

COMMIT_INTERVAL_S = 0.5
ABANDONED_S = 240.0
DEFECTS = 5
_MAX_POLL_INTERVAL_MS = 60_000
_POLL_MS = 500
"""How long one poll waits for messages. Each poll costs CPU, and closing waits for the current poll."""
_READ_AHEAD, _READ_AHEAD_BYTES = 2000, 32 * 2**20
"""Limits for buffered messages and their bytes; the last poll may exceed them. The oldest buffered message is
delivered first."""
_FLUSH_TIMEOUT_S = 5.0
_REVOKE_FLUSH_TIMEOUT_S = 1.0
"""Shorter: no heartbeats are sent meanwhile."""
_CLOSE_TIMEOUT_MS = 5_000
_METADATA_AGE_MS = 30_000
_PROBE_IDLE_S = 10.0
"""Time without an answer after which the broker is probed: the consumer itself reconnects forever, without reporting
it."""
_PROBE_TIMEOUT_MS = 5_000
_MEMBERSHIP = "membership"
"""For a group: the name in `Rights` for the start of a process that is a member."""


class KafkaSubscription:
    """Implements `essp_common.bus.port.Subscription` over one consumer."""

    def __init__(
        self,
        client: Mapping[str, Any],
        topics: Sequence[str],
        group: str | None,
        partitions: Sequence[int] | None,
        flush: Callable[[float], None],
        rights: Rights,
    ) -> None:
        """`client`: settings of the consumer. `flush` makes published messages durable. `rights`: records what the
        broker allows."""
        self._client = client
        self._topics, self._numbers = topics, partitions
        self._rights = rights
        self._start = ANYTHING if group is None else _MEMBERSHIP
        self._committing = f"commit of group {group}"
        self._reading = f"read {', '.join(topics)}" + (f" in group {group}" if group else "")
        self._group = group
        self._auto = group is not None and partitions is None
        """Whether the group assigns the partitions."""
        self._flush = flush
        who = group or f"(all of {', '.join(topics)})"
        self._membership, self._losses = Membership(who), Losses(who)
        self._layouts: dict[str, Layout] = {}
        """The topics as this subscription reads them."""
        self._missed: dict[TopicPartition, int] = {}
        """Partitions whose next record is gone, and its offset, until it is known where reading continues."""
        self._changed = threading.Condition()
        self._read = ReadAhead()
        self._owned: set[TopicPartition] = set()
        self._watermarks: dict[TopicPartition, Watermark] = {}
        self._committed: dict[TopicPartition, int] = {}
        """Where each partition would be read from again: the last commit, or the first offset delivered."""
        self._begun: Counter[TopicPartition] = Counter()
        """How often this subscription has begun to read each partition."""
        self._next: dict[TopicPartition, int] = {}
        """For a reader without a group: the offset after the last one that it has read."""
        self._paused = False
        self._error: EsspError | None = None
        self._defects = 0
        """Unexpected errors since the last successful poll. The consumer that raised one is replaced."""
        self._defect: Exception | None = None
        """The error that has stopped the thread; nothing is read any more."""
        self._closing = threading.Event()
        self._polled = False
        self._share: tuple[int, int] | None = None
        """The latest assignment: its generation, and the number of partitions."""
        self._asked_at = self._heard_at = time.monotonic()
        self._next_commit = 0.0
        self._uncommitted = False
        """Whether the last commit failed."""
        rights.vital(self._reading)
        self._consumer = _connect(client, group, rights.login)
        try:
            self._begin()
        except BaseException:
            leave(self._consumer, _CLOSE_TIMEOUT_MS)
            raise
        self._thread = threading.Thread(target=self._run, name=f"essp-kafka-{group or topics[0]}", daemon=True)
        self._thread.start()

    def poll(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        if self._group is not None:  # who reads everything only watches, in a thread of its own
            self._rights.check()
        with self._changed:
            self._asked_at = time.monotonic()
            self._changed.wait_for(
                lambda: self._error or self._defect or self._closing.is_set() or (self._read and not self._paused),
                timeout_s,
            )
            if self._defect is not None:
                what = f"{type(self._defect).__name__}: {self._defect}"
                raise EsspError(f"reading has stopped ({what}); start this process again") from self._defect
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            return [] if self._paused or self._closing.is_set() else self._hand_out(max_records)

    def done(self, record: Record) -> None:
        with self._changed:
            watermark = self._watermarks.get(TopicPartition(record.topic, record.partition))
            if watermark is not None and watermark.delivery == record.delivery:
                watermark.done(record.offset)

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False

    @property
    def partitions(self) -> int:
        with self._changed:
            return len(self._owned)

    def owned(self, topic: str) -> frozenset[int]:
        with self._changed:
            return frozenset(slot.partition for slot in self._owned if slot.topic == topic)

    def troubles(self) -> Troubles:
        """Report what the broker owes this member."""
        return {} if self._closing.is_set() else self._losses.troubles() | self._membership.troubles()

    def close(self) -> None:
        with self._changed:
            self._closing.set()
            self._changed.notify_all()
        self._thread.join()

    def _hand_out(self, max_records: int) -> list[Record]:
        taken = [self._read.pop() for _ in range(min(max_records, len(self._read)))]
        if self._has_room():
            self._changed.notify_all()
        if self._group is None:
            return [record for _, record in taken]
        return [self._tracked(slot, record) for slot, record in taken]

    def _tracked(self, slot: TopicPartition, record: Record) -> Record:
        watermark = self._watermark(slot, record.offset)
        watermark.delivered(record.offset)
        suspect = record.offset < watermark.start + SUSPECTS
        if suspect or watermark.delivery:
            return replace(record, redelivered=suspect, delivery=watermark.delivery)
        return record

    def _watermark(self, slot: TopicPartition, offset: int) -> Watermark:
        """Return the partition's watermark; a new one if the partition is read again, from `offset`."""
        watermark = self._watermarks.get(slot)
        if watermark is None or offset < watermark.position:
            watermark = self._watermarks[slot] = Watermark(offset, self._begun[slot])
            self._begun[slot] += 1
            self._committed[slot] = offset
        return watermark

    # --- the thread that owns the consumer ---

    def _begin(self) -> None:
        slots = [slot for topic in self._topics for slot in self._slots(topic)]
        self._probed = slots[0]
        on_reset(self._consumer, lambda slot, offset: self._missed.update({slot: offset}))
        self._follow_topics()
        if self._auto:
            self._membership.joining(True)
            self._consumer.subscribe(self._topics, listener=_Listener(self))
            return
        owned = {slot for slot in slots if self._numbers is None or slot.partition in self._numbers}
        self._consumer.assign(list(owned))
        for slot, offset in self._next.items():
            self._consumer.seek(slot, offset)
        self._owned = owned

    def _begin_anew(self) -> None:
        """Replace a consumer that may be in any state."""
        with suppress(Exception):  # best effort
            leave(self._consumer, _CLOSE_TIMEOUT_MS, goodbye=self._polled)
        self._polled = False
        if self._group is not None:
            self.lost(set(self._owned) | set(self._watermarks))
        self._consumer = _connect(self._client, self._group, self._rights.login)
        self._begin()

    def _slots(self, topic: str) -> list[TopicPartition]:
        numbers = self._consumer.partitions_for_topic(topic)
        if not numbers:
            raise no_topic(topic)
        return [TopicPartition(topic, number) for number in sorted(numbers)]

    def _run(self) -> None:
        worn = False
        try:
            while not self._closing.is_set():
                try:
                    with self._rights.needed(self._reading, self._start):
                        if worn:
                            self._begin_anew()
                            worn = False
                        self._step()
                except EsspError as error:
                    if isinstance(error, Unexpected):
                        worn = True
                        self._defects += 1
                        if self._defects == DEFECTS:
                            raise error.__cause__ or error from None
                    if not self._rights.words:  # a refusal is an answer
                        self._membership.failed(str(error), silent=not isinstance(error, TopicsGone))
                    self._tell(error)
                    self._closing.wait(error.retry_after_s if isinstance(error, TransientError) else 1.0)
        except Exception as error:
            log.exception("reading for group %s has stopped", self._group)
            self._membership.failed("reading has stopped")
            with self._changed:
                self._defect = error
                self._changed.notify_all()
        finally:
            self._leave()

    def _step(self) -> None:
        self._membership.asks()
        self._commit_when_due()
        now = time.monotonic()
        if now - self._asked_at > ABANDONED_S and self._auto:
            self._closing.wait(1.0)
            return
        full = not self._wait_for_room()
        gone = self._follow_topics()
        with self._changed:
            owned = self._owned & self._consumer.assignment()
        for slot in owned:
            with suppress(KeyError):  # revoked by now: kafka-python's thread does not wait for this one
                # A topic that comes back may be a new one: nothing is read from it before that is known.
                (self._consumer.pause if full or slot.topic in gone else self._consumer.resume)(slot)
        self._polled = True
        # A full buffer has already been waited for, unless the group is rebalancing.
        polled = self._consumer.poll(timeout_ms=1 if full and self._settled() else _POLL_MS, max_records=_READ_AHEAD)
        self._membership.joining(not self._settled())
        self._report_share()
        self._count_losses(polled)
        if polled or full:
            self._heard_at = now
            self._membership.heard()
            self._keep(polled)
            self._defects = 0
            if polled:
                self._rights.begun(self._start)
                self._rights.granted(self._reading)
        elif now - self._heard_at > _PROBE_IDLE_S:
            self._heard_at = now
            check_topics(self._consumer, self._topics)
            self._consumer.beginning_offsets([self._probed], timeout_ms=_PROBE_TIMEOUT_MS)
            self._membership.heard()
            self._defects = 0
            self._rights.begun(self._start)

    def _follow_topics(self) -> set[str]:
        """Read a topic that was made again from its beginning, and also the partitions that were added to one. Returns
        the topics that are gone."""
        gone: set[str] = set()
        for topic in self._topics:
            found, known = layout_of(self._consumer, topic), self._layouts.get(topic)
            if found is None:
                gone.add(topic)
                continue
            self._layouts[topic] = found
            if known is None or found == known:
                continue
            if found.id != known.id:
                self._read_anew(topic)
            if found.partitions == known.partitions:
                continue
            if self._auto:
                # kafka-python misses a change that it learns of while it deals the partitions.
                self._consumer._coordinator.request_rejoin()
            elif self._group is None and self._numbers is None:  # fixed partitions stay as they are
                with self._changed:
                    others = {slot for slot in self._owned if slot.topic != topic}
                    self._owned = others | {TopicPartition(topic, number) for number in found.partitions}
                self._consumer.assign(list(self._owned))
                log.info("%s has %d partitions now, and all are read", topic, len(found.partitions))
        return gone

    def _read_anew(self, topic: str) -> None:
        self._losses.made_anew(topic)
        log.warning("%s", self._losses.words)
        with self._changed:
            if self._group is not None:  # offsets of the old topic must not be committed for the new one
                self._forget({slot for slot in self._owned | set(self._watermarks) if slot.topic == topic})
            self._next = {slot: offset for slot, offset in self._next.items() if slot.topic != topic}
        if slots := [slot for slot in self._consumer.assignment() if slot.topic == topic]:
            self._consumer.seek_to_beginning(*slots)
        self._missed = {slot: offset for slot, offset in self._missed.items() if slot.topic != topic}

    def _count_losses(self, polled: Mapping[TopicPartition, Sequence[Any]]) -> None:
        """Note which records were gone before they were read."""
        for slot, offset in list(self._missed.items()):
            position = polled[slot][0].offset if polled.get(slot) else position_of(self._consumer, slot)
            if position is None and slot in self._owned:
                continue  # the client still asks where the partition begins
            del self._missed[slot]
            if position is None:
                continue  # another member's now
            if position > offset:
                self._losses.expired(slot.topic, position - offset)
            else:
                self._losses.made_anew(slot.topic)
            log.warning("%s", self._losses.words)

    def _wait_for_room(self) -> bool:
        """Wait briefly for room in the buffer. Returns False if it stays full."""
        patience_s = _POLL_MS / 1000 if self._settled() else 0.0
        with self._changed:
            return self._changed.wait_for(lambda: self._has_room() or self._closing.is_set(), patience_s)

    def _has_room(self) -> bool:
        return len(self._read) < _READ_AHEAD // 2 and self._read.size_bytes < _READ_AHEAD_BYTES // 2

    def _settled(self) -> bool:
        """Whether no join is under way, so that nothing is discarded if the consumer is not polled for a moment."""
        return not self._auto or self._consumer.group_metadata().state == MemberState.STABLE

    def _report_share(self) -> None:
        """Log a new assignment, even if it equals the previous one, which no listener reports."""
        if self._auto and self._settled():
            share = self._consumer.group_metadata().generation_id, len(self._consumer.assignment())
            if share != self._share:
                self._share = share
                log.info("group %s: takes part with %d partitions", self._group, share[1])

    def _keep(self, polled: Mapping[TopicPartition, Sequence[Any]]) -> None:
        """Buffer what was read, except from partitions that were revoked in the meantime."""
        with self._changed:
            for slot, messages in polled.items():
                if slot not in self._owned:
                    continue
                for m in messages:
                    record = Record(slot.topic, slot.partition, m.offset, m.key or b"", m.value or b"")
                    self._read.add(slot, m.timestamp, record)
                if messages and self._group is None:
                    self._next[slot] = messages[-1].offset + 1
            self._changed.notify_all()

    def _tell(self, error: EsspError) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _leave(self) -> None:
        joined = False
        try:
            joined = self._finish_joining()
            offsets = self._durable(_FLUSH_TIMEOUT_S)
            if offsets:
                self._consumer.commit(offsets, timeout_ms=_CLOSE_TIMEOUT_MS)
        except Exception as error:  # noqa: BLE001  the group is left in any case
            log.warning("last commit of group %s failed, its records are delivered again: %s", self._group, error)
        finally:
            self.lost(set(self._owned))
            try:
                leave(self._consumer, _CLOSE_TIMEOUT_MS, goodbye=joined)
            except Exception as error:  # noqa: BLE001  no one waits for it any more
                log.warning("group %s left without a goodbye: %s", self._group, error)

    def _finish_joining(self) -> bool:
        """Complete a join that is under way. Returns False if it does not end in time; then no goodbye may be sent.

        With some brokers, a member that says goodbye while its group is joining locks the others out forever; one that
        falls silent, only until its session times out. So this asks whether the group is joining, without waiting for
        the next heartbeat.
        """
        if not (self._polled and self._auto):
            return True
        notice_rebalance(self._consumer, _CLOSE_TIMEOUT_MS)
        deadline = time.monotonic() + _CLOSE_TIMEOUT_MS / 1000
        while not self._settled() or has_to_join(self._consumer):
            if time.monotonic() > deadline:
                log.info("group %s is left without a goodbye, because it is still joining", self._group)
                return False
            self._consumer.poll(timeout_ms=_POLL_MS, max_records=1)
        return True

    # --- rebalances, reported by kafka-python's own thread ---

    def gained(self, slots: Collection[TopicPartition]) -> None:
        """These partitions now belong to this member."""
        with self._changed:
            self._owned |= set(slots)

    def giving_up(self, slots: Collection[TopicPartition]) -> None:
        """Another member will own these partitions: commit what is done of them."""
        failpoint("kafka.revoked")
        try:
            # Done records are committed before the partitions are given up, or their next owner would repeat them.
            offsets = self._durable(_REVOKE_FLUSH_TIMEOUT_S)
        except EsspError as error:
            log.warning("group %s gives up partitions without a commit: %s", self._group, error)
        else:
            self._commit({slot: offset for slot, offset in offsets.items() if slot in slots})
        self.lost(slots)

    def lost(self, slots: Collection[TopicPartition]) -> None:
        """Another member already owns these partitions."""
        with self._changed:
            self._owned -= set(slots)
            self._forget(set(slots))

    # --- commits ---

    def _commit_when_due(self) -> None:
        now = time.monotonic()
        if now < self._next_commit or self._group is None:
            return
        self._next_commit = now + COMMIT_INTERVAL_S
        try:
            offsets = self._durable(_FLUSH_TIMEOUT_S)
        except Undelivered:
            self._go_back()
            raise
        self._commit(offsets)

    def _durable(self, timeout_s: float) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return offsets that may be committed and are not yet. Everything published before they were done is flushed
        first."""
        with self._changed:
            moved = {
                slot: OffsetAndMetadata(watermark.committable, "", -1)
                for slot, watermark in self._watermarks.items()
                if watermark.committable > self._committed[slot]
            }
        if moved:
            # Flushed outside the lock, since it waits for the broker, and after the offsets were taken: everything that
            # these records have published is included.
            self._flush(timeout_s)
            failpoint("kafka.flushed")
        return moved

    def _commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        if offsets:
            failpoint("kafka.committing")
            self._consumer.commit_async(dict(offsets), callback=self._on_commit)

    def _on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], answer: object) -> None:
        if isinstance(answer, BaseException):
            if not self._uncommitted:  # once, not twice a second while a group cannot form
                self._uncommitted = True
                log.info("commit of group %s failed and is sent again until it succeeds: %s", self._group, answer)
            if (denied := denial(self._committing, answer)) is not None:
                self._rights.denied(denied)
            return
        self._uncommitted = False
        self._rights.granted(self._committing)
        failpoint("kafka.committed")
        with self._changed:
            for slot, offset in offsets.items():
                if slot in self._committed:
                    self._committed[slot] = max(self._committed[slot], offset.offset)

    def _go_back(self) -> None:
        """Deliver everything again that was delivered and is not committed."""
        with self._changed:
            for slot in self._watermarks:
                with suppress(ValueError):  # revoked by now
                    self._consumer.seek(slot, self._committed[slot])
            self._forget(set(self._watermarks))

    def _forget(self, slots: Collection[TopicPartition]) -> None:
        self._read.drop(slots)
        for slot in slots:
            self._watermarks.pop(slot, None)
            self._committed.pop(slot, None)


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Passes rebalances on."""

    def __init__(self, subscription: KafkaSubscription) -> None:
        self._subscription = subscription

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self._subscription.gained(assigned)

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        self._subscription.giving_up(revoked)

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        self._subscription.lost(lost)


def _connect(client: Mapping[str, Any], group: str | None, on_login: OnLogin) -> KafkaConsumer:
    session_timeout_ms = client["session_timeout_ms"]
    return connected(
        KafkaConsumer,
        on_login,
        **client,
        group_id=group,
        heartbeat_interval_ms=session_timeout_ms // 5,
        max_poll_interval_ms=_MAX_POLL_INTERVAL_MS,
        partition_assignment_strategy=[CooperativeStickyAssignor],
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        allow_auto_create_topics=False,
        metrics_enabled=False,
        # So soon it learns that a topic has more partitions, or was made again.
        metadata_max_age_ms=_METADATA_AGE_MS,
        # An idle consumer fetches once a second. Not longer: a fetch under way does not include partitions gained
        # since.
        fetch_max_wait_ms=900,
    )
