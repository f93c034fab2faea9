"""Waits until a server that does not answer is back.

A `TransientError` says that the same call may work later, and how many seconds to wait before another try. A caller
that cannot continue without an answer repeats the call, in one of two forms:

    retry_transient(call, leaving, wait)    one call, repeated until it works

    outage = Outage("decoder", stopping.wait)
    while not stopping.is_set():    a loop with its own end condition
        with outage:
            ...                     a TransientError in here is logged, waited for, and suppressed

`wait_out(call, outage)` is the second form for one call. With `patience_s`, an outage is given up after that time.

Other errors of ESSP pass through all forms. Repeated calls must be idempotent. So `retry_transient` also repeats a call
after an unexpected error, twice: a single one must not fail a job.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from essp_common.errors import EsspError, TransientError, Unavailable

log = logging.getLogger(__name__)

T = TypeVar("T")

LONGEST_WAIT_S = 10.0
"""Longest wait between two requests to a store that does not answer."""
_MOST_DOUBLINGS = 20
_UNEXPECTED_TRIES, _UNEXPECTED_WAIT_S = 3, 0.5


class Outage:
    """A block that may fail because a server does not answer. Can be entered repeatedly."""

    def __init__(
        self,
        who: str,
        wait: Callable[[float], object],
        longest_wait_s: float | None = None,
        patience_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
        tell: Callable[..., None] = log.warning,
    ) -> None:
        """`who` begins the log line. `wait` receives the seconds to wait; an event's `wait` can end it early. With
        `longest_wait_s`, each failure in a row doubles the wait up to that; without it, only the error determines the
        wait. `patience_s`: how long failures in a row are waited for; the first one after that is raised.
        `tell`: logs a failure, with the arguments of `log.warning`.
        """
        self._who = who
        self._wait = wait
        self._longest_wait_s = longest_wait_s
        self._patience_s = patience_s
        self._clock = clock
        self._tell = tell
        self._failures = 0
        self._since_s = 0.0
        """When the first failure in a row was."""

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, TransientError):
            self._failures = 0
            return False
        now_s = self._clock()
        if not self._failures:
            self._since_s = now_s
        waited_s = now_s - self._since_s
        if (left_s := self._patience_s - waited_s) <= 0:
            if not waited_s:
                return False
            raise Unavailable(f"{error}; given up after {waited_s:.0f} s (ESSP_STORE_PATIENCE_S)") from error
        until = "" if math.isinf(left_s) else f" for up to {left_s:.0f} s"
        self._tell("%s: %s; trying again%s", self._who, error, until)
        wait_s = error.retry_after_s
        if self._longest_wait_s is not None:
            wait_s = min(wait_s * 2.0 ** min(self._failures, _MOST_DOUBLINGS), self._longest_wait_s)
        self._failures += 1
        self._wait(min(wait_s, left_s))
        return True


def wait_out(call: Callable[[], T], outage: Outage) -> T:
    """Call `call` until it works, and return its result. Raises the error at which `outage` is given up."""
    while True:
        with outage:
            return call()


def retry_transient(
    call: Callable[[], T], leaving: Callable[[], bool], wait: Callable[[float], object] = time.sleep
) -> T:
    """Call `call` until bus, cache and store answer, and return its result.

    Raises the last `TransientError` if `leaving()`: the current work is delivered again to another process. Raises the
    third unexpected error in a row.
    """
    unexpected = 0
    while True:
        try:
            return call()
        except TransientError as error:
            if leaving():
                raise
            unexpected = 0
            log.warning("%s; trying again", error)
            wait(error.retry_after_s)
        except EsspError:
            raise
        except Exception as error:
            unexpected += 1
            if unexpected == _UNEXPECTED_TRIES or leaving():
                raise
            from essp_common.runtime import threads  # metrics, which processes that read files need not load

            threads.unexpected("retry", error)
            wait(_UNEXPECTED_WAIT_S)
