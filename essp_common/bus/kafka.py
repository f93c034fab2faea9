"""The bus over Kafka: `kafka://host:port[,host:port]`, through kafka-python. `kafka_options.py` has the URL's options.

Publishing is asynchronous and idempotent within a producer (`acks=all`); a process has one producer. A message that
could not be delivered is reported by the next `flush` of every thread, because the bus cannot know which thread's work
depends on it.

Commits never overtake publishing: before offsets are committed, everything published before their records were done is
flushed; if that fails permanently, the records are delivered again instead (`kafka_subscription.py`).

A missing password or permission is a `ConfigError` at the start. One that is revoked later is waited for, and
`troubles` reports what was refused (`kafka_rights.py`).

No transactions (decision 8). Errors of kafka-python are mapped here and chained.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self

from kafka import KafkaAdminClient, TopicPartition
from kafka import errors as kafka_errors
from kafka.admin import OffsetSpec

from essp_common.bus.kafka_clients import HIDDEN, connected, no_topic
from essp_common.bus.kafka_options import KafkaOptions
from essp_common.bus.kafka_publisher import KafkaPublisher, publishing
from essp_common.bus.kafka_rights import Rights
from essp_common.bus.kafka_subscription import KafkaSubscription
from essp_common.bus.port import check_size, has_enough
from essp_common.errors import ConfigError, FlowUnavailable
from essp_common.runtime.login import NOBODY, Login
from essp_common.runtime.troubles import Kind, Troubles
from essp_common.topics import DATA_PARTITIONS, KEPT

_KEPT = {"retention.ms": "-1"}
"""Configuration of topics whose messages must not expire."""


class KafkaBus:
    """Implements `essp_common.bus.port.Bus` over Kafka. Connects on first use."""

    def __init__(self, options: KafkaOptions, partitions: int = DATA_PARTITIONS) -> None:
        """`partitions`: of its data topics."""
        self.partitions = partitions
        self._options = options
        self._rights = Rights()
        self._lock = threading.Lock()
        self._publisher: KafkaPublisher | None = None
        self._subscriptions: weakref.WeakSet[KafkaSubscription] = weakref.WeakSet()
        self._closed = False

    @classmethod
    def from_url(cls, url: str, login: Login = NOBODY, partitions: int = DATA_PARTITIONS) -> Self:
        """`kafka://host:port[,host:port][?options]`. Raises `ConfigError`."""
        return cls(KafkaOptions.from_url(url, login), partitions)

    def ensure_topics(self, partitions: Mapping[str, int], kept: Collection[str] = KEPT, grow: bool = False) -> None:
        if not partitions:
            return
        with self._rights.asked("create topics"), self._admin() as admin:
            present = _partition_counts(admin, partitions)
            missing = [topic for topic in partitions if topic not in present]
            if missing:
                wanted = {t: {"num_partitions": partitions[t], "configs": _KEPT if t in kept else {}} for t in missing}
                answer = admin.create_topics(wanted, raise_errors=False)
                for topic in answer["topics"]:
                    error = kafka_errors.for_code(topic["error_code"])
                    # Another process may have created it first.
                    if error not in (kafka_errors.NoError, kafka_errors.TopicAlreadyExistsError):
                        raise error(f"topic {topic['name']}: {topic.get('error_message') or error.__name__}")
                admin.wait_for_topics(missing, timeout_ms=self._options.connect_timeout_ms)
                present = _partition_counts(admin, partitions)
            small = {topic: count for topic, count in partitions.items() if present.get(topic, count) < count}
            if grow and small:
                try:
                    admin.create_partitions(small)
                except kafka_errors.IncompatibleBrokerVersion as error:
                    raise ConfigError(
                        f"this broker cannot add partitions to topics ({', '.join(small)}); delete them, and run `essp "
                        "setup` again (`essp servers`: start the servers again)",
                        code="unsupported",
                    ) from error
                present |= small
        for topic, count in partitions.items():
            if not has_enough(found := present.get(topic, count), count):
                remedy = "delete the topic" if found > count else "run `essp setup`, which adds the others"
                raise ConfigError(
                    f"topic {topic} has {found} partitions and ESSP needs {count}; {remedy}", code="conflict"
                )

    def publish(self, topic: str, key: bytes, value: bytes, partition: int | None = None) -> None:
        check_size(topic, key, value)
        with self._rights.needed(publishing(topic)):
            self._open_publisher().publish(topic, key, value, partition)

    def flush(self, timeout_s: float = 30.0) -> None:
        publisher = self._publisher
        if publisher is not None:
            with self._rights.asked("flush"):
                publisher.flush(timeout_s)

    def subscribe(
        self, topics: Sequence[str], group: str | None, partitions: Sequence[int] | None = None
    ) -> KafkaSubscription:
        with self._rights.asked(f"subscribe to {', '.join(topics)}"):
            subscription = KafkaSubscription(
                self._options.consumer(), topics, group, partitions, self.flush, self._rights
            )
        with self._lock:
            self._subscriptions.add(subscription)
        return subscription

    def backlog(self, topic: str, group: str) -> int:
        with self._rights.asked(f"backlog of {topic}"), self._admin() as admin:
            held = _held(admin, topic)
            committed = admin.list_group_offsets({group: list(held)}).get(group, {})
        total = 0
        for slot, offsets in held.items():
            offset = committed[slot].offset if slot in committed else -1
            total += max(0, offsets.stop - max(offset, offsets.start))
        return total

    def held(self, topic: str) -> list[range]:
        with self._rights.asked(f"extent of {topic}"), self._admin() as admin:
            return list(_held(admin, topic).values())

    def troubles(self) -> Troubles:
        if words := self._rights.words:  # any other problem is a consequence
            return {Kind.BUS_REFUSES: words}
        with self._lock:
            subscriptions, publisher = list(self._subscriptions), self._publisher
        found: dict[Kind, str] = {}
        for subscription in subscriptions:
            found |= subscription.troubles()
        return found | (publisher.acknowledgements.troubles() if publisher else {})

    def close(self) -> None:
        with self._lock:
            self._closed = True
            subscriptions = list(self._subscriptions)
        # subscriptions of services that were built but never ran; others have closed theirs
        for subscription in subscriptions:
            subscription.close()
        with self._lock:
            publisher, self._publisher = self._publisher, None
        if publisher is not None:
            with self._rights.needed("close"):
                publisher.close()

    def _admin(self) -> Any:
        return connected(KafkaAdminClient, self._rights.login, **self._options.client())

    def _open_publisher(self) -> KafkaPublisher:
        publisher = self._publisher
        if publisher is None:
            with self._lock:
                if self._closed:
                    raise FlowUnavailable("the bus is closed")
                if self._publisher is None:
                    self._publisher = KafkaPublisher(self._options, self._rights)
                publisher = self._publisher
        return publisher


def _held(admin: KafkaAdminClient, topic: str) -> dict[TopicPartition, range]:
    """Return the offsets of each partition. Raises `NotFound`."""
    count = _partition_counts(admin, [topic]).get(topic)
    if count is None:
        raise no_topic(topic)
    slots = [TopicPartition(topic, number) for number in range(count)]
    ends = admin.list_partition_offsets(dict.fromkeys(slots, OffsetSpec.LATEST))
    starts = admin.list_partition_offsets(dict.fromkeys(slots, OffsetSpec.EARLIEST))
    return {slot: range(starts[slot].offset, ends[slot].offset) for slot in slots}


def _partition_counts(admin: KafkaAdminClient, topics: Collection[str]) -> dict[str, int]:
    """Return the partition counts of existing topics. Raises an error for topics that this user may not see, which may
    exist."""
    described = admin.describe_topics(list(topics))
    if hidden := {topic["name"] for topic in described if topic["error_code"] == HIDDEN.errno}:
        raise HIDDEN(hidden)
    return {topic["name"]: len(topic["partitions"]) for topic in described if topic["error_code"] == 0}
