"""Checks periodically whether this process still owns its training.

Two processes of one trainer read the same messages and free each other's clips, which are then rebuilt over and over.
So a process whose training was taken over should not continue until its next checkpoint, which may be an epoch away. A
process that was suspended checks as soon as it continues.

A store that does not answer says nothing about ownership: the process continues, and its next save decides.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from essp_common.errors import EsspError, Fenced
from essp_common.runtime.threads import lasting

log = logging.getLogger(__name__)


class OwnerWatch:
    """Checks in a separate thread until `close`."""

    def __init__(self, check: Callable[[], None], interval_s: float) -> None:
        """`check`: raises `Fenced` if another process owns the training."""
        self.fenced: Fenced | None = None
        """Why this process must leave; None while it need not."""
        self._check = check
        self._interval_s = interval_s
        self._closed = threading.Event()
        self._thread = lasting("essp-owner", self._run, self._closed)
        self._thread.start()

    def close(self) -> None:
        """Stop checking. Idempotent."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while self.fenced is None and not self._closed.wait(self._interval_s):
            try:
                self._check()
            except Fenced as error:
                self.fenced = error
            except EsspError as error:
                log.warning("it is not known whether this process still owns its training: %s", error)
