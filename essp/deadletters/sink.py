"""Copies the dead letters of a job from its bus into its output, so that they outlive the process.

A bus in memory ends with its process, but users look for failed videos afterwards. While the job runs, the sink retries
writes to a store that does not respond. At the end it drops an entry that it cannot write and logs an error.
"""

from __future__ import annotations

import logging
import threading

from google.protobuf.message import DecodeError

from essp.deadletters.entries import clip_key_of
from essp.deadletters.store import OutputEntryStore
from essp_common import topics
from essp_common.bus.port import Bus, Record
from essp_common.bus.reading import batches
from essp_common.errors import EsspError, TransientError
from essp_common.pb.v1.messages_pb2 import DeadLetter
from essp_common.runtime.retry import Outage
from essp_common.runtime.threads import lasting

log = logging.getLogger(__name__)

_POLL_S = 0.5
_RECORDS = 1000


class DeadLetterSink:
    """Writes the dead letters of one job in its own thread, until it is closed."""

    def __init__(self, bus: Bus, store: OutputEntryStore, job: str) -> None:
        self._store = store
        self._job = job
        self._closing = threading.Event()
        self._subscription = bus.subscribe([topics.DEADLETTER], group=None)
        self._thread = lasting("essp-deadletter", self._run, self._closing)
        self._thread.start()

    def close(self) -> None:
        """Write all entries that are on the bus, then stop. Call it after the last publisher, before the bus closes."""
        self._closing.set()
        self._thread.join()
        self._subscription.close()

    def _run(self) -> None:
        for records in batches(self._subscription, self._closing, "dead letters", _RECORDS, _POLL_S):
            for record in records:
                self._keep(record)
        # Nothing is published after `close` was called, so an empty poll means that all entries have been read.
        with Outage("dead letters", lambda _: None):
            while records := self._subscription.poll(_RECORDS, 0.0):
                for record in records:
                    self._keep(record)

    def _keep(self, record: Record) -> None:
        try:
            entry = DeadLetter.FromString(record.value)
        except DecodeError:
            log.warning("record %d of %s is not a dead letter; ignored", record.offset, record.topic)
            return
        clip_key = clip_key_of(entry)
        if entry.purged or (clip_key is not None and clip_key[0] != self._job):
            return
        while True:
            try:
                return self._store.add(record, entry)
            except TransientError as error:
                if self._closing.is_set():
                    log.error("the dead letter %r cannot be kept: %s", entry.reason, error)
                    return
                self._closing.wait(error.retry_after_s)
            except EsspError as error:
                log.error("the dead letter %r cannot be kept: %s", entry.reason, error)
                return
