"""The message bus: partitioned, ordered by partition, delivered at least once.

A consumer group shares the partitions of its topics; a subscription without a group reads every message of
every partition from the beginning (how each worker follows `essp.control`). A record that was polled but not
`done` when its subscriber closes or dies is delivered again, to the next owner of its partition.

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
"""Records of a partition that its last owner may have had in hand. They are marked for the next owner."""

MAX_MESSAGE_BYTES = 1_000_000
"""Most bytes of a message, key and value together: what Kafka takes by default, less the envelope of a record."""


class MessageTooLarge(PermanentError):
    """A message that no bus takes."""

    kind = "limit"


def check_size(topic: str, key: bytes, value: bytes) -> None:
    """Raises `MessageTooLarge`."""
    if len(key) + len(value) > MAX_MESSAGE_BYTES:
        raise MessageTooLarge(
            f"a message to {topic} has {len(key) + len(value)} bytes, and {MAX_MESSAGE_BYTES} are the most"
        )


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
    that this member of the group got from the partition. False is no guarantee either."""
    delivery: int = field(default=0, compare=False)
    """How often this subscriber had begun to read the partition anew when it got the record: `done` needs it."""

    @property
    def bare(self) -> Record:
        """It without key and value: all that `Subscription.done` needs."""
        return replace(self, key=b"", value=b"")


class Subscription(Protocol):
    """One member of a consumer group (or a reader of everything). Used from one thread, except `done`."""

    def poll(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        """Up to `max_records` records, in order by partition; empty after `timeout_s` without any.

        Keeps the membership alive, so it is called regularly even while paused.
        Raises `Unavailable` when the bus cannot be reached.
        """

    def done(self, record: Record) -> None:
        """This record needs no redelivery. Thread-safe, in any order.

        What is committed of a partition is the offset below which everything is done, and only once all that was
        published on the same bus before is durable: work may be called done without a flush for each record. Where
        that was lost for good, all that is not committed is delivered again, also what this subscriber has in hand.
        Of a record that has come again, only the latest delivery counts: what was made of one before may be lost.
        """

    def pause(self) -> None:
        """Take no new records; `poll` goes on returning nothing."""

    def resume(self) -> None:
        """Take records again."""

    @property
    def partitions(self) -> int:
        """How many partitions it owns now. 0 for a member whose group has not dealt it any (yet)."""

    def close(self) -> None:
        """Commit what is done and leave the group. What is not done is delivered again."""


class Bus(Protocol):
    """Where messages are published and read."""

    def ensure_topics(self, partitions: Mapping[str, int], kept: Collection[str] = KEPT) -> None:
        """Create the topics that do not exist, each with so many partitions. Idempotent.

        `kept`: those of which no message may expire.
        """

    def publish(self, topic: str, key: bytes, value: bytes, partition: int | None = None) -> None:
        """Queue one message for delivery. Thread-safe.

        Without `partition`, the key chooses it: equal keys, equal partition. Raises `Unavailable` at once or,
        for a message that was queued before, from `flush`. Raises `MessageTooLarge`, from `flush` where only the
        broker knows.
        """

    def flush(self, timeout_s: float = 30.0) -> None:
        """Return when everything published so far is durable; raise `Unavailable` when it is not."""

    def subscribe(
        self, topics: Sequence[str], group: str | None, partitions: Sequence[int] | None = None
    ) -> Subscription:
        """Join `group`, from the earliest record it has not committed.

        `group=None` reads everything, from the beginning, with no commits. `partitions` takes exactly these
        partitions of each topic instead of a share (the group then only remembers how far it came).
        """

    def backlog(self, topic: str, group: str) -> int:
        """Records that the group has not committed, over all partitions. For people and scaling, not for logic."""

    def held(self, topic: str) -> Sequence[range]:
        """The offsets of what each partition holds now. Raises `NotFound`, and `Unavailable`."""

    def troubles(self) -> Troubles:
        """What keeps this bus from working, as far as this process can see; it is not asked for."""

    def close(self) -> None:
        """Flush and release everything."""
