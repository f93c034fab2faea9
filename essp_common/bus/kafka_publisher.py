"""Publishing to Kafka: one idempotent producer at a time, and an account of undelivered messages.

A producer that has failed to deliver a message is replaced, whatever the reason. When a sent message times out,
kafka-python gives up the producer's id without requesting a new one, and would never publish again. After a message
that the broker refuses permanently (too large, a missing permission, an unknown producer id), it is stuck as well, and
fails everything that follows with the same error. So only the first failure of a producer says something about its
message. Messages that the old producer still holds are lost with it and counted, so that their senders publish them
again. The broker may still store some of those under way; every message may be delivered twice anyway.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from kafka import KafkaAdminClient, KafkaProducer
from kafka import errors as kafka_errors
from kafka.admin import ConfigResource, ConfigResourceType

from essp_common.bus.kafka_clients import (
    MADE_AGAIN,
    TOO_LARGE,
    NoPartition,
    Undelivered,
    connected,
    denial,
    missing_topics,
)
from essp_common.bus.kafka_options import KafkaOptions
from essp_common.bus.kafka_rights import Rights
from essp_common.bus.liveness import Acknowledgements
from essp_common.bus.port import MessageTooLarge
from essp_common.errors import FlowUnavailable
from essp_common.runtime.troubles import Kind

_BATCH_BYTES = 64 * 1024
_DELIVERY_TIMEOUT_MS = 60_000
_LIMIT = "max.message.bytes"


@dataclass(frozen=True, slots=True)
class _Refused:
    """A message that will be refused every time."""

    topic: str
    size: int
    error: BaseException


class KafkaPublisher:
    """Publishes for all threads of a process."""

    def __init__(self, options: KafkaOptions, rights: Rights) -> None:
        """Connects. `rights`: records what the broker accepts and refuses."""
        self._options = options
        self._rights = rights
        self._close_timeout_s = options.connect_timeout_ms / 1000
        self._replacing = threading.Lock()
        self._producer: KafkaProducer | None = self._opened()
        self._worn: KafkaProducer | None = None
        """The producer that has failed to deliver a message."""
        self.acknowledgements = Acknowledgements()
        self._topics: set[str] = set()
        """All topics that it has published to. Other threads add to it, so it is copied before it is iterated over."""
        self._failures = 0
        self._last_failure: BaseException | None = None
        self._why = ""
        """The last failure, for users."""
        self._seen = threading.local()
        """Per thread: how many failures were reported to it (`failures`), and its messages that the broker has refused
        (`refused`)."""

    def publish(self, topic: str, key: bytes, value: bytes, partition: int | None) -> None:
        """Queue a message."""
        if not hasattr(self._seen, "failures"):
            self._seen.failures, self._seen.refused = self._failures, []
        producer = self._sound()
        size = len(key) + len(value)
        failed = partial(self._failed, producer, topic, size, self._seen.refused)
        if topic not in self._topics:
            self._topics.add(topic)
            self._rights.vital(publishing(topic))
        self.acknowledgements.published()
        try:
            sent = producer.send(topic, value, key, partition=partition)
        except BaseException as error:
            self.acknowledgements.given_up()
            if isinstance(error, ValueError) and partition not in {None, *producer.partitions_for(topic)}:
                raise NoPartition(f"publish to {topic}: {error}") from error
            self._note(producer, error)
            if producer is not self._producer:
                raise FlowUnavailable(
                    f"publish to {topic}: the producer was replaced just now; publish again"
                ) from error
            raise
        sent.add_callback(self._delivered, topic).add_errback(failed)

    def flush(self, timeout_s: float) -> None:
        """Wait until everything is delivered. Raises `MessageTooLarge` for a message of this thread that the broker
        refuses, and `Undelivered` once in each thread for lost messages."""
        producer = self._sound()
        try:
            _flush(producer, timeout_s)
        except Exception as error:
            self._note(producer, error)
            raise
        self._report()

    def troubles(self) -> dict[Kind, str]:
        """Report that the broker acknowledges nothing, or that topics are gone, whose messages hold up the others."""
        found, producer = self.acknowledgements.troubles(), self._producer
        if found and producer is not None and (gone := missing_topics(producer._metadata, tuple(self._topics))):
            names = ", ".join(sorted(gone))
            return {Kind.BUS_STALLED: f"nothing is published to {names}: the broker has no such topic; {MADE_AGAIN}"}
        return found

    def close(self) -> None:
        """Flush, and leave. Nothing runs afterwards.

        A thread that has neither published nor flushed does not learn what others have lost: they were informed.
        """
        if not hasattr(self._seen, "failures"):
            self._seen.failures = self._failures
        producer = self._producer
        if producer is None:
            return self._report()
        try:
            _flush(producer, self._close_timeout_s)
            self._report()
        finally:
            _end(producer)

    def _report(self) -> None:
        if refused := getattr(self._seen, "refused", None):
            first: _Refused = refused[0]
            refused.clear()
            raise MessageTooLarge(
                f"a message to {first.topic} has {first.size} bytes, more than the broker takes"
                f"{self._limit_of(first.topic)}; raise {_LIMIT} of the topic"
            ) from first.error
        reported = getattr(self._seen, "failures", 0)
        self._seen.failures = failures = self._failures
        if failures > reported:
            raise Undelivered(
                f"{failures - reported} messages were not delivered ({self._why}); publish them again"
            ) from self._last_failure

    def _limit_of(self, topic: str) -> str:
        """Return the largest message of a topic, in words; empty if the broker does not say."""
        try:
            admin = connected(KafkaAdminClient, self._rights.login, **self._options.client())
            try:
                asked = ConfigResource(ConfigResourceType.TOPIC, topic, [_LIMIT])
                found = admin.describe_configs([asked], config_filter="all")
            finally:
                admin.close()
            return f" ({_LIMIT} is {found['topic'][topic][_LIMIT]['value']})"
        except Exception:  # noqa: BLE001  additional information, which needs a separate permission
            return ""

    # --- the producer ---

    def _sound(self) -> KafkaProducer:
        """Return the producer, after replacing one that has failed. Raises kafka-python's errors."""
        producer = self._producer
        if producer is not None and producer is not self._worn:
            return producer
        with self._replacing:
            if self._producer is self._worn and self._producer is not None:
                producer, self._producer = self._producer, None
                _end(producer)
            if self._producer is None:
                self._producer = self._opened()
            return self._producer

    def _note(self, producer: KafkaProducer, error: BaseException) -> None:
        """Mark a producer for replacement if it raised an undocumented error, since it may be in any state."""
        if not isinstance(error, (kafka_errors.KafkaError, OSError)):
            self._worn = producer

    def _opened(self) -> KafkaProducer:
        return connected(
            KafkaProducer,
            self._rights.login,
            **self._options.client(),
            enable_idempotence=True,
            acks="all",
            linger_ms=self._options.linger_ms,
            batch_size=_BATCH_BYTES,
            delivery_timeout_ms=_DELIVERY_TIMEOUT_MS,
            max_block_ms=self._options.connect_timeout_ms,
            allow_auto_create_topics=False,
            metrics_enabled=False,
        )

    # --- called from the producer's one sender thread ---

    def _delivered(self, topic: str, _: object) -> None:
        self.acknowledgements.answered()
        self._rights.granted(publishing(topic))

    def _failed(
        self, producer: KafkaProducer, topic: str, size: int, refused: list[_Refused], error: BaseException
    ) -> None:
        """`refused`: the list of the publishing thread, which alone learns about a message that will be refused every
        time."""
        first, self._worn = producer is not self._worn and producer is self._producer, producer
        if first and isinstance(error, TOO_LARGE):
            refused.append(_Refused(topic, size, error))
            self.acknowledgements.answered()
            return
        self.acknowledgements.given_up()
        if (denied := denial(publishing(topic), error)) is not None:
            self._rights.denied(denied)
        self._why = str(denied or error)
        self._last_failure = error
        self._failures += 1


def publishing(topic: str) -> str:
    """Return the name of the call in error messages."""
    return f"publish to {topic}"


def _flush(producer: KafkaProducer, timeout_s: float) -> None:
    """Wait until all messages of a producer are delivered or have failed. Raises `KafkaTimeoutError`.

    If the broker finds a batch too large, it is sent again in parts, which kafka-python's flush does not wait for.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            producer.flush(max(0.0, deadline - time.monotonic()))
            return
        except kafka_errors.UnknownError:
            if time.monotonic() >= deadline:
                raise


def _end(producer: KafkaProducer) -> None:
    """Close a producer in any state, without waiting for its messages. On a busy machine, or if it could not flush,
    kafka-python leaves its thread running."""
    producer._sender.force_close()
    producer._sender.join()
    with suppress(Exception):
        producer.close(timeout=0)
