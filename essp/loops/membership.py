"""The membership of a loop in a job: it joins, sends heartbeats, and leaves.

    loop ──Loop (every few seconds)──▶ essp.progress ──▶ master
    loop ◀──command with the member loops, and where each began── essp.control ◀── master

A loop says where it begins, or leaves the choice to the master, which then lets it begin with the next pass. It may
read as soon as the master has announced it. If two processes join under one name, the later one replaces the earlier
one, which gets an error.

If the master gets no heartbeats from a loop, it continues without it. When heartbeats arrive again, the loop rejoins at
its current position.
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

_HEARTBEAT_S = 5.0
_ASK_S = 1.0
_ANSWER_S = 60.0


class Membership:
    """The membership of one loop in a job. Thread-safe."""

    def __init__(self, job: RunningJob, consumer: str, start: Position | None) -> None:
        """Join, and begin at `start`; None: with the next pass. `consumer`: id of the consumer."""
        self.incarnation = f"{consumer}/{uuid4().hex}"
        self._job = job
        self._consumer = consumer
        self.start = start
        """Where it begins; None: the master has not yet announced it."""
        self._position: Callable[[], Position] | None = None
        self._left = threading.Event()
        self._announced = threading.Event()
        self._replaced = False
        self._thread = lasting("essp-loop", self._live, self._left, of=consumer)
        self._thread.start()  # first: a loop that cannot send heartbeats does not join
        self._send()
        job.control.on_change(self._receive)

    def began(self) -> Position:
        """Wait until the master has announced this loop; returns where it begins. Raises `EsspError` if it does not."""
        for _ in range(round(_ANSWER_S / _ASK_S)):
            if self._announced.wait(_ASK_S):
                break
            self._job.check()
            if self._job.over:
                raise EsspError(
                    f"job {self._job.spec.name} is over; start it again (`essp job start`), and this loop continues "
                    "from its state"
                )
        if self.start is None or not self._announced.is_set():
            raise EsspError(
                f"{self._consumer}: the master of job {self._job.spec.name} did not answer within {_ANSWER_S:.0f} s; "
                "check that it runs (`essp doctor`)"
            )
        return self.start

    def follow(self, position: Callable[[], Position]) -> None:
        """From now on, `position` returns the position of the loop."""
        self._position = position

    def check(self) -> None:
        """Raises `EsspError` if another process has joined under this name."""
        if self._replaced:
            raise EsspError(
                f"another process has joined job {self._job.spec.name} as {self._consumer}; give each loop its own "
                "consumer"
            )

    def leave(self) -> None:
        """Leave the job. Idempotent."""
        if self._left.is_set():
            return
        self._left.set()
        self._job.control.forget(self._receive)
        self._thread.join()
        if not self._replaced:
            self._publish(Loop(consumer=self._consumer, incarnation=self.incarnation, left=True))

    def _live(self) -> None:
        while not self._left.wait(_HEARTBEAT_S if self._announced.is_set() else _ASK_S):
            self._send()

    def _send(self) -> None:
        position = None if self.start is None else self.start.message()
        if not self._replaced:
            self._publish(Loop(consumer=self._consumer, incarnation=self.incarnation, position=position))

    def _receive(self, control: Control) -> None:
        """Handle a command, which lists the member loops of a job."""
        if control.job != self._job.spec.name:
            return
        mine = next((loop for loop in control.loops if loop.consumer == self._consumer), None)
        if mine is not None and mine.incarnation == self.incarnation:
            if not self._announced.is_set():
                self.start = Position.of(mine.position)
            self._announced.set()
        elif mine is not None and self._announced.is_set():
            self._replaced = True
        elif self._announced.is_set() and self._position is not None:
            self.start = self._position()  # the master has dropped it: rejoin at the current position

    def _publish(self, loop: Loop) -> None:
        job, bus = self._job.spec.name, self._job.adapters.bus
        try:
            bus.publish(
                topics.PROGRESS, job.encode(), Progress(job=job, worker=self.incarnation, loop=loop).SerializeToString()
            )
            bus.flush()
        except EsspError as error:
            log.warning("%s: %s; the heartbeat is sent again in a moment", self._consumer, error)
