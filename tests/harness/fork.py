"""What a test tries in a fork of its process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tests.harness.waiting import LONGEST_S


@contextmanager
def beside_a_fork(check: Callable[[], bool]) -> Iterator[None]:
    """A fork does `check` while this block runs, and has to find it true."""
    child = os.fork()
    if not child:
        status = 1
        with suppress(BaseException):
            threading.Timer(LONGEST_S, os._exit, [2]).start()
            status = 0 if check() else 3
        os._exit(status)
    try:
        yield
    finally:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0, "1: an error, 2: it did not end, 3: not true"
