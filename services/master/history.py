"""Writes the history of the master's jobs in the background, and says when it is durable.

One batch at a time: a segment of each job of which something was noted. Until a batch is written its messages of
`essp.progress` are not called done, so what a master dies with is delivered again to its successor, which stands where
the newest segment says.

A store that does not answer is asked again, however long; meanwhile the master goes on, until it holds so many messages
that it reads no more (back-pressure). A job whose history somebody else has appended to, or cannot be written at all,
is given back with the reason: it is no longer this master's.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from essp_common.errors import EsspError, TransientError
from essp_common.failpoints import failpoint
from essp_common.history import History, Overtaken
from essp_common.pb.v1.messages_pb2 import HistorySegment

log = logging.getLogger(__name__)

_CHAPTER = 128
"""Segments that are joined at once."""
_LONG_S = 30.0
"""After so long without a write the fences are looked at first: this process may have slept."""
_LONGEST_WAIT_S = 10.0
_SHARE = 0.02
"""Most of the master's time that may go into making segments."""


@dataclass(frozen=True, slots=True)
class Page:
    """A segment, and where it goes."""

    job: str
    history: History
    segment: HistorySegment


class HistoryWriter:
    """Writes batches, each in a thread of its own."""

    def __init__(self, interval_s: float, clock: Callable[[], float]) -> None:
        """`interval_s`: least time between two batches."""
        self._interval_s = interval_s
        self._clock = clock
        self._due_s = clock()
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._written_s: dict[str, float] = {}
        self._lost: list[tuple[str, EsspError]] = []

    @property
    def busy(self) -> bool:
        """A batch is being written."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def due(self) -> bool:
        """It is time for the next batch."""
        return self._clock() >= self._due_s

    def lost(self) -> Sequence[tuple[str, EsspError]]:
        """The jobs that are no longer this master's, and why; each is told once."""
        lost, self._lost = self._lost, []
        return lost

    def write(self, pages: Sequence[Page], took_s: float, then: Callable[[], None]) -> None:
        """Write a batch, then call `then`. `took_s`: how long it took to make. Only while not `busy`."""
        self._due_s = self._clock() + max(self._interval_s, took_s / _SHARE)
        if not pages:
            then()
            return
        self._thread = threading.Thread(target=self._write, args=(pages, then), name="essp-history", daemon=True)
        self._thread.start()

    def finish(self, timeout_s: float) -> None:
        """Wait for the batch under way, which is given up after this time."""
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                self._closing.set()
                self._thread.join()

    def _write(self, pages: Sequence[Page], then: Callable[[], None]) -> None:
        for page in pages:
            try:
                if not self._append(page):
                    return
            except EsspError as error:
                self._lost.append((page.job, error))
        if any(isinstance(error, Overtaken) for _, error in self._lost):
            return  # the other master accounts for these messages
        failpoint("master.history-written")
        then()
        failpoint("master.progress-done")
        for page in pages:
            if page.segment.last % _CHAPTER == 0:
                self._join(page)

    def _append(self, page: Page) -> bool:
        """Append durably; False when the master leaves before that worked."""
        tries = 0
        while True:
            try:
                self._check_fence(page)
                page.history.append(page.segment)
            except TransientError as error:
                tries += 1
                log.warning("job %s: its history waits: %s", page.job, error)
                if self._closing.wait(min(error.retry_after_s * 2.0 ** min(tries, 10), _LONGEST_WAIT_S)):
                    return False
            else:
                self._written_s[page.job] = time.monotonic()
                return True

    def _check_fence(self, page: Page) -> None:
        last_s = self._written_s.get(page.job)
        if last_s is not None and time.monotonic() - last_s < _LONG_S:
            return
        if fence := page.history.fences_above(page.segment.fence):
            raise Overtaken(f"fence {fence} was taken, and this master has {page.segment.fence}", fence)

    def _join(self, page: Page) -> None:
        try:
            page.history.join(page.segment.last, _CHAPTER // 2)
        except EsspError as error:  # more objects than need be; the next time it is tried again
            log.warning("job %s: segments of its history could not be joined: %s", page.job, error)
