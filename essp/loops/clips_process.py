"""The clips of a loop from a job in a process of its own, for a loop that trains on a GPU.

    the loop's process    launches the kernels of its network, and sends batches to the GPU
    the other process     has the job, and prepares batches in memory that both have (`clips_child.py`)

A network on a GPU is launched by some thousand short calls a step, and each has to have Python's interpreter. Threads
that hand out messages and take clips want it, too, for hundreds of microseconds a clip: in one process, a large GPU
waits for most of its time (`gpu_busy` of the benchmarks). From another process a batch is one message.
"""

from __future__ import annotations

import atexit
import logging
import mmap
import os
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import Pipe
from typing import Any

import numpy as np
from numpy.typing import NDArray

from essp.loops.clips_messages import SLOTS, Given, Over, Said, Wanted
from essp.loops.running_job import tidy_up_after
from essp.loops.source import OwnSource
from essp_common.bus.port import Record
from essp_common.errors import EsspError, Unavailable
from essp_common.messages.ordered import Delivery, PhaseEnd
from essp_common.pb.v1.messages_pb2 import ClipRef, PhasePlan
from essp_common.planning.position import Position
from essp_common.runtime.memory_file import memory_file
from essp_trainer.data.prefetch import Batch

_MODULE = "essp.loops.clips_child"
_END_S = 10.0

_open: weakref.WeakSet[ClipsProcess] = weakref.WeakSet()


class ClipsProcess:
    """Implements `essp.loops.clips.Clips`."""

    def __init__(self, source: OwnSource, consumer: str, start: Position) -> None:
        """Start the process. What keeps its job from starting is raised by `next`.

        Raises `Unavailable` if the machine starts no more processes.
        """
        self.start = start
        self.phases: Sequence[PhasePlan] = source.phases.plans
        self.queued = 0
        self._pid = os.getpid()
        self._slots = [memory_file(f"essp-batch-{number}") for number in range(SLOTS)]
        self._memory = [mmap.mmap(-1, mmap.PAGESIZE) for _ in self._slots]
        self._given: deque[int | None] = deque()
        """The slots of the batches whose frames are in use; None: of one without frames."""
        self._failure: BaseException | None = None
        self._connection, theirs = Pipe()
        with theirs:
            self._process = self._begun(theirs.fileno())
        _open.add(self)
        wanted = Wanted(source, consumer, start, logging.getLogger().getEffectiveLevel())
        with suppress(OSError):  # `next` says that the process is gone
            self._connection.send(sys.path)
            self._connection.send(wanted)

    def _begun(self, connection: int) -> subprocess.Popen[bytes]:
        words = map(str, (os.getpid(), connection, *self._slots))
        try:
            return subprocess.Popen(
                [sys.executable, "-m", _MODULE, *words],
                pass_fds=[connection, *self._slots],
                process_group=0,  # Ctrl-C is for the loop
                stdin=subprocess.DEVNULL,
            )
        except OSError as error:
            self._connection.close()
            for slot in self._slots:
                os.close(slot)
            raise Unavailable(f"the process that prepares clips cannot be started: {error.strerror}") from error

    def next(self, timeout_s: float) -> Batch | PhaseEnd | None:
        if self._failure is not None:
            raise self._failure
        try:
            if not self._connection.poll(timeout_s):
                return None
            said = self._connection.recv()
        except (EOFError, OSError) as error:
            raise self._failed(self._death()) from error
        if isinstance(said, Said):
            logging.getLogger(said.logger).log(said.level, "%s", said.text)
            return None
        if isinstance(said, Over):
            raise self._failed(said.error)
        return PhaseEnd(said, self.phases[said]) if isinstance(said, int) else self._batch(said)

    def finish(self, items: Sequence[Delivery]) -> None:
        slot = self._given.popleft()
        if slot is not None:
            with suppress(OSError):  # `next` says that the process is gone
                self._connection.send(slot)

    def reached(self, position: Position) -> None:
        """The other process knows."""

    def check(self) -> None:
        """`next` does."""

    def tell_of_failures(self) -> None:
        """The other process does."""

    def close(self) -> None:
        if self._pid != os.getpid() or self not in _open:
            return
        _open.discard(self)
        self._connection.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # what it has started ends with it
            self._process.wait()
        if self._process.returncode:
            tidy_up_after(self._process.pid)
        for slot in self._slots:
            os.close(slot)

    def _batch(self, given: Given) -> Batch:
        plan = self.phases[given.phase_index]
        items = tuple(
            Delivery(given.phase_index, ClipRef.FromString(clip), "", b"", skipped, _NO_RECORD)
            for clip, skipped in zip(given.clips, given.skipped, strict=True)
        )
        frames: tuple[NDArray[Any], ...] = ()
        if given.slot is not None:
            frames = tuple(self._array(given.slot, given.shape, np.dtype(given.dtype)))
        self._given.append(given.slot)
        return Batch(given.phase_index, plan, given.begin, given.stop, items, frames, given.colours)

    def _array(self, slot: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if size > len(self._memory[slot]):
            self._memory[slot] = mmap.mmap(self._slots[slot], os.fstat(self._slots[slot]).st_size)
        return np.ndarray(shape, dtype, self._memory[slot])

    def _death(self) -> EsspError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        code = self._process.returncode
        how = "does not answer" if code is None else f"has ended with status {code}"
        return EsspError(f"the process that prepares the clips of this loop {how}; its last words are above, if any")

    def _failed(self, error: BaseException) -> BaseException:
        self._failure = error
        return error


_NO_RECORD = Record("", 0, 0, b"", b"")


def _close_all() -> None:
    for clips in list(_open):
        clips.close()


atexit.register(_close_all)
