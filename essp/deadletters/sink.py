"""Keeps the dead letters of a job beyond the process that ran it: from its bus into its output.

A bus in memory ends with its process, and what could not be decoded is wanted afterwards. A store that does not answer
is asked again as long as the job runs; then what could not be written is lost, with an error in the log.
"""

from __future__ import annotations

import logging
import threading

from essp.deadletters.entries import place_of
from essp.deadletters.store import OutputBox
from essp_common import topics
from essp_common.bus.port import Bus, Record
from essp_common.bus.reading import batches
from essp_common.errors import EsspError, TransientError
from essp_common.pb.v1.messages_pb2 import DeadLetter
from essp_common.runtime.retry import Outage

log = logging.getLogger(__name__)

_POLL_S = 0.5
_RECORDS = 1000


class Archive:
    """Writes the dead letters of one job, in a thread of its own, until it is closed."""

    def __init__(self, bus: Bus, box: OutputBox, job: str) -> None:
        self._box = box
        self._job = job
        self._closing = threading.Event()
        self._subscription = bus.subscribe([topics.DEADLETTER], group=None)
        self._thread = threading.Thread(target=self._run, name="essp-deadletter", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write what has come by now, then stop. Call it when nobody publishes any more, before the bus closes."""
        self._closing.set()
        self._thread.join()
        self._subscription.close()

    def _run(self) -> None:
        for records in batches(self._subscription, self._closing, "dead letters", _RECORDS, _POLL_S):
            for record in records:
                self._keep(record)
        with Outage("dead letters", lambda _: None):
            while records := self._subscription.poll(_RECORDS, 0.0):
                for record in records:
                    self._keep(record)

    def _keep(self, record: Record) -> None:
        letter = DeadLetter.FromString(record.value)
        place = place_of(letter)
        if letter.purged or (place is not None and place[0] != self._job):
            return
        while True:
            try:
                return self._box.add(record, letter)
            except TransientError as error:
                if self._closing.is_set():
                    log.error("the dead letter %r cannot be kept: %s", letter.reason, error)
                    return
                self._closing.wait(error.retry_after_s)
            except EsspError as error:
                log.error("the dead letter %r cannot be kept: %s", letter.reason, error)
                return
