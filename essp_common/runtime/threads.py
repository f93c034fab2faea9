"""Threads that last as long as their process, and errors in them that nobody expected.

A thread that ends of an error does so unseen: what it did is not done any more, and everything else goes on. So long-
lived threads are started here, and none ends silently:

    lasting(name, run, ended)     begins `run` again after an error, until `ended`: for loops that only look or tell
    guarded(name, run, failed)    runs once; after an error `failed` says what follows, such as the end of the process

Each such error is in the log with its traceback, and counted (`essp_unexpected_errors_total`). Errors that a thread
expects are its own to handle; one that raises its error again in whoever asks it next needs neither.
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
    """A thread, not started yet, that ends when `run` returns, or fails once `ended` is set.

    `of`: what else belongs to its name, and is not counted apart.
    """

    def again() -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                run()
                return
            except Exception as error:  # noqa: BLE001  of any kind: whoever it is has to go on
                unexpected(name, error)
            if ended.wait(pause_s):
                return
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    return threading.Thread(target=again, name=_full(name, of), daemon=True)


def guarded(
    name: str, run: Callable[[], object], failed: Callable[[], object] | None = None, of: str = ""
) -> threading.Thread:
    """A thread, not started yet, that runs once; `failed` is called where it ends of an error."""

    def once() -> None:
        try:
            run()
        except Exception as error:  # noqa: BLE001  of any kind: it is not to pass unseen
            unexpected(name, error)
            if failed is not None:
                failed()

    return threading.Thread(target=once, name=_full(name, of), daemon=True)


def unexpected(where: str, error: BaseException) -> None:
    """Log and count an error that nobody expected, by who goes on in spite of it. `where`: one of few names."""
    metrics.UNEXPECTED.labels(where).inc()
    log.error("%s: unexpected error; the thread continues", where, exc_info=error)


def _full(name: str, of: str) -> str:
    return f"{name}-{of}" if of else name
