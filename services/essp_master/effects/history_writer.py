"""Writes the histories of the master's jobs in the background, and marks messages as done once they are durable there.

It writes one batch at a time: a segment of each job that has something new to record. Until a batch is written, its
messages from `essp.progress` are not done. So if the master dies, the bus delivers them again to its successor, which
continues where the newest segment ends.

If a store does not answer, the write is retried without limit. The master continues meanwhile. When it holds too many
messages, it stops reading (back-pressure). If another master has appended to a job's history, or if the history
cannot be written at all, the writer gives the job back with the reason: this master no longer owns it. A master that
has lost a job to another one leaves, and marks no more messages as done, not even for other jobs. If it stays after
all, because the job had ended, they are done with the next batch.
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
from essp_common.artifacts.timeline import TimelineFile
from essp_common.bus.port import Record, Subscription
from essp_common.errors import EsspError, Fenced, PermanentError
from essp_common.job.timeline import StoredTimeline
from essp_common.pb.v1.messages_pb2 import HistorySegment, Purpose
from essp_common.runtime.failpoints import failpoint
from essp_common.runtime.retry import Outage
from essp_common.runtime.threads import guarded
from essp_master.config import MasterSettings
from essp_master.effects.lost_history import contents
from essp_master.job.job import Job
from essp_master.job.run_state import RunState
from essp_master.status.status_view import curves_of, status_of

log = logging.getLogger(__name__)

_CHAPTER = 128
"""Number of segments after which segments are joined."""
_LONG_S = 30.0
"""After this long without a write, the writer checks the fences first: this process may have been suspended."""
_LONGEST_WAIT_S = 10.0
_LAST_WRITE_S = 10.0
"""How long a master that leaves waits for its histories to be written."""
_UNFINISHED = 50
"""If more than this many times `poll_records` messages wait for the histories to be written, reading stops."""
_COURSE_S = 30.0
"""How often the course of a job is kept while it is under way."""
_SHARE = 0.02
"""Largest share of the master's time for building segments."""


@dataclass(frozen=True, slots=True)
class Page:
    """A segment and its destination."""

    job: str
    history: History
    segment: HistorySegment
    order: Sequence[tuple[Purpose, int]]
    """The order of the job's phases."""
    timeline: TimelineFile
    course: StoredTimeline | None
    """The course of the job, if it is to be kept now."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A job that this master no longer owns."""

    job: str
    error: EsspError
    part: str
    """What is missing from its history, in words."""


