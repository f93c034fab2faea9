"""Threads that last as long as their process, and unexpected errors in them.

A thread that dies of an error does so silently: its work stops, and everything else continues. Therefore, long-lived
threads are started here, and they never die silently:

    lasting(name, run, ended)     restarts `run` after an error, until `ended`: for loops that only observe or report
    guarded(name, run, failed)    runs once; after an error, `failed` decides what follows, such as ending the process

Each such error is logged with its traceback, and counted (`essp_unexpected_errors_total`). A thread handles expected
errors itself; a thread that raises its error again in its next caller needs neither of these.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from essp_common.runtime import metrics

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0


def lasting(name: str, run: Callable[[], object], ended: threading.Event, of: str = "") -> threading.Thread:
    """Return a thread, not started yet, that ends when `run` returns, or when it fails after `ended` is set.

    `of`: a further part of the thread's name, which is not counted separately.
    """

    def again() -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                run()
                return
            except Exception as error:  # noqa: BLE001  of any kind: the loop must continue
                unexpected(name, error)
            if ended.wait(pause_s):
                return
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    return threading.Thread(target=again, name=_full(name, of), daemon=True)


def guarded(
    name: str, run: Callable[[], object], failed: Callable[[], object] | None = None, of: str = ""
) -> threading.Thread:
    """Return a thread, not started yet, that runs once; if it dies of an error, `failed` is called."""

    def once() -> None:
        try:
            run()
        except Exception as error:  # noqa: BLE001  of any kind: it must not pass unnoticed
            unexpected(name, error)
            if failed is not None:
                failed()

    return threading.Thread(target=once, name=_full(name, of), daemon=True)


def unexpected(where: str, error: BaseException) -> None:
    """Log and count an unexpected error, by the part that continues in spite of it. `where`: one of few names."""
    metrics.UNEXPECTED.labels(where).inc()
    log.error("%s: unexpected error; the thread continues", where, exc_info=error)


def _full(name: str, of: str) -> str:
    return f"{name}-{of}" if of else name
