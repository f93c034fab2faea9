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

import logging
import threading
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Self, TypeVar

from kafka import KafkaAdminClient, OffsetAndMetadata, TopicPartition
from kafka import errors as kafka_errors
from kafka.admin import OffsetSpec

from essp_common.bus.kafka_clients import HIDDEN, connected, mapped, no_topic
from essp_common.bus.kafka_options import KafkaOptions
from essp_common.bus.kafka_publisher import KafkaPublisher, publishing
from essp_common.bus.kafka_rights import Rights
from essp_common.bus.kafka_subscription import KafkaSubscription
from essp_common.bus.port import check_size, has_enough
from essp_common.errors import ConfigError, FlowUnavailable
from essp_common.failures import shortened
from essp_common.runtime.login import NOBODY, Login
from essp_common.runtime.troubles import Kind, Troubles
from essp_common.topics import DATA_PARTITIONS, KEPT

T = TypeVar("T")
log = logging.getLogger(__name__)

_NO_GROUP = kafka_errors.GroupIdNotFoundError.__name__
_COORDINATOR_COMES = (
    kafka_errors.CoordinatorNotAvailableError,
    kafka_errors.CoordinatorLoadInProgressError,
    kafka_errors.NotCoordinatorError,
)
_COORDINATOR_S = 0.2
"""Interval in seconds at which a coordinator that is not there yet is asked again."""
_TAKEN = (
    kafka_errors.NoError,
    kafka_errors.TopicAlreadyExistsError,  # another process was faster
    kafka_errors.RequestTimedOutError,  # the controller finishes what it has begun
)
"""Answers after which a new topic is there, or will be in a moment."""
_READY_S = 30.0
"""How long to wait for that."""
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
                _create(
                    admin,
                    {t: {"num_partitions": partitions[t], "configs": _KEPT if t in kept else {}} for t in missing},
                )
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
                remedy = (
                    "delete the topic, and run `essp setup`"
                    if found > count
                    else "run `essp setup`, which adds the others"
                )
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
            committed = self._coordinated(lambda: admin.list_group_offsets({group: list(held)})).get(group, {})
        total = 0
        for slot, offsets in held.items():
            offset = committed[slot].offset if slot in committed else -1
            total += max(0, offsets.stop - max(offset, offsets.start))
        return total

    def begin_groups(self, groups: Mapping[str, str]) -> None:
        if not groups:
            return
        with mapped("begin groups"), self._admin() as admin:
            held = {topic: _held(admin, topic) for topic in set(groups.values())}
            wanted = {group: list(held[topic]) for group, topic in groups.items()}
            try:
                known = self._coordinated(lambda: admin.list_group_offsets(wanted))
                for group, topic in groups.items():
                    if any(found.offset >= 0 for found in known.get(group, {}).values()):
                        continue
                    ends = {slot: OffsetAndMetadata(held[topic][slot].stop, "", -1) for slot in held[topic]}
                    answers = set(admin.alter_group_offsets(group, ends).values()) - {kafka_errors.NoError}
                    if answers:
                        raise answers.pop()(group)
            except kafka_errors.AuthorizationError as error:
                log.info("consumers of a new job read what is left of older ones first: %s", error)

    def delete_groups(self, groups: Collection[str]) -> None:
        if not groups:
            return
        # Who may not delete them loses nothing: the broker forgets idle groups itself, after days.
        with mapped("delete groups"), self._admin() as admin:
            try:
                answers = self._coordinated(lambda: admin.delete_groups(list(groups)))
            except kafka_errors.AuthorizationError as error:
                log.info("groups of ended jobs stay until the broker forgets them: %s", error)
                return
        if kept := {group: answer for group, answer in answers.items() if answer not in ("OK", _NO_GROUP)}:
            log.info("groups of ended jobs stay until the broker forgets them: %s", kept)

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
        return found | (publisher.troubles() if publisher else {})

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

    def _coordinated(self, ask: Callable[[], T]) -> T:
        """Ask the coordinator of a group. A broker that has just started has none yet, and one that has just taken over
        a group still reads what was committed."""
        deadline = time.monotonic() + self._options.connect_timeout_ms / 1000
        while True:
            try:
                return ask()
            except _COORDINATOR_COMES:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_COORDINATOR_S)

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


def _create(admin: KafkaAdminClient, wanted: Mapping[str, Mapping[str, Any]]) -> None:
    """Create topics and wait until they can be used: brokers elect leaders after they have answered."""
    for topic in admin.create_topics(wanted, raise_errors=False)["topics"]:
        error = kafka_errors.for_code(topic["error_code"])
        if error not in _TAKEN:
            raise error(f"topic {topic['name']}: {topic.get('error_message') or error.__name__}")
    try:
        admin.wait_for_topics(list(wanted), timeout_ms=1000 * _READY_S)
    except kafka_errors.KafkaTimeoutError as error:
        raise FlowUnavailable(
            f"the broker has taken new topics, and they are not ready after {_READY_S:g} s; see in its log what it "
            f"waits for, and run `essp setup` again ({shortened(str(error))})"
        ) from error


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
