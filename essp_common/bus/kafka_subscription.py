"""Reading from Kafka: one consumer, with commits of what is done below which nothing is left.

Two threads touch a consumer: the one that polls, and kafka-python's own, which sends heartbeats and tells of
rebalances; `done` comes from any. What they share, the watermark of every partition that is ours, is guarded by one
lock. Commits are sent at most every `COMMIT_INTERVAL_S` while polling, before partitions are given up, and at
close; each only after what was published before has been flushed. Where that failed for good, the consumer goes
back to the last commit, so that the work whose messages were lost is done again.

The share of a group is dealt cooperatively: a rebalance takes only the partitions that move.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer, OffsetAndMetadata, TopicPartition
from kafka import errors as kafka_errors
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.net.compat import KafkaNetClient

from essp_common.bus.port import Record
from essp_common.bus.watermark import Watermark
from essp_common.errors import ConfigError, NotFound, PermanentError, Unavailable

log = logging.getLogger(__name__)

COMMIT_INTERVAL_S = 0.5
_FLUSH_TIMEOUT_S = 5.0
_REVOKE_FLUSH_TIMEOUT_S = 1.0
"""Shorter: heartbeats stand still meanwhile."""
_CLOSE_TIMEOUT_MS = 5_000
_PROBE_IDLE_S = 10.0
"""Silence after which the broker is asked whether it is there: the consumer itself reconnects for ever, silently."""
_PROBE_TIMEOUT_MS = 5_000

_MISCONFIGURED = (
    kafka_errors.AuthorizationError,
    kafka_errors.SaslAuthenticationFailedError,
    kafka_errors.UnsupportedVersionError,
    kafka_errors.KafkaConfigurationError,
)


class Undelivered(Unavailable):
    """Messages that were published before are lost for good."""


@contextmanager
def mapped(action: str) -> Iterator[None]:
    """kafka-python's errors as ESSP's."""
    try:
        yield
    except kafka_errors.MessageSizeTooLargeError as error:
        raise PermanentError(f"{action}: {error}") from error
    except _MISCONFIGURED as error:
        raise ConfigError(
            f"{action}: {type(error).__name__}: {error}; check ESSP_BUS and the broker's rights"
        ) from error
    except (kafka_errors.KafkaError, OSError) as error:
        raise Unavailable(f"{action}: {type(error).__name__}: {error}") from error


class KafkaSubscription:
    """Implements `essp_common.bus.port.Subscription` over one consumer."""

    def __init__(
        self,
        client: Mapping[str, Any],
        topics: Sequence[str],
        group: str | None,
        partitions: Sequence[int] | None,
        flush: Callable[[float], None],
    ) -> None:
        """`client`: settings of the consumer. `flush` makes durable what was published."""
        self._group = group
        self._flush = flush
        self._lock = threading.Lock()
        self._watermarks: dict[TopicPartition, Watermark] = {}
        self._committed: dict[TopicPartition, int] = {}
        """Where each partition would be read from again; the first offset delivered, until there is a commit."""
        self._owned: set[TopicPartition] = set()
        self._paused = False
        self._closed = False
        self._next_commit = 0.0
        self._last_sign = time.monotonic()
        self._consumer = _connect(client, group)
        try:
            self._start(topics, partitions)
        except BaseException:
            self._consumer.close(autocommit=False)
            raise

    def poll(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        with mapped("poll"):
            if self._closed:
                return ()
            self._commit_when_due()
            polled = self._consumer.poll(timeout_ms=int(timeout_s * 1000), max_records=max_records)
            records = self._track(polled)
            self._probe(bool(polled))
            return records

    def done(self, record: Record) -> None:
        with self._lock:
            watermark = self._watermarks.get(TopicPartition(record.topic, record.partition))
            if watermark is not None:
                watermark.done(record.offset)

    def pause(self) -> None:
        with self._lock:
            self._paused = True
            self._consumer.pause(*self._owned)

    def resume(self) -> None:
        with self._lock:
            self._paused = False
            self._consumer.resume(*self._owned)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with mapped("close"):
            try:
                offsets = self._durable(_FLUSH_TIMEOUT_S)
                if offsets:
                    self._consumer.commit(offsets, timeout_ms=_CLOSE_TIMEOUT_MS)
            except (kafka_errors.KafkaError, Unavailable) as error:
                log.warning("last commit of group %s failed, its records are delivered again: %s", self._group, error)
            finally:
                self._owned = set()
                self._consumer.close(autocommit=False, timeout_ms=_CLOSE_TIMEOUT_MS)

    # --- partitions ---

    def _start(self, topics: Sequence[str], partitions: Sequence[int] | None) -> None:
        slots = [slot for topic in topics for slot in self._slots(topic)]
        self._probed = slots[0]
        if self._group is not None and partitions is None:
            self._consumer.subscribe(topics, listener=_Listener(self))
            return
        self._owned = {slot for slot in slots if partitions is None or slot.partition in partitions}
        self._consumer.assign(list(self._owned))

    def _slots(self, topic: str) -> list[TopicPartition]:
        numbers = self._consumer.partitions_for_topic(topic)
        if not numbers:
            raise NotFound(f"there is no topic {topic}; ensure_topics creates it")
        return [TopicPartition(topic, number) for number in sorted(numbers)]

    def gained(self, slots: Collection[TopicPartition]) -> None:
        """These partitions are ours now. Called from the consumer's own thread."""
        with self._lock:
            self._owned |= set(slots)
            if self._paused:
                self._consumer.pause(*slots)

    def giving_up(self, slots: Collection[TopicPartition]) -> None:
        """These partitions go to somebody else: commit what is done of them. From the consumer's own thread."""
        try:
            offsets = self._durable(_REVOKE_FLUSH_TIMEOUT_S)
        except Unavailable as error:
            log.warning("group %s gives up partitions without a commit: %s", self._group, error)
        else:
            self._commit({slot: offset for slot, offset in offsets.items() if slot in slots})
        self.lost(slots)

    def lost(self, slots: Collection[TopicPartition]) -> None:
        """These partitions are somebody else's already. From the consumer's own thread."""
        with self._lock:
            self._owned -= set(slots)
            for slot in slots:
                self._watermarks.pop(slot, None)
                self._committed.pop(slot, None)

    def _track(self, polled: Mapping[TopicPartition, Sequence[Any]]) -> list[Record]:
        """Note what is handed out; nothing of a partition that was taken from us meanwhile is."""
        records: list[Record] = []
        with self._lock:
            for slot, messages in polled.items():
                if slot not in self._owned:
                    continue
                if self._group is not None:
                    self._track_partition(slot, messages)
                records += [Record(slot.topic, slot.partition, m.offset, m.key or b"", m.value) for m in messages]
        return records

    def _track_partition(self, slot: TopicPartition, messages: Sequence[Any]) -> None:
        first = messages[0].offset
        watermark = self._watermarks.get(slot)
        if watermark is None or first < watermark.position:
            watermark = self._watermarks[slot] = Watermark(first)
            self._committed[slot] = first
        for message in messages:
            watermark.delivered(message.offset)

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
        """What may be committed and is not yet. What was published before it was done is flushed first."""
        with self._lock:
            moved = {
                slot: OffsetAndMetadata(watermark.committable, "", -1)
                for slot, watermark in self._watermarks.items()
                if watermark.committable > self._committed[slot]
            }
        if moved:
            self._flush(timeout_s)
        return moved

    def _commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        if offsets:
            self._consumer.commit_async(dict(offsets), callback=self._on_commit)

    def _on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], answer: object) -> None:
        if isinstance(answer, BaseException):
            log.info("commit of group %s failed and is sent again: %s", self._group, answer)
            return
        with self._lock:
            for slot, offset in offsets.items():
                if slot in self._committed:
                    self._committed[slot] = max(self._committed[slot], offset.offset)

    def _go_back(self) -> None:
        """Have everything that is not committed delivered again."""
        with self._lock:
            for slot in self._watermarks:
                self._consumer.seek(slot, self._committed[slot])
            self._watermarks.clear()

    def _probe(self, sign: bool) -> None:
        now = time.monotonic()
        if sign or self._paused:
            self._last_sign = now
        elif now - self._last_sign > _PROBE_IDLE_S:
            self._last_sign = now
            self._consumer.beginning_offsets([self._probed], timeout_ms=_PROBE_TIMEOUT_MS)


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


def connected(make: Callable[..., Any], **settings: Any) -> Any:
    """A client of kafka-python. One that cannot connect leaves nothing behind: by itself it would leave a thread."""
    opened: list[KafkaNetClient] = []

    def open_client(**config: Any) -> KafkaNetClient:
        opened.append(KafkaNetClient(**config))
        return opened[-1]

    try:
        return make(kafka_client=open_client, **settings)
    except BaseException:
        for client in opened:
            client.close()
        raise


def _connect(client: Mapping[str, Any], group: str | None) -> KafkaConsumer:
    session_timeout_ms = client["session_timeout_ms"]
    return connected(
        KafkaConsumer,
        **client,
        group_id=group,
        heartbeat_interval_ms=session_timeout_ms // 5,
        partition_assignment_strategy=[CooperativeStickyAssignor],
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        allow_auto_create_topics=False,
        metrics_enabled=False,
        # A fetch in flight does not know of partitions that were resumed or gained since: keep it short.
        fetch_max_wait_ms=100,
    )
