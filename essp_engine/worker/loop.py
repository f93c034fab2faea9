"""The loop of every pool worker: consume, handle, retry, dead-letter, drain.

One thread polls; `lanes` threads each own a `Stage` and handle one record at a time. Invariants:

- a record is `done` only after its effects are published and reported (`reports.py`), so a killed worker loses nothing;
- a transient error is retried in place with back-off (polling continues, so the worker stays in its group);
- a permanent error, or `attempts` transient ones, ends in the stage's `reject`. These do not count, because they are
  not the record's fault: back-pressure; an unreachable bus or cache, or missing rights there; and, for up to
  `patience_s`, any other unreachable server;
- a record during whose processing `attempts` workers died is rejected as well (`crash_counts.py`);
- `drain` starts nothing new, finishes the current records, and returns the rest to the group.

At most `lanes` records and a small prefetch are held; while that is full, the subscription is paused. An exception that
is not one of ESSP's counts as one more failed attempt, then as a permanent error: a defect triggered by one record must
not stop the pool. A record that cannot even be rejected must not stop it either: it is dropped, counted and reported
(`troubles`). Only these stop `run`: a stage that cannot be set up, and a lane that hangs. After `stuck_s` in one
attempt the worker exits, so that others can take over its work.
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
"""Longest waits between two attempts. Back-pressure is not a fault, and ends as soon as consumers catch up."""
_UNEXPECTED_RETRY_S = 0.2
_TAKE_BACK_S = 5.0
"""How often a worker checks whether another one has begun its records."""
_DROPPED_S = 600.0
"""How long a dropped record is reported: by then, a job that waits for it has had it issued again."""
_jitter = random.Random()
os.register_at_fork(after_in_child=_jitter.seed)


class Stage(Protocol):
    """What one lane of a worker does with a record. Used from one thread."""

    def setup(self) -> None:
        """Allocate what the lane needs (a child process, a library)."""

    def handle(self, record: Record) -> None:
        """Do the work, publish its result, and report it. Must be safe to repeat for the same record."""

    def reject(self, record: Record, error: EsspError, attempts: int) -> None:
        """Report a record that cannot be processed: `Failed` to the master, `DeadLetter` for users."""

    def close(self) -> None:
        """Release what `setup` allocated, even if it failed."""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Settings of a worker."""

    lanes: int = 1
    attempts: int = 3
    """Attempts for one record before it is rejected, and deaths of workers that were processing it."""
    patience_s: float = 600.0
    """How long a server with the input of a record may be unreachable before the record is rejected."""
    stuck_s: float = 3600.0
    """Longest duration of one attempt. A longer one counts as hanging, and blocks everything behind it."""
    poll_timeout_s: float = 0.1
    prefetch: int = 2
    """Records held ready in addition to those being handled, so that no lane waits for a poll."""


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
        is_paused: Callable[[], bool] = lambda: False,
    ) -> None:
        """`name`: the pool (`decoder`), which labels metrics and threads. `stage`: called once for each lane. `cache`:
        keeps the counts of records that crash workers. `reports`: shared with the stages. `is_paused`: whether the pool
        may take nothing new."""
        self.name = name
        self._subscription = subscription
        self._stage = stage
        self._reports = reports
        self._options = options
        self._is_paused = is_paused
        self._draining = threading.Event()
        self._crash_counts = CrashCounts(cache, name, options.attempts, self._draining)
        self._changed = threading.Condition()
        self._ready: deque[Record] = deque()
        self._in_hand = 0
        self.load = LaneLoad(options.lanes)
        """The recent load of the lanes."""
        self._tries: dict[str, float] = {}
        """Lane name -> the time at which it began its current attempt."""
        self._error: Exception | None = None
        self._dropped: tuple[str, float] | None = None
        """The last record that could not even be reported, and when."""

    def run(self) -> None:
        """Consume until `drain` is called. Raises what a lane's `setup` raised, and `WorkerStuck`."""
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
                # Polling keeps the group membership while the lanes finish their records.
                while lane.is_alive() and lane.name not in self._stuck():
                    self._keep_membership()
                    lane.join(self._options.poll_timeout_s)
            try:
                self._report()
            finally:
                # Close last: the commits of `_report` need the subscription.
                metrics.UNITS.labels(self.name, "returned").inc(len(self._ready))
                self._subscription.close()
        if self._error is not None:
            raise self._error

    def drain(self) -> None:
        """Finish the current records, then let `run` return. Thread-safe, idempotent."""
        with self._changed:
            self._draining.set()
            self._changed.notify_all()

    def gauges(self) -> dict[str, float]:
        """The gauges of a heartbeat: its load since the last call, and the number of `partitions` that it owns."""
        return {**self.load.take(), "partitions": float(self._subscription.partitions)}

    def troubles(self) -> Troubles:
        """Reports a recently dropped record, for which its job waits."""
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
            room = 0 if self._waits_while_paused() else self._wait_for_room()
            # Without room, still poll (paused, without waiting), because only polling keeps the group membership.
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
        except Exception as error:  # noqa: BLE001  it only affects counts
            threads.unexpected("crash-counts", error)

    def _stuck(self) -> list[str]:
        """Lanes that hang."""
        since = time.monotonic() - self._options.stuck_s
        return [lane for lane, began in list(self._tries.items()) if began < since]

    def _waits_while_paused(self) -> bool:
        """Whether the pool is paused; if so, wait for a moment."""
        return self._is_paused() and not self._draining.wait(self._options.poll_timeout_s)

    def _wait_for_room(self) -> int:
        """Wait for room, and return how many records may be taken; 0 after a while, because the group membership needs
        a poll."""
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
        except Exception as error:  # noqa: BLE001  the current records are finished in any case
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
        except Exception as error:  # noqa: BLE001  raised by `run`
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
        """A lane has finished its record. Returns True if there are no others."""
        with self._changed:
            self._in_hand -= 1
            self.load.end()
            metrics.INFLIGHT.labels(self.name).dec()
            self._changed.notify_all()
            return not self._in_hand and (not self._ready or self._draining.is_set())

    def _report(self) -> None:
        """Report finished work to the master, and commit the records that were reported."""
        try:
            self._reports.flush()
        except TransientError as error:
            log.warning("%s: finished work cannot be reported: %s; trying again", self.name, error)
        except EsspError:  # no one would learn of this worker's results: it exits with the reason
            raise
        except Exception as error:  # noqa: BLE001  unpublished reports are kept and published later
            threads.unexpected(f"{self.name}-reports", error)

    def _process(self, stage: Stage, record: Record) -> None:
        """Finish one record: it is done once it is reported, rejected, or returned to the group."""
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
            # Not committed here: `flush` calls `_done` after the reports of the record are durable.
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
        """Try until it works (returns None) or another attempt is pointless."""
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
        """Measures the duration of an attempt, so that a hanging one is noticed."""
        lane = threading.current_thread().name
        self._tries[lane] = time.monotonic()
        try:
            yield
        finally:
            del self._tries[lane]

    def _reject(self, stage: Stage, record: Record, rejection: _Rejection) -> None:
        """Let the stage report the rejection, retrying as long as its servers are unreachable."""
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
        """Wait before the next attempt; a drain ends the wait, and the record goes back to the group."""
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
    """The error to report for an exception that is not one of ESSP's."""
    wrapped = PermanentError(f"{type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


def _where(record: Record) -> str:
    return f"{record.topic}[{record.partition}]@{record.offset}"
