"""The clips of a loop that trains on a GPU, from a job in another process.

    the loop's process    launches the kernels of its network, and sends batches to the GPU
    the other process     runs the job, and prepares batches in shared memory (`clips_child.py`)

A step of a network on a GPU takes some thousand short calls, and each needs Python's interpreter. The threads that
handle messages and clips need it, too, for hundreds of microseconds a clip: in one process, a large GPU that trained
ResNet-50 was idle for a third of the time (`gpu_busy` of the benchmarks). From another process, a batch is one message.
"""

from __future__ import annotations

import logging
import os
import pickle
import shutil
import sys
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from essp.loops.clips_messages import SLOTS, Begun, Given, Over, Said, Slot, Wanted
from essp.loops.source import OwnSource
from essp_common.bus.port import Record
from essp_common.errors import EsspError
from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import ClipRef, PhasePlan
from essp_common.runtime.at_exit import at_exit
from essp_common.runtime.child_process import ChildProcess
from essp_common.runtime.memory_file import memory_file
from essp_engine.intake.ordered import Delivery, PhaseEnd
from essp_engine.loading.batch import Batch

_MODULE = "essp.loops.clips_child"
_END_S = 10.0

_open: weakref.WeakSet[ClipsProcess] = weakref.WeakSet()


class ClipsProcess:
    """Implements `essp.loops.clips.Clips`."""

    def __init__(self, source: OwnSource, consumer: str, start: Position) -> None:
        """Start the process. If its job does not start, `next` raises the error.

        Raises `Unavailable` if the machine cannot start more processes.
        """
        self.start = start
        self.phases: Sequence[PhasePlan] = source.phases.plans
        self._pid = os.getpid()
        self._given: deque[int | None] = deque()
        """The slots of the batches whose frames are in use; None for a batch without frames."""
        self._failure: Exception | None = None
        self._folder = ""
        """Folder of the job, after it has begun."""
        wanted = Wanted(
            pickle.dumps(source), source.phases.digest, consumer, start, logging.getLogger().getEffectiveLevel()
        )
        with ExitStack() as stack:
            self._slots: list[Slot] = []
            for number in range(SLOTS):
                descriptor = memory_file(f"essp-batch-{number}")
                stack.callback(os.close, descriptor)
                self._slots.append(Slot(descriptor))
            slots = [slot.descriptor for slot in self._slots]
            self._child = ChildProcess(_MODULE, "prepares clips", os.getpid(), files=slots)
            self._resources = stack.pop_all()
        _open.add(self)
        self._stay = at_exit(self.close)
        for first in (sys.path, wanted):
            self._child.tell(pickle.dumps(first))

    @property
    def queued(self) -> int:
        return len(self._given)

    def next(self, timeout_s: float) -> Batch | PhaseEnd | None:
        if self._failure is not None:
            raise self._failure
        try:
            if not self._child.channel.poll(timeout_s):
                return None
            said = pickle.loads(self._child.channel.receive())  # noqa: S301  of our own child
        except (EOFError, OSError) as error:
            fate = f"{self._child.end(_END_S)}; its last output is above, if there is any"
            raise self._failed(EsspError(f"the process that prepares the clips of this loop {fate}")) from error
        match said:
            case Given():
                return self._batch(said)
            case int():
                return PhaseEnd(said, self.phases[said])
            case Begun():
                self._folder = said.folder
            case Said():
                logging.getLogger(said.logger).log(said.level, "%s", said.text)
            case Over():
                said.error.add_note(f"In the process that prepares clips:\n{said.trace}")
                raise self._failed(said.error)
        return None

    def finish(self, items: Sequence[Delivery]) -> None:
        slot = self._given.popleft()
        if slot is not None:
            self._child.tell(pickle.dumps(slot))

    def reached(self, position: Position) -> None:
        """Nothing to do: the other process records it."""

    def check(self) -> None:
        """Nothing to do: `next` raises these errors."""

    def log_failures(self) -> None:
        """Nothing to do: the other process logs them."""

    def close(self) -> None:
        if self._pid != os.getpid() or self not in _open:
            return
        _open.discard(self)
        self._stay()
        self._child.end(_END_S)  # its own child processes end with it, also if it is killed
        if self._child.process.returncode and self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._resources.close()

    def _batch(self, given: Given) -> Batch:
        plan = self.phases[given.phase_index]
        items = tuple(
            Delivery(given.phase_index, ClipRef.FromString(clip), "", b"", skipped, _NO_RECORD)
            for clip, skipped in zip(given.clips, given.skipped, strict=True)
        )
        frames: tuple[NDArray[Any], ...] = ()
        if given.slot is not None:
            frames = tuple(self._slots[given.slot].arrays(given.shapes, np.dtype(given.dtype)))
        self._given.append(given.slot)
        return Batch(given.phase_index, plan, given.begin, given.stop, items, frames, given.colours)

    def _failed(self, error: Exception) -> Exception:
        self._failure = error
        return error


_NO_RECORD = Record("", 0, 0, b"", b"")
