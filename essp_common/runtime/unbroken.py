"""What no signal breaks off half-way: to begin and to end threads, processes and files.

Python calls the handlers of signals in the main thread, between any two instructions, and what they raise there
(KeyboardInterrupt at Ctrl-C, SystemExit, a timeout of somebody's) ends what it meets. A `finally` that ends a job is
met by the second Ctrl-C. So that is done in a thread of its own, and only waiting for it can be interrupted.

What is asked for after an interrupt waits for what the interrupt has left under way: a folder is removed once the job
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
"""The thread of the call that came last."""


def unbroken(call: Callable[[], T]) -> T:
    """What `call` returns or raises. If a signal's handler raises meanwhile, so does this, at once; `call` goes on, and
    the process does not end before it has."""
    global _last
    if threading.current_thread() is not threading.main_thread() or sys.is_finalizing():  # then no thread runs any more
        return call()
    outcome: Future[T] = Future()
    before = _last
    _last = threading.Thread(target=_run, args=[call, outcome, before], name="essp-unbroken")
    try:
        _last.start()
    except RuntimeError:  # no more threads here, or the interpreter ends
        _last = before
        _run(call, outcome, before)
    try:
        return outcome.result()
    finally:
        del outcome  # else an error, whose traceback has this frame, would hold itself


def _run(call: Callable[[], T], outcome: Future[T], before: threading.Thread | None) -> None:
    if before is not None and before.is_alive():
        before.join()
    try:
        outcome.set_result(call())
    except BaseException as error:  # noqa: BLE001  raised where it was asked for
        outcome.set_exception(error)
        del outcome
