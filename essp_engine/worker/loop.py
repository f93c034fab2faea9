"""The loop of every pool worker: consume, handle, retry, dead-letter, drain.

One thread polls; `lanes` threads each own a `Stage` and handle one record at a time. What must hold:

- a record is `done` only after its effects are published and reported (`reports.py`), so a killed worker loses nothing;
- a transient error is retried in place with back-off (polling continues, so the worker stays in its group);
- a permanent error, or `attempts` transient ones, ends in the stage's `reject`. Back-pressure does not count, nor do
  the bus and the cache while they are away or refuse a right, nor, for as long as `patience_s`, another server that
  cannot be reached: none of it is the record's fault;
- a record that was in hand when `attempts` workers died is rejected as well (`crash_counts.py`);
- `drain` takes nothing new, finishes what is in hand, and returns the rest to the group.

At most `lanes` records and a small prefetch are held; while they are, the subscription is paused. An exception
that is not ESSP's own counts as one more failed try, then as a permanent error: a defect met by one record must not
stop the pool, nor may one that cannot even be rejected: it is dropped, counted and told of (`troubles`). What stops
`run` is a stage that can't be set up, and a lane that hangs: after `stuck_s` in one try the worker leaves, so that
others do what it had in hand.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from essp_common.bus.port import Record, Subscription
from essp_common.cache.port import FrameCache
from essp_common.errors import (
    BadVideo,
    CacheFull,
    EsspError,
    FlowUnavailable,
    PermanentError,
    TransientError,
    Unavailable,
)
from essp_common.runtime import metrics, threads
from essp_common.runtime.failpoints import failpoint
from essp_common.runtime.logs import bound
from essp_common.runtime.retry import Outage
from essp_common.runtime.troubles import Kind, Troubles
from essp_engine.worker.crash_counts import CrashCounts, Returned
from essp_engine.worker.heartbeat import LaneLoad
from essp_engine.worker.log_context import log_context
from essp_engine.worker.reports import Reports

log = logging.getLogger(__name__)

_ERROR_BACKOFF_S = 10.0
_PRESSURE_BACKOFF_S = 1.0
"""Longest waits between two tries. Back-pressure is no fault and ends as soon as consumers catch up."""
_UNEXPECTED_RETRY_S = 0.2
_TAKE_BACK_S = 5.0
"""How often a worker looks whether another has begun what it has in hand."""
_DROPPED_S = 600.0
"""For how long people are told of what was dropped: a job that waits for it has it issued again within that time."""
_jitter = random.Random()
os.register_at_fork(after_in_child=_jitter.seed)


class Stage(Protocol):
    """What one lane of a worker does with a record. Used from one thread."""

    def setup(self) -> None:
        """Allocate what the lane needs (a child process, a library)."""

    def handle(self, record: Record) -> None:
        """Do the work, publish its result, and report it. Doing it twice for the same record is harmless."""

    def reject(self, record: Record, error: EsspError, attempts: int) -> None:
        """Report a record that cannot be processed: `Failed` to the master, `DeadLetter` for people."""

    def close(self) -> None:
        """Release what `setup` took; also after a `setup` that failed."""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How a worker runs."""

    lanes: int = 1
    attempts: int = 3
    """Tries of one record before it is rejected, and deaths of workers that had it in hand."""
    patience_s: float = 600.0
    """How long a server that holds the input of a record may be away before the record is rejected."""
    stuck_s: float = 3600.0
    """Longest time for one try. One that is longer hangs, and so does all behind it."""
    poll_timeout_s: float = 0.1
    prefetch: int = 2
    """Records held ready beside those being handled, so that no lane waits for a poll."""


