"""Writes the history of the master's jobs in the background, and marks messages as done once it is durable.

One batch at a time: a segment of each job with something new to record. Until a batch is written its messages of
`essp.progress` are not done. So if the master dies, the bus delivers them again to its successor, which continues where
the newest segment says.

A store that does not answer is tried again without limit. The master continues meanwhile, until it holds so many
messages that it reads no more (back-pressure). If another master has appended to a job's history, or if the history
cannot be written at all, the writer gives the job back with the reason: it is no longer this master's. A master that
has lost a job to another one leaves, and marks no more messages as done, whichever job they are about. If it stays
after all, since the job had ended, they are done with the next batch.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from essp_common.artifacts.history import History
from essp_common.bus.port import Record, Subscription
from essp_common.errors import EsspError, Fenced, PermanentError
from essp_common.pb.v1.messages_pb2 import HistorySegment, Purpose
from essp_common.runtime.failpoints import failpoint
from essp_common.runtime.retry import Outage
from essp_common.runtime.threads import guarded
from essp_master.config import MasterSettings
from essp_master.job.job import Job
from essp_master.job.lost_history import contents
from essp_master.job.run_state import RunState
from essp_master.status.status_view import status_of

log = logging.getLogger(__name__)

_CHAPTER = 128
"""Segments that are joined at once."""
_LONG_S = 30.0
"""After so long without a write the writer checks the fences first: this process may have slept."""
_LONGEST_WAIT_S = 10.0
_LAST_WRITE_S = 10.0
"""How long a master that leaves waits for its histories to be written."""
_UNFINISHED = 50
"""At most `poll_records` times this many messages wait for the histories to be written; then no more are read."""
_SHARE = 0.02
"""Most of the master's time that may go into making segments."""


@dataclass(frozen=True, slots=True)
class Page:
    """A segment, and where it goes."""

    job: str
    history: History
    segment: HistorySegment
    order: Sequence[tuple[Purpose, int]]
    """Of the job's phases."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A job that is no longer this master's."""

    job: str
    error: EsspError
    part: str
    """What its history lacks, in words."""


