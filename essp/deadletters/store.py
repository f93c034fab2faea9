"""Where dead letters are kept: on the bus, or in the output of a job that ran in one process.

BusBox      the topic `essp.deadletter` itself; an id is an offset. Nothing can be deleted from a log, so purging
            publishes which letters are forgotten, and reading leaves those out.
OutputBox   `deadletters/` below a job's output, one object a letter, written by `archive.py`; an id is its name.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping
from typing import Protocol

from essp.deadletters.entries import letter_of
from essp_common import topics
from essp_common.artifacts import layout
from essp_common.bus.port import Bus, Record
from essp_common.bus.reading import read_all
from essp_common.errors import PermanentError
from essp_common.objects.port import ObjectStore
from essp_common.pb.v1.messages_pb2 import DeadLetter


class Box(Protocol):
    """Dead letters, by id."""

    def letters(self) -> Mapping[str, DeadLetter]:
        """All that have not been purged, oldest first."""

    def purge(self, ids: Collection[str]) -> None:
        """Forget these."""


class BusBox:
    """The dead letters on a bus."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    def letters(self) -> Mapping[str, DeadLetter]:
        found: dict[str, DeadLetter] = {}
        for record in read_all(self._bus, topics.DEADLETTER):
            letter = DeadLetter.FromString(record.value)
            for offset in letter.purged:
                found.pop(str(offset), None)
            if not letter.purged:
                found[str(record.offset)] = letter
        return found

    def purge(self, ids: Collection[str]) -> None:
        offsets = sorted(int(identity) for identity in ids)
        self._bus.publish(topics.DEADLETTER, b"", DeadLetter(purged=offsets).SerializeToString())
        self._bus.flush()


class OutputBox:
    """The dead letters in the output of a job."""

    def __init__(self, output: ObjectStore) -> None:
        self._output = output

    def letters(self) -> Mapping[str, DeadLetter]:
        found = {}
        for info in self._output.list(layout.DEADLETTERS):
            identity = info.key.removeprefix(layout.DEADLETTERS).removesuffix(".json")
            try:
                message = b64decode(json.loads(self._output.get(info.key))["deadletter"], validate=True)
                found[identity] = DeadLetter.FromString(message)
            except (ValueError, KeyError, TypeError) as error:
                raise PermanentError(f"{self._output.uri(info.key)} is not a dead letter; remove it") from error
        return found

    def add(self, record: Record, letter: DeadLetter) -> None:
        """Keep a letter that came over the bus. Doing it twice is harmless."""
        identity = f"{letter.time_ms:013d}-{record.offset}"
        document = letter_of(identity, letter).document() | {"deadletter": b64encode(record.value).decode()}
        self._output.put(f"{layout.DEADLETTERS}{identity}.json", json.dumps(document, indent=2).encode())

    def purge(self, ids: Collection[str]) -> None:
        for identity in ids:
            self._output.delete(f"{layout.DEADLETTERS}{identity}.json")
