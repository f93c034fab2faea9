"""Protects calls from being interrupted by signals: starting and ending threads, processes and files.

Python runs signal handlers in the main thread, between any two instructions, and an exception that they raise there
(KeyboardInterrupt at Ctrl-C, SystemExit, some timeout) interrupts whatever is running. A second Ctrl-C can hit the
`finally` block that ends a job. So such calls run in a separate thread, and only waiting for them can be interrupted.

A call after an interrupt waits for the call that the interrupt has left running: a folder is removed only when the job
that writes into it has ended.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

_last: threading.Thread | None = None
"""The thread of the latest call."""


def unbroken(call: Callable[[], T]) -> T:
    """Return or raise what `call` does. If a signal handler raises meanwhile, this raises at once, `call` continues,
    and the process does not end before it has."""
    global _last
    # at shutdown, no thread can run any more
    if threading.current_thread() is not threading.main_thread() or sys.is_finalizing():
        return call()
    outcome: Future[T] = Future()
    before = _last
    _last = threading.Thread(target=_run, args=[call, outcome, before], name="essp-unbroken")
    try:
        _last.start()
    except RuntimeError:  # no more threads here, or the interpreter is shutting down
        _last = before
        _run(call, outcome, before)
    try:
        return outcome.result()
    finally:
        del outcome  # otherwise an error, whose traceback contains this frame, would keep itself alive


def _run(call: Callable[[], T], outcome: Future[T], before: threading.Thread | None) -> None:
    if before is not None and before.is_alive():
        before.join()
    try:
        outcome.set_result(call())
    except BaseException as error:  # noqa: BLE001  raised in the caller
        outcome.set_exception(error)
        del outcome