class Worker:
    """Runs stages over a subscription until drained. Owns the subscription: `run` closes it."""

    def __init__(
        self,
        name: str,
        subscription: Subscription,
        cache: FrameCache,
        stage: Callable[[], Stage],
        reports: Reports,
        options: WorkerOptions,
    ) -> None:
        """`name` is the pool's (`decoder`): it labels metrics and threads. `stage` is called once a lane. `cache` keeps
        count of records that bring workers down. `reports` are the stages'."""
        self.name = name
        self._subscription = subscription
        self._stage = stage
        self._reports = reports
        self._options = options
        self._draining = threading.Event()
        self._crash_counts = CrashCounts(cache, name, options.attempts, self._draining)
        self._changed = threading.Condition()
        self._ready: deque[Record] = deque()
        self._in_hand = 0
        self.load = LaneLoad(options.lanes)
        """What the lanes did lately."""
        self._tries: dict[str, float] = {}
        """When each lane began what it is trying now, by its name."""
        self._error: Exception | None = None
        self._dropped: tuple[str, float] | None = None
        """What could not even be reported, and when."""

    def run(self) -> None:
        """Consume until `drain` is called; raises what a lane's `setup` raised, and `WorkerStuck`."""
        lanes = [
            threading.Thread(target=self._lane, name=f"{self.name}-lane-{number}", daemon=True)
            for number in range(self._options.lanes)
        ]
        try:
            for lane in lanes:
                lane.start()
            self._feed()
        finally:
            self.drain()
            for lane in lanes:
                # Polling keeps the membership while what is in hand is finished.
                while lane.is_alive() and lane.name not in self._stuck():
                    self._keep_membership()
                    lane.join(self._options.poll_timeout_s)
            try:
                self._report()
            finally:
                metrics.UNITS.labels(self.name, "returned").inc(len(self._ready))
                self._subscription.close()
        if self._error is not None:
            raise self._error

    def drain(self) -> None:
        """Finish what is in hand, then let `run` return. Thread-safe, idempotent."""
        with self._changed:
            self._draining.set()
            self._changed.notify_all()

    def gauges(self) -> dict[str, float]:
        """What a heartbeat says of it: its load since the last call, and the `partitions` that it owns."""
        return {**self.load.take(), "partitions": float(self._subscription.partitions)}

    def troubles(self) -> Troubles:
        """It has lately dropped a record, for which its job waits."""
        if self._dropped is None or time.monotonic() - self._dropped[1] >= _DROPPED_S:
            return {}
        return {
            Kind.UNREPORTED: f"{self._dropped[0]}: it could not be processed or reported, and its job waits for it; "
            "the worker's log says why, most likely that its packages are of two versions: install it again"
        }

    @property
    def in_hand(self) -> int:
        """Records being handled now."""
        return self._in_hand

    # --- the polling thread ---

    def _feed(self) -> None:
        """Keep `lanes + prefetch` records in the process, and no more."""
        paused = False
        outage = Outage(self.name, self._draining.wait)
        take_back_s = time.monotonic() + _TAKE_BACK_S
        while not self._draining.is_set():
            if stuck := self._stuck():
                raise WorkerStuck(
                    f"{', '.join(stuck)}: hangs for {self._options.stuck_s:g} s; leaving its work to others"
                )
            if self._reports.due:
                self._report()
            if time.monotonic() >= take_back_s:
                self._take_back()
                take_back_s = time.monotonic() + _TAKE_BACK_S
            room = self._wait_for_room()
            if bool(room) == paused:
                paused = not room
                (self._subscription.pause if paused else self._subscription.resume)()
            records: Sequence[Record] = ()
            with outage:
                records = self._subscription.poll(max(room, 1), self._options.poll_timeout_s if room else 0.0)
            if records:
                failpoint("worker.polled")
            with self._changed:
                self._ready.extend(records)
                self._changed.notify_all()

    def _take_back(self) -> None:
        try:
            self._crash_counts.take_back()
        except Exception as error:  # noqa: BLE001  it only counts
            threads.unexpected("crash-counts", error)

    def _stuck(self) -> list[str]:
        """Lanes that hang."""
        since = time.monotonic() - self._options.stuck_s
        return [lane for lane, began in list(self._tries.items()) if began < since]

    def _wait_for_room(self) -> int:
        """How many records may be taken; 0 after a while without room, for the membership wants a poll."""
        capacity = self._options.lanes + self._options.prefetch
        with self._changed:
            self._changed.wait_for(
                lambda: self._draining.is_set() or self._in_hand + len(self._ready) < capacity,
                self._options.poll_timeout_s,
            )
            return capacity - self._in_hand - len(self._ready)

    def _keep_membership(self) -> None:
        try:
            self._subscription.pause()
            self._subscription.poll(1, 0.0)
        except EsspError as error:
            log.warning("%s: while draining: %s", self.name, error)
        except Exception as error:  # noqa: BLE001  what is in hand is finished all the same
            threads.unexpected(f"{self.name}-draining", error)

    # --- the lanes ---

    def _lane(self) -> None:
        try:
            stage = self._stage()
            try:
                stage.setup()
                while (record := self._next()) is not None:
                    try:
                        self._process(stage, record)
                    finally:
                        idle = self._release()
                    if idle or self._reports.due:
                        self._report()
            finally:
                stage.close()
        except Exception as error:  # noqa: BLE001  `run` raises it
            self._error = self._error or error
            self.drain()

    def _next(self) -> Record | None:
        with self._changed:
            self._changed.wait_for(lambda: self._draining.is_set() or bool(self._ready))
            if self._draining.is_set():
                return None
            self._in_hand += 1
            metrics.INFLIGHT.labels(self.name).inc()
            self.load.begin()
            return self._ready.popleft()

    def _release(self) -> bool:
        """A lane has finished what it had in hand. True: there is nothing else."""
        with self._changed:
            self._in_hand -= 1
            self.load.end()
            metrics.INFLIGHT.labels(self.name).dec()
            self._changed.notify_all()
            return not self._in_hand and (not self._ready or self._draining.is_set())

    def _report(self) -> None:
        """Report to the master what is made, and commit the records of what is reported."""
        try:
            self._reports.flush()
        except TransientError as error:
            log.warning("%s: finished work cannot be reported: %s; trying again", self.name, error)
        except EsspError:  # nobody would hear of what this worker makes: it leaves, and says why
            raise
        except Exception as error:  # noqa: BLE001  what could not be done is kept, and done again
            threads.unexpected(f"{self.name}-reports", error)

    def _process(self, stage: Stage, record: Record) -> None:
        """Bring one record to an end: done once it is reported, rejected, or returned to the group."""
        started = time.monotonic()
        outcome = "done"
        try:
            with bound(partial(log_context, record)), self._crash_counts.begun(record) as deaths:
                rejection = _fatal(deaths) if deaths >= self._options.attempts else self._handle(stage, record)
                failpoint("worker.handled")
                if rejection is not None:
                    outcome = "rejected"
                    self._reject(stage, record, rejection)
                    failpoint("worker.rejected")
            self._reports.finished(partial(self._done, record))
        except Returned:
            outcome = "returned"
        metrics.UNITS.labels(self.name, outcome).inc()
        if outcome == "done":
            metrics.LAST_PROGRESS.labels(self.name).set_to_current_time()
        metrics.UNIT_SECONDS.labels(self.name).observe(time.monotonic() - started)

    def _done(self, record: Record) -> None:
        self._subscription.done(record)
        failpoint("worker.done")

    def _handle(self, stage: Stage, record: Record) -> _Rejection | None:
        """Try until it works (None) or is not worth another try."""
        attempts = refused = absent = 0
        patience_ends = time.monotonic() + self._options.patience_s
        while True:
            try:
                with self._trying():
                    stage.handle(record)
                return None
            except CacheFull as error:
                refused += 1
                self._back_off(error, refused, _PRESSURE_BACKOFF_S)
                continue
            except Unavailable as error:
                absent += 1
                if time.monotonic() > patience_ends and not isinstance(error, FlowUnavailable):
                    return _Rejection(error, absent)
                log.warning("%s: %s; trying again", self.name, error, extra={"attempt": absent})
                self._back_off(error, absent, _ERROR_BACKOFF_S)
                continue
            except TransientError as error:
                failure: EsspError = error
            except EsspError as error:
                return _Rejection(error, attempts + 1)
            except Exception as error:
                extra = {"attempt": attempts + 1}
                log.exception("%s: unexpected error on %s", self.name, _where(record), extra=extra)
                failure = unexpected(error)
            attempts += 1
            if attempts >= self._options.attempts:
                return _Rejection(failure, attempts)
            self._back_off(failure, attempts, _ERROR_BACKOFF_S)

    @contextmanager
    def _trying(self) -> Iterator[None]:
        """A try that is not to take for ever."""
        lane = threading.current_thread().name
        self._tries[lane] = time.monotonic()
        try:
            yield
        finally:
            del self._tries[lane]

    def _reject(self, stage: Stage, record: Record, rejection: _Rejection) -> None:
        """Have the stage report it, however long its servers are away."""
        error, attempts = rejection.error, rejection.attempts
        where = (self.name, _where(record), attempts, error)
        log.warning("%s: %s rejected after %d tries: %s", *where, extra={"attempt": attempts})
        metrics.FAILURES.labels(self.name, error.kind).inc()
        tries = 0
        while True:
            try:
                stage.reject(record, error, attempts)
                return
            except TransientError as again:
                tries += 1
                self._back_off(again, tries, _ERROR_BACKOFF_S)
            except Exception as failure:
                # Whatever is wrong with it, it must not stop the pool.
                log.exception("%s: %s is dropped, as it cannot even be reported", self.name, _where(record))
                self._dropped = f"{_where(record)}: {type(failure).__name__}: {failure}", time.monotonic()
                metrics.REFUSED.labels(record.topic).inc()
                return

    def _back_off(self, error: EsspError, tries: int, longest_s: float) -> None:
        """Wait before the next try; a drain ends the wait, and the record goes back to the group."""
        metrics.RETRIES.labels(self.name, error.kind).inc()
        base_s = error.retry_after_s if isinstance(error, TransientError) else _UNEXPECTED_RETRY_S
        delay_s = min(base_s * 2.0 ** min(tries - 1, 20), longest_s)
        if self._draining.wait(delay_s * _jitter.uniform(0.5, 1.0)):
            raise Returned


class WorkerStuck(EsspError):
    """A lane hangs."""


@dataclass(frozen=True, slots=True)
class _Rejection:
    error: EsspError
    attempts: int


def _fatal(deaths: int) -> _Rejection:
    return _Rejection(BadVideo(f"{deaths} workers died while they worked on it", "crashed"), deaths)


def unexpected(error: Exception) -> PermanentError:
    """What is reported of an error that is not ESSP's own."""
    wrapped = PermanentError(f"{type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


def _where(record: Record) -> str:
    return f"{record.topic}[{record.partition}]@{record.offset}"