class HistoryWriter:
    """Writes batches, each in a thread of its own. Its owner guards `handled`, `lost`, `write` and `holds_all_of`."""

    def __init__(
        self, subscription: Subscription, settings: MasterSettings, worker: str, clock: Callable[[], float]
    ) -> None:
        """`subscription`: whose records are done when the histories hold them."""
        self._subscription = subscription
        self._settings = settings
        self._worker = worker
        self._clock = clock
        self._due_s = clock()
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._written_s: dict[str, float] = {}
        self._pages: Sequence[Page] = ()
        """The batch that is being written, or was the last."""
        self._lost: deque[Lost] = deque()
        self._handled: list[Record] = []
        """Messages that are accounted for, and not yet in the histories."""
        self._left_over: Sequence[Record] = ()
        """Those of a batch in which a page was another master's."""
        self._holding = False

    @property
    def writing(self) -> bool:
        """Whether a batch is being written."""
        return self._thread is not None and self._thread.is_alive()

    def handled(self, records: Sequence[Record]) -> None:
        """These were accounted for."""
        self._handled += records

    def hold_back(self) -> None:
        """Read no more while too much waits for the histories to be written."""
        too_many = len(self._handled) > _UNFINISHED * self._settings.poll_records
        if too_many != self._holding:
            self._holding = too_many
            (self._subscription.pause if too_many else self._subscription.resume)()

    def lost(self) -> Sequence[Lost]:
        """The jobs that are no longer this master's. Each is given once."""
        lost = []
        while self._lost:
            lost.append(self._lost.popleft())
        return lost

    def holds_all_of(self, job: Job) -> bool:
        """Whether all that was noted of a job is written, or never will be, and `lost` has said so."""
        if self.writing and any(page.history is job.run.history for page in self._pages):
            return False
        if any(lost.job == job.name for lost in list(self._lost)):
            return False
        return not (job.recorder.pending and job.run_state.writes_history)

    def forget(self, job: str) -> None:
        """Nothing more is written of a job."""
        self._written_s.pop(job, None)

    def wait(self, timeout_s: float) -> None:
        """Wait for the batch under way, for so long at most."""
        if (thread := self._thread) is not None:
            thread.join(timeout_s)

    def write(self, jobs: Iterable[Job], now: bool = False) -> None:
        """Write what was noted of these jobs, if it is time (or `now`). All that they had done by now is durable."""
        if self.writing or self._lost:  # which may mean that this master has to leave
            return
        jobs = list(jobs)
        self._handled[:0], self._left_over = self._left_over, ()
        if any(job.run_state is RunState.FENCED for job in jobs):
            self._handled.clear()  # the other master accounts for these messages, which no history of this one holds
        noted = [job for job in jobs if job.recorder.pending and job.run_state.writes_history]
        due = now or self._clock() >= self._due_s or any(job.recorder.urgent for job in noted)
        if noted and not due:
            return
        began = time.perf_counter()
        pages = [page for job in noted if (page := self._page(job)) is not None]
        handled, self._handled = self._handled, []
        if not pages:
            self._finish(handled)
            return
        took_s = time.perf_counter() - began
        self._due_s = self._clock() + max(self._settings.history_s, took_s / _SHARE)
        self._pages = pages
        self._thread = guarded("essp-history", partial(self._write, pages, handled))
        self._thread.start()

    def finish(self) -> None:
        """Wait for the batch under way, for a while; then it is given up."""
        if self._thread is not None:
            self._thread.join(_LAST_WRITE_S)
            if self._thread.is_alive():
                self._closing.set()
                self._thread.join()

    def _page(self, job: Job) -> Page | None:
        """The next segment of a job; None if it has none to give, and then it is this job alone that is lost."""
        last = job.recorder.last
        try:
            return Page(job.name, job.run.history, self._segment(job), job.run.preflight.phases.order)
        except Exception as error:
            log.exception("job %s: no segment can be made of its history", job.name, extra={"job_id": job.name})
            part = f"all that happened after segment {last}"
            self._lost.append(Lost(job.name, _unexpected(error), part))
            return None

    def _segment(self, job: Job) -> HistorySegment:
        now_s = self._clock()
        segment = job.segment(self._worker, now_s)
        if job.state.ended:
            segment.status_json = status_of(job, None, now_s).model_dump_json()
        return segment

    def _finish(self, records: Sequence[Record]) -> None:
        for record in records:
            self._subscription.done(record)

    def _write(self, pages: Sequence[Page], handled: Sequence[Record]) -> None:
        fenced = False
        for page in pages:
            try:
                if not self._append(page):
                    return
            except EsspError as error:
                fenced |= isinstance(error, Fenced)
                self._lost.append(self._lacking(page, error))
            except Exception as error:  # of this job alone; were it raised, no message would ever be done again
                log.exception("job %s: its history cannot be written", page.job, extra={"job_id": page.job})
                self._lost.append(self._lacking(page, _unexpected(error)))
        if fenced:
            self._left_over = handled
            return
        failpoint("master.history-written")
        self._finish(handled)
        failpoint("master.progress-done")
        for page in pages:
            if page.segment.last % _CHAPTER == 0:
                self._join(page)

    def _append(self, page: Page) -> bool:
        """Append durably; False when the master leaves before that worked."""
        outage = Outage(f"history of job {page.job}", self._closing.wait, _LONGEST_WAIT_S)
        while True:
            with outage:
                self._check_fence(page)
                page.history.append(page.segment)
                self._written_s[page.job] = time.monotonic()
                return True
            if self._closing.is_set():
                return False

    def _lacking(self, page: Page, error: EsspError) -> Lost:
        return Lost(page.job, error, f"{contents(page.segment, page.order)}, and all that happened since")

    def _check_fence(self, page: Page) -> None:
        last_s = self._written_s.get(page.job)
        if last_s is not None and time.monotonic() - last_s < _LONG_S:
            return
        if fence := page.history.fences_above(page.segment.fence):
            raise Fenced(f"fence {fence} was taken, and this master has {page.segment.fence}", fence)

    def _join(self, page: Page) -> None:
        try:
            page.history.join(page.segment.last, _CHAPTER // 2)
        except EsspError as error:  # more objects than need be; the next time it is tried again
            about = {"job_id": page.job}
            log.warning("job %s: segments of its history could not be joined: %s", page.job, error, extra=about)


def _unexpected(error: Exception) -> PermanentError:
    """What nobody expected, as an error of ours."""
    return PermanentError(f"{type(error).__name__}: {error}")