class HistoryWriter:
    """Writes batches, each in its own thread. Its owner guards `handled`, `lost`, `write` and `holds_all_of`."""

    def __init__(
        self, subscription: Subscription, settings: MasterSettings, worker: str, clock: Callable[[], float]
    ) -> None:
        """`subscription`: its records are done once the histories contain them."""
        self._subscription = subscription
        self._settings = settings
        self._worker = worker
        self._clock = clock
        self._due_s = clock()
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._written_s: dict[str, float] = {}
        self._course_due_s: dict[str, float] = {}
        self._pages: Sequence[Page] = ()
        """The batch that is being written, or was written last."""
        self._lost: deque[Lost] = deque()
        self._handled: list[Record] = []
        """Messages that are accounted for but not yet in the histories."""
        self._left_over: Sequence[Record] = ()
        """Messages of a batch with a page of a job that another master owns."""
        self._holding = False

    @property
    def writing(self) -> bool:
        """Whether a batch is being written."""
        return self._thread is not None and self._thread.is_alive()

    def handled(self, records: Sequence[Record]) -> None:
        """Note that these messages have been accounted for."""
        self._handled += records

    def hold_back(self) -> None:
        """Stop reading while too many messages wait for the histories to be written."""
        too_many = len(self._handled) > _UNFINISHED * self._settings.poll_records
        if too_many != self._holding:
            self._holding = too_many
            (self._subscription.pause if too_many else self._subscription.resume)()

    def lost(self) -> Sequence[Lost]:
        """Return the jobs that this master no longer owns. Each is returned once."""
        lost = []
        while self._lost:
            lost.append(self._lost.popleft())
        return lost

    def holds_all_of(self, job: Job) -> bool:
        """Whether everything recorded for a job has been written, or never will be and `lost` has reported that."""
        if self.writing and any(page.history is job.run.history for page in self._pages):
            return False
        if any(lost.job == job.name for lost in list(self._lost)):
            return False
        return not (job.recorder.pending and job.run_state.writes_history)

    def forget(self, job: str) -> None:
        """Forget a job: nothing more will be written for it."""
        self._written_s.pop(job, None)
        self._course_due_s.pop(job, None)

    def wait(self, timeout_s: float) -> None:
        """Wait for the current batch, for at most this long."""
        if (thread := self._thread) is not None:
            thread.join(timeout_s)

    def write(self, jobs: Iterable[Job], now: bool = False) -> None:
        """Write what was recorded for these jobs, if a write is due (or `now`). This makes everything durable that they
        had done by now."""
        # a lost job may mean that this master has to leave, so its owner must see it first
        if self.writing or self._lost:
            return
        jobs = list(jobs)
        self._handled[:0], self._left_over = self._left_over, ()
        if any(job.run_state is RunState.FENCED for job in jobs):
            self._handled.clear()  # the other master accounts for these messages; no history of this one contains them
        noted = [job for job in jobs if job.recorder.pending and job.run_state.writes_history]
        due = now or self._clock() >= self._due_s or any(job.recorder.urgent for job in noted)
        if noted and not due:
            return
        began = time.perf_counter()
        pages = [page for job in noted if (page := self._page(job, now)) is not None]
        handled, self._handled = self._handled, []
        if not pages:
            self._finish(handled)
            return
        took_s = time.perf_counter() - began
        self._due_s = self._clock() + max(self._settings.history_s, took_s / _SHARE)
        self._pages = pages
        self._thread = guarded("essp-history", partial(self._write, pages, handled))
        self._thread.start()

    def keep_courses(self, jobs: Iterable[Job]) -> None:
        """Write the courses of these jobs as they are now: the master leaves. Waits for the stores."""
        for job in jobs:
            if job.timeline.changed and job.run_state.writes_history:
                self._keep(job.name, job.run.timeline, job.timeline.stored(curves_of(job)))

    def finish(self) -> None:
        """Wait for the current batch, up to a limit; then abandon it."""
        if self._thread is not None:
            self._thread.join(_LAST_WRITE_S)
            if self._thread.is_alive():
                self._closing.set()
                self._thread.join()

    def _page(self, job: Job, now: bool) -> Page | None:
        """Return the next segment of a job. None if it cannot be built; then only this job is lost. `now`: as in
        `write`."""
        last = job.recorder.last
        try:
            return Page(
                job.name,
                job.run.history,
                self._segment(job),
                job.run.preflight.phases.order,
                job.run.timeline,
                self._course(job, now),
            )
        except Exception as error:
            log.exception("job %s: no segment can be made from its history", job.name, extra={"job_id": job.name})
            part = f"all that happened after segment {last}"
            self._lost.append(Lost(job.name, _unexpected(error), part))
            return None

    def _course(self, job: Job, now: bool) -> StoredTimeline | None:
        """Return the course of a job, unless it was kept a moment ago: unlike a segment, it is written as a whole."""
        now_s = self._clock()
        if not job.timeline.changed or not (now or job.state.ended or now_s >= self._course_due_s.get(job.name, now_s)):
            return None
        self._course_due_s[job.name] = now_s + _COURSE_S
        return job.timeline.stored(curves_of(job))

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
            except Exception as error:  # affects only this job; if it were raised, no message would ever be done again
                log.exception("job %s: its history cannot be written", page.job, extra={"job_id": page.job})
                self._lost.append(self._lacking(page, _unexpected(error)))
        if fenced:
            self._left_over = handled
            return
        for page in pages:
            if page.course is not None:
                self._keep(page.job, page.timeline, page.course)
        failpoint("master.history-written")
        self._finish(handled)
        failpoint("master.progress-done")
        for page in pages:
            if page.segment.last % _CHAPTER == 0:
                self._join(page)

    def _append(self, page: Page) -> bool:
        """Append durably. Returns False if the master leaves before that succeeded."""
        outage = Outage(f"history of job {page.job}", self._closing.wait, _LONGEST_WAIT_S)
        while True:
            with outage:
                self._check_fence(page)
                page.history.append(page.segment)
                self._written_s[page.job] = time.monotonic()
                return True
            if self._closing.is_set():
                return False

    def _keep(self, job: str, timeline: TimelineFile, course: StoredTimeline) -> None:
        try:
            timeline.write(course)
        except EsspError as error:  # costs only what users see; the next write has it again
            log.warning("job %s: its course could not be kept: %s", job, error, extra={"job_id": job})

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
        except EsspError as error:  # costs only additional objects; the next join tries again
            about = {"job_id": page.job}
            log.warning("job %s: segments of its history could not be joined: %s", page.job, error, extra=about)


def _unexpected(error: Exception) -> PermanentError:
    """Wrap an unexpected exception in an error of ESSP."""
    return PermanentError(f"{type(error).__name__}: {error}")
