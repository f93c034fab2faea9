"""A loop takes part in a job: it comes, gives signs of life, and leaves.

    loop ──Loop (every few seconds)──▶ essp.progress ──▶ master
    loop ◀──command with the loops that take part, and where each began── essp.control ◀── master

A loop says where it begins, or leaves that to the master, which then has it begin with the next pass. It may read once
the master has told of it. Of two processes that come under one name the later one counts; the other gets an error.

A master that has lost sight of a loop goes on without it. When the loop is heard again, it goes on where it is.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from uuid import uuid4

from essp.loops.running_job import RunningJob
from essp_common import topics
from essp_common.errors import EsspError
from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import Control, Loop, Progress
from essp_common.runtime.threads import lasting

log = logging.getLogger(__name__)

_SIGN_OF_LIFE_S = 5.0
_ASK_S = 1.0
_TOLD_S = 60.0


class Membership:
    """The part that one loop takes in a job. Thread-safe."""

    def __init__(self, job: RunningJob, consumer: str, start: Position | None) -> None:
        """Come, and begin at `start`; None: with the next pass. `consumer`: its id."""
        self.incarnation = f"{consumer}/{uuid4().hex}"
        self._job = job
        self._consumer = consumer
        self.start = start
        """Where it begins; None: the master has not told yet."""
        self._position: Callable[[], Position] | None = None
        self._left = threading.Event()
        self._told = threading.Event()
        self._replaced = False
        self._thread = lasting("essp-loop", self._live, self._left, of=consumer)
        self._thread.start()  # first: a loop that cannot give signs of life does not come
        self._say()
        job.control.on_change(self._hear)

    def began(self) -> Position:
        """Wait until the master has told where this loop begins. Raises `EsspError` if it does not."""
        for _ in range(round(_TOLD_S / _ASK_S)):
            if self._told.wait(_ASK_S):
                break
            self._job.check()
            if self._job.over:
                raise EsspError(
                    f"job {self._job.spec.name} is over; start it again (`essp job start`), and this loop goes on "
                    "where its state says"
                )
        if self.start is None or not self._told.is_set():
            raise EsspError(
                f"{self._consumer}: the master of job {self._job.spec.name} has not answered within {_TOLD_S:.0f} s; "
                "is it running? (`essp doctor`)"
            )
        return self.start

    def follow(self, position: Callable[[], Position]) -> None:
        """From here on `position` says where the loop is."""
        self._position = position

    def check(self) -> None:
        """Raises `EsspError` if another process has this name now."""
        if self._replaced:
            raise EsspError(
                f"another process takes part in job {self._job.spec.name} as {self._consumer} now; give each loop a "
                "consumer of its own"
            )

    def leave(self) -> None:
        """Leave the job. Idempotent."""
        if self._left.is_set():
            return
        self._left.set()
        self._job.control.forget(self._hear)
        self._thread.join()
        if not self._replaced:
            self._publish(Loop(consumer=self._consumer, incarnation=self.incarnation, left=True))

    def _live(self) -> None:
        while not self._left.wait(_SIGN_OF_LIFE_S if self._told.is_set() else _ASK_S):
            self._say()

    def _say(self) -> None:
        position = None if self.start is None else self.start.message()
        if not self._replaced:
            self._publish(Loop(consumer=self._consumer, incarnation=self.incarnation, position=position))

    def _hear(self, control: Control) -> None:
        """A command about some job, which says which loops take part."""
        if control.job != self._job.spec.name:
            return
        mine = next((loop for loop in control.loops if loop.consumer == self._consumer), None)
        if mine is not None and mine.incarnation == self.incarnation:
            if not self._told.is_set():
                self.start = Position.of(mine.position)
            self._told.set()
        elif mine is not None and self._told.is_set():
            self._replaced = True
        elif self._told.is_set() and self._position is not None:
            self.start = self._position()  # the master goes on without it: it comes again, and begins where it is

    def _publish(self, loop: Loop) -> None:
        job, bus = self._job.spec.name, self._job.adapters.bus
        try:
            bus.publish(
                topics.PROGRESS, job.encode(), Progress(job=job, worker=self.incarnation, loop=loop).SerializeToString()
            )
            bus.flush()
        except EsspError as error:
            log.warning("%s: %s; it is said again in a moment", self._consumer, error)
