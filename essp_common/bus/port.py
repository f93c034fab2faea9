"""The message bus: partitioned, ordered by partition, delivered at least once.

A consumer group shares the partitions of its topics; a subscription without a group reads every message of every
partition from the beginning (as each worker reads `essp.control`). A record that was polled but is not `done` when its
subscriber closes or dies is delivered again, to the next owner of its partition.

Adapters: `memory.py` (`memory://`), `kafka.py` (`kafka://host:port[,host:port]`). Both pass
`tests/contract/bus_suite.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from essp_common.errors import PermanentError
from essp_common.runtime.troubles import Troubles
from essp_common.topics import KEPT

SUSPECTS = 48
"""Records of a partition that its last owner may have been working on. They are marked for the next owner."""

MAX_MESSAGE_BYTES = 1_000_000
"""Most bytes of a message, key and value together: Kafka's default limit, less the envelope of a record."""


class MessageTooLarge(PermanentError):
    """A message that no bus accepts."""

    kind = "limit"


def check_size(topic: str, key: bytes, value: bytes) -> None:
    """Raise `MessageTooLarge` if a message exceeds the limit."""
    if len(key) + len(value) > MAX_MESSAGE_BYTES:
        raise MessageTooLarge(
            f"a message to {topic} has {len(key) + len(value)} bytes, and {MAX_MESSAGE_BYTES} are the most"
        )


def has_enough(present: int, wanted: int) -> bool:
    """Whether a topic with this number of partitions will do."""
    return present == wanted or present > wanted > 1


@dataclass(frozen=True, slots=True)
class Record:
    """One message as it was delivered. A message without key or value (Kafka's null) has empty ones."""

    topic: str
    partition: int
    offset: int
    key: bytes
    value: bytes
    redelivered: bool = field(default=False, compare=False)
    """May have been delivered before, to the previous owner of the partition: it is among the first `SUSPECTS` records
    that this member of the group received from the partition. False is not a guarantee, either."""
    delivery: int = field(default=0, compare=False)
    """How often this subscriber had started reading the partition again when it received the record; `done`
    needs it."""

    @property
    def bare(self) -> Record:
        """The record without key and value: all that `Subscription.done` needs."""
        return replace(self, key=b"", value=b"")


class Subscription(Protocol):
    """One member of a consumer group (or a reader of everything). Used from one thread, except `done`."""

    def poll(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        """Return up to `max_records` records, in order by partition; empty after `timeout_s` without any.

        Keeps the membership alive, so it must be called regularly even while paused. Raises `Unavailable` if the bus
        cannot be reached.
        """

    def done(self, record: Record) -> None:
        """Note that this record needs no redelivery. Thread-safe, in any order.

        For each partition, the offset below which everything is done is committed, and only once everything that was
        published on the same bus before is durable: work may be called done without a flush for each record. If
        published messages are lost for good, everything uncommitted is delivered again, including records that this
        subscriber is still working on. If a record was delivered again, only the latest delivery counts: the results of
        an earlier one may be lost.
        """

    def pause(self) -> None:
        """Return no new records; `poll` still works, but returns nothing."""

    def resume(self) -> None:
        """Return records again."""

    @property
    def partitions(self) -> int:
        """How many partitions it owns now. 0 for a member that has not been assigned any (yet)."""

    def owned(self, topic: str) -> frozenset[int]:
        """Return the partitions of a topic that it owns now. Thread-safe."""

    def close(self) -> None:
        """Commit what is done and leave the group. What is not done is delivered again."""


class Bus(Protocol):
    """Publishes and reads messages."""

    @property
    def partitions(self) -> int:
        """How many partitions its data topics have, by the settings of this process."""

    def ensure_topics(self, partitions: Mapping[str, int], kept: Collection[str] = KEPT, grow: bool = False) -> None:
        """Create missing topics with these numbers of partitions. Idempotent.

        A topic may have more, which a process with newer settings has added, unless it should have one. `kept`: topics
        whose messages must not expire. `grow`: add partitions to those that have fewer. Raises `ConfigError` for a
        topic that still has another number.
        """

    def publish(self, topic: str, key: bytes, value: bytes, partition: int | None = None) -> None:
        """Queue one message for delivery. Thread-safe.

        Without `partition`, the key determines it: equal keys, equal partition. Raises `Unavailable` at once or, for a
        message that was queued before, from `flush`. Raises `MessageTooLarge`, from `flush` if only the broker knows.
        """

    def flush(self, timeout_s: float = 30.0) -> None:
        """Wait until everything published so far is durable. Raises `Unavailable` if it is not."""

    def subscribe(
        self, topics: Sequence[str], group: str | None, partitions: Sequence[int] | None = None
    ) -> Subscription:
        """Join `group`, starting with the earliest record that it has not committed.

        `group=None` reads everything, from the beginning, without commits. `partitions` takes exactly these partitions
        of each topic instead of a share (the group then only remembers the committed offsets).
        """

    def backlog(self, topic: str, group: str) -> int:
        """Return how many records the group has not committed, over all partitions. For users and scaling, not for
        logic."""

    def begin_groups(self, groups: Mapping[str, str]) -> None:
        """Let these groups (group -> its topic) begin with what is published from now on; a few earlier records may be
        among it. If a group has committed something of the topic, or this user may not do that, it begins as
        `subscribe` says. Raises `Unavailable`."""

    def delete_groups(self, groups: Collection[str]) -> None:
        """Forget what these groups have committed. They have no members any more; some brokers would refuse otherwise.
        A group that this user may not delete stays. Idempotent. Raises `Unavailable`."""

    def held(self, topic: str) -> Sequence[range]:
        """Return the offsets that each partition holds now. Raises `NotFound`, and `Unavailable`."""

    def troubles(self) -> Troubles:
        """Report what keeps this bus from working, as far as this process has noticed; sends no request."""

    def close(self) -> None:
        """Flush and release everything."""
