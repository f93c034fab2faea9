"""Releases clips in a separate thread, so that the step does not wait for the cache and the bus.

    step ──release──▶ queue ──all that is there, at once──▶ acks, one report to the master

Guarantees:

- Clips are released in the order in which they were given; those that wait are released together.
- `settle` and `commit` wait until every earlier release is complete. So no checkpoint is announced, and no message
  committed, while its clips still occupy the cache, or before the master knows that they are done.
- A server that does not answer is asked again until the trainer leaves. Clips that are not released by then are not
  committed either, so they are delivered again.
- That and any other error is raised by the next call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from essp_common.bus.port import Record
from essp_common.runtime.failpoints import failpoint
from essp_common.runtime.retry import retry_transient
from essp_engine.intake.ordered import Delivery, OrderedIntake


class Releases:
    """Releases the clips that a training has finished. Its methods are used from one thread."""

    def __init__(self, intake: OrderedIntake, leaving: Callable[[], bool], name: str) -> None:
        """Does not close `intake`. `leaving`: whether to give up calls that fail for now."""
        self._intake = intake
        self._leaving = leaving
        self._waiting: list[Delivery] = []
        self._busy = False
        self._closing = threading.Event()
        self._failure: BaseException | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"essp-release-{name}", daemon=True)
        self._thread.start()

    def release(self, items: Sequence[Delivery]) -> None:
        """Queue these clips: their bytes are freed and they are reported as done soon."""
        with self._changed:
            self._raise()
            self._waiting += items
            self._changed.notify_all()

    def settle(self) -> None:
        """Wait until every release is complete."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or not (self._waiting or self._busy))
            self._raise()

    def commit(self, records: Iterable[Record]) -> None:
        """Commit these records, whose clips were released: they need no redelivery."""
        self.settle()
        self._intake.commit(records)

    def close(self) -> None:
        """Release what can still be released. Idempotent."""
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join()

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while items := self._next():
                retry_transient(partial(self._intake.release, items), self._gives_up, self._closing.wait)
                failpoint("trainer.released")
        except BaseException as error:  # noqa: BLE001  raised again by the next call
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _gives_up(self) -> bool:
        return self._closing.is_set() or self._leaving()

    def _next(self) -> list[Delivery]:
        """Wait for clips and return all of them; empty when closing."""
        with self._changed:
            self._busy = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._waiting or self._closing.is_set())
            items, self._waiting = self._waiting, []
            self._busy = bool(items)
        return items
