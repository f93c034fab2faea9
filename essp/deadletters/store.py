"""Stores of dead letters: the bus, or the output of a job that ran in one process.

BusEntryStore      the topic `essp.deadletter`; an id is an offset. A log deletes no messages, so `purge` publishes the
                   ids to hide, and readers leave them out.
OutputEntryStore   `deadletters/` in a job's output, one object for each entry, written by `sink.py`; an id is the
                   name of its object.
"""

from __future__ import annotations

import json
import logging
from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping
from typing import Protocol

from google.protobuf.message import DecodeError

from essp.deadletters.entries import entry_of
from essp_common import topics
from essp_common.artifacts import layout
from essp_common.bus.port import Bus, Record
from essp_common.bus.reading import read_all
from essp_common.objects.port import ObjectStore
from essp_common.pb.v1.messages_pb2 import DeadLetter

log = logging.getLogger(__name__)

_MOST_PURGED = 50_000
"""Per message: an id takes up to ten bytes, and a message is limited to a million."""


class EntryStore(Protocol):
    """Dead letters, by id."""

    def entries(self) -> Mapping[str, DeadLetter]:
        """All entries that are not purged, oldest first. Anything that is not a dead letter is left out."""

    def purge(self, ids: Collection[str]) -> None:
        """Hide or delete these entries."""


class BusEntryStore:
    """The dead letters on a bus."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    def entries(self) -> Mapping[str, DeadLetter]:
        found: dict[str, DeadLetter] = {}
        for record in read_all(self._bus, topics.DEADLETTER):
            try:
                entry = DeadLetter.FromString(record.value)
            except DecodeError:  # any client may write to the topic
                continue
            for offset in entry.purged:
                found.pop(str(offset), None)
            if not entry.purged:
                found[str(record.offset)] = entry
        return found

    def purge(self, ids: Collection[str]) -> None:
        offsets = sorted(int(identity) for identity in ids)
        for begin in range(0, len(offsets), _MOST_PURGED):
            purged = offsets[begin : begin + _MOST_PURGED]
            self._bus.publish(topics.DEADLETTER, b"", DeadLetter(purged=purged).SerializeToString())
        self._bus.flush()


class OutputEntryStore:
    """The dead letters in the output of a job."""

    def __init__(self, output: ObjectStore) -> None:
        self._output = output

    def entries(self) -> Mapping[str, DeadLetter]:
        found = {}
        for info in self._output.list(layout.DEADLETTERS):
            identity = info.key.removeprefix(layout.DEADLETTERS).removesuffix(".json")
            try:
                message = b64decode(json.loads(self._output.get(info.key))["deadletter"], validate=True)
                found[identity] = DeadLetter.FromString(message)
            except (ValueError, KeyError, TypeError, RecursionError, DecodeError) as error:
                log.warning("%s is not a dead letter (%s); remove it", self._output.uri(info.key), error)
        return found

    def add(self, record: Record, entry: DeadLetter) -> None:
        """Write an entry received over the bus. Idempotent."""
        identity = f"{entry.time_ms:013d}-{record.offset}"
        document = entry_of(identity, entry).document() | {"deadletter": b64encode(record.value).decode()}
        self._output.put(f"{layout.DEADLETTERS}{identity}.json", json.dumps(document, indent=2).encode())

    def purge(self, ids: Collection[str]) -> None:
        for key in (f"{layout.DEADLETTERS}{identity}.json" for identity in ids):
            if layout.is_own(key):
                self._output.delete(key)
