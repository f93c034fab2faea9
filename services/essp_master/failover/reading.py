"""Reads the histories of many jobs in parallel, and waits only once for a store that does not answer.

Each request to an unreachable store can block for more than a minute, and the store may hold the histories of thousands
of jobs. So one history of each store is read first, and the others only if the store answers. A store that falls silent
in between is not asked again in the same reading, either.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from essp_common.errors import EsspError, TransientError
from essp_common.job.status import JobStatus
from essp_common.pb.v1.messages_pb2 import Control
from essp_common.wiring import Stores
from essp_master.failover.recovery import past, under_way

log = logging.getLogger(__name__)

_TOGETHER = 16
"""Histories read at the same time."""
_POLL_S = 0.2
_SILENT_S = 5.0
"""A store that fails after blocking for this long is not asked again. A quick failure concerns only its one job."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of reading a job's history."""

    command: Control
    """The last command of the job."""
    ended: JobStatus | None = None
    """The last status of the job; None if it has not ended according to its history."""
    error: Exception | None = None
    """Why the history could not be read."""


class Histories:
    """Reads the outcome of jobs."""

    def __init__(self, stores: Stores, clock: Callable[[], float], leaving: threading.Event) -> None:
        """`leaving`: once set, readers stop waiting for histories."""
        self._stores = stores
        self._clock = clock
        self._leaving = leaving

    def read(self, commands: Sequence[Control], insist: bool = False) -> Generator[Reading, None, None]:
        """Yield the reading of each job as soon as it is complete, roughly in the order of `commands`. Stops early if
        the master leaves.

        `insist`: read the history of every job under way, even if its store has not answered before.
        """
        by_store: dict[str, list[Control]] = defaultdict(list)
        for command in commands:
            by_store[self._store_of(command)].append(command)
        read: SimpleQueue[Reading] = SimpleQueue()
        silent: dict[str, TransientError] = {}
        pool = ThreadPoolExecutor(_TOGETHER, "essp-histories")

        def look(store: str, command: Control) -> None:
            began_s = self._clock()
            if store in silent and not (insist and under_way(command)):
                read.put(Reading(command, error=silent[store]))
                return
            reading = self._reading(command)
            if isinstance(reading.error, TransientError) and self._clock() - began_s >= _SILENT_S:
                silent.setdefault(store, reading.error)
            read.put(reading)

        def look_first(store: str, first: Control, *others: Control) -> None:
            look(store, first)
            if store in silent and others and not insist:
                log.warning("%s; %d other histories in %s are not asked for", silent[store], len(others), store)
            for other in others:
                pool.submit(look, store, other)

        try:
            for store, its in by_store.items():
                pool.submit(look_first, store, *its)
            for _ in commands:
                while not self._leaving.is_set():
                    try:
                        reading = read.get(timeout=_POLL_S)
                    except Empty:
                        continue
                    yield reading
                    break
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _reading(self, command: Control) -> Reading:
        try:
            return Reading(command, past(command, self._stores))
        except Exception as error:  # noqa: BLE001  the reader decides what happens to the job
            return Reading(command, error=error)

    def _store_of(self, command: Control) -> str:
        try:  # takes a fifth of the time of parsing the whole specification, which matters for thousands of jobs
            return self._stores.root_of(json.loads(command.snapshot.spec_json)["output"])
        except (EsspError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
            return ""  # reading its history will report what is wrong with it
