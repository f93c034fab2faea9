"""Publishes what could not be processed, with the reason, where users find it (`essp deadletter`)."""

from __future__ import annotations

import time

from essp_common import topics
from essp_common.bus.port import MAX_MESSAGE_BYTES, Bus, Record
from essp_common.errors import EsspError
from essp_common.failures import kind_of, shortened
from essp_common.pb.v1.messages_pb2 import DeadLetter

MOST_BYTES = MAX_MESSAGE_BYTES // 2
"""Maximum bytes of a message in a letter."""
MOST_CHARACTERS = 4_000
"""Maximum characters of a reason, and bytes of a key."""


def publish_dead_letter(
    bus: Bus, record: Record, error: EsspError, attempts: int, worker: str, message: bytes | None = None
) -> None:
    """Report that `worker` has given up on a record, or on `message`, which is a part of it. The caller flushes.

    A message that is too large for the bus is cut: it can be inspected, but not replayed.
    """
    content = record.value if message is None else message
    letter = DeadLetter(
        topic=record.topic,
        message=content[:MOST_BYTES],
        cut_bytes=max(0, len(content) - MOST_BYTES),
        reason=shortened(str(error), MOST_CHARACTERS),
        kind=kind_of(error),
        attempts=attempts,
        worker=worker,
        time_ms=time.time_ns() // 1_000_000,
    )
    bus.publish(topics.DEADLETTER, record.key[:MOST_CHARACTERS], letter.SerializeToString())
