"""The snapshot of a job, as its commands carry it, and the storage of snapshots that are too large for a message.

A command carries the job's specification and, usually, its classes and phases. With many thousands of either, the
message would exceed the limit of the bus. Then the master stores the whole snapshot in the job's output, under its
fence, before it publishes the first command, and `Control.stored` names that output.
"""

from __future__ import annotations

import zstandard
from google.protobuf.message import DecodeError

from essp_common.artifacts import layout
from essp_common.bus.port import MAX_MESSAGE_BYTES
from essp_common.compression import decompressed
from essp_common.errors import ConfigError, NotFound
from essp_common.objects.numbered_log import NumberedLog
from essp_common.objects.port import ObjectStore
from essp_common.pb.v1.messages_pb2 import Control, JobSnapshot
from essp_common.wiring import Stores

MOST_SPEC_BYTES = MAX_MESSAGE_BYTES // 4
"""The largest specification: every command carries it, and every seed carries parts of it."""
_MOST_BYTES = MAX_MESSAGE_BYTES // 2
"""The largest snapshot in a message."""
_MOST_STORED_BYTES = 2**30


def is_large(snapshot: JobSnapshot) -> bool:
    """Whether a snapshot must be stored because it does not fit into a message."""
    return snapshot.ByteSize() > _MOST_BYTES


def store_if_large(output: ObjectStore, snapshot: JobSnapshot, fence: int) -> None:
    """Store a snapshot that does not fit into a message, and remove snapshots of much older runs."""
    if not is_large(snapshot):
        return
    stored = NumberedLog(output, layout.SNAPSHOTS)
    output.put(stored.key(fence), zstandard.ZstdCompressor(write_checksum=True).compress(snapshot.SerializeToString()))
    stored.prune(fence)


def in_message(snapshot: JobSnapshot) -> JobSnapshot:
    """The part of a snapshot that a message carries."""
    if not is_large(snapshot):
        return snapshot
    part = JobSnapshot()
    part.CopyFrom(snapshot)
    part.ClearField("classes")
    part.ClearField("phases")
    return part


def completed(command: Control, stores: Stores) -> Control:
    """The command with the whole snapshot. Raises `ConfigError` if that is gone, and what the store raises."""
    if not command.stored:
        return command
    output = stores.under(command.stored)
    key = NumberedLog(output, layout.SNAPSHOTS).key(command.fence)
    try:
        snapshot = JobSnapshot.FromString(decompressed(output.get(key), _MOST_STORED_BYTES))
    except (NotFound, zstandard.ZstdError, DecodeError, MemoryError) as error:
        raise ConfigError(
            f"job {command.job}: its classes and phases cannot be read from {output.uri(key)} ({error}); start the job "
            "again",
            code="unreadable",
        ) from error
    whole = Control()
    whole.CopyFrom(command)
    whole.snapshot.CopyFrom(snapshot)
    return whole
