"""What could not be processed: published where people look for it (`essp deadletter`), with the reason."""

from __future__ import annotations

import time

from essp_common import topics
from essp_common.bus.port import Bus, Record
from essp_common.errors import EsspError
from essp_common.failures import kind_of
from essp_common.pb.v1.messages_pb2 import DeadLetter


def publish_dead_letter(
    bus: Bus, record: Record, error: EsspError, attempts: int, worker: str, message: bytes | None = None
) -> None:
    """Say that `worker` has given up a record, or the `message` that is a part of it. The caller flushes."""
    letter = DeadLetter(
        topic=record.topic,
        message=record.value if message is None else message,
        reason=str(error),
        kind=kind_of(error),
        attempts=attempts,
        worker=worker,
        time_ms=time.time_ns() // 1_000_000,
    )
    bus.publish(topics.DEADLETTER, record.key, letter.SerializeToString())
