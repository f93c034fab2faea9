"""The process that prepares the clips of a loop: `python -m essp.loops.clips_child CONNECTION PARENT SLOT...`.

`clips_process.py` starts it. PARENT is a process id; each SLOT is a file descriptor of memory for a batch. The process
ends when the parent closes the connection, and when the parent dies; a fork of the parent may keep the connection open.

One thread writes to the connection. Log records wait for it, up to a limit, since a parent that takes no batches reads
no log records either.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
import threading
import traceback
from collections import deque
from contextlib import closing, suppress
from queue import Empty, SimpleQueue

import numpy as np

from essp.loops.clips import JobClips, batches_of
from essp.loops.clips_messages import Begun, Given, Over, Said, Slot, Wanted
from essp_common.errors import EsspError
from essp_common.job.position import Position
from essp_common.runtime.child_process import Channel, to_parent
from essp_common.runtime.garbage import collect_rarely
from essp_common.runtime.threads import guarded
from essp_engine.intake.ordered import PhaseEnd
from essp_engine.loading.batch import Batch, as_stored, of_one_type

_NEXT_S = 0.2
_LOOK_S = 1.0
_MOST_LINES = 1000


class _Left(Exception):
    """The parent has closed the connection or died."""


class Child:
    """Sends batches until the job is over, or the parent leaves."""

    def __init__(self, parent: int, connection: Channel, slots: list[int]) -> None:
        self._parent = parent
        self._connection = connection
        self._slots = [Slot(descriptor) for descriptor in slots]
        self._free: SimpleQueue[int] = SimpleQueue()
        for number in range(len(slots)):
            self._free.put(number)
        self._left = threading.Event()
        self._lines = _Lines()

    def run(self) -> None:
        """Send all batches, or the error that stopped them."""
        try:
            sys.path[:] = pickle.loads(self._connection.receive())  # noqa: S301  where the user's features are
            wanted: Wanted = pickle.loads(self._connection.receive())  # noqa: S301  of the parent
        except (EOFError, OSError):
            return
        guarded("essp-clips-listen", self._listen, self._left.set).start()
        with suppress(_Left):
            try:
                self._give_all(wanted)
            except _Left:
                raise
            except Exception as error:  # noqa: BLE001  raised again by the parent
                self._say(Over(_to_send(error), traceback.format_exc()))
            self._left.wait()  # the parent has read everything by then

    def _give_all(self, wanted: Wanted) -> None:
        logging.disable()  # the parent has already logged the warnings of the job
        source = pickle.loads(wanted.source)  # noqa: S301  of the parent
        logging.disable(logging.NOTSET)
        logging.basicConfig(level=wanted.log_level, handlers=[self._lines])
        if source.phases.digest != wanted.plan:
            raise EsspError("the catalog has changed since this loader was made; make another one")
        batches = batches_of(source.phases, wanted.consumer)
        job, membership = source.join(wanted.consumer, wanted.start)
        self._say(Begun(job.folder))
        with closing(JobClips(job, membership, wanted.consumer, as_stored, batches=batches)) as clips:
            self._give(clips)

    def _give(self, clips: JobClips) -> None:
        """Send the batches of all phases."""
        while True:
            item = clips.next(_NEXT_S)
            self._say_lines()
            if item is None:
                clips.check()
            elif isinstance(item, PhaseEnd):
                clips.reached(Position(item.phase_index + 1, 0))
                clips.log_failures()
                self._say_lines()
                self._say(item.phase_index)
                if item.phase_index + 1 == len(clips.phases):
                    return
            else:
                self._say(self._written(item))
                clips.finish(item.items)
                clips.reached(item.position)

    def _written(self, batch: Batch) -> Given:
        slot, dtype = None, np.dtype(np.uint8)
        shapes = tuple(each.shape for each in batch.frames)
        if batch.frames:
            dtype, slot = of_one_type(batch.frames), self._free_slot()
            for place, each in zip(self._slots[slot].arrays(shapes, dtype, grow=True), batch.frames, strict=True):
                place[...] = each
        clips = tuple(item.clip.SerializeToString() for item in batch.items)
        skipped = tuple(item.skipped for item in batch.items)
        phase, begin, stop = batch.phase_index, batch.begin, batch.stop
        return Given(slot, shapes, dtype.str, phase, begin, stop, clips, skipped, batch.colours)

    def _free_slot(self) -> int:
        while True:
            with suppress(Empty):
                return self._free.get(timeout=_NEXT_S)
            self._say_lines()

    def _say_lines(self) -> None:
        for line in self._lines.taken():
            self._say(line)
        if self._left.is_set():
            raise _Left

    def _say(self, what: object) -> None:
        try:
            self._connection.send(pickle.dumps(what))
        except OSError as error:
            raise _Left from error

    def _listen(self) -> None:
        with suppress(EOFError, OSError):
            while os.getppid() == self._parent:
                if self._connection.poll(_LOOK_S):
                    self._free.put(pickle.loads(self._connection.receive()))  # noqa: S301  of the parent
        self._left.set()
        self._connection.hang_up()  # a thread that writes to it stops waiting for a reader


class _Lines(logging.Handler):
    """Log records that wait to be sent."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: deque[Said] = deque()
        self._left_out = 0

    def emit(self, record: logging.LogRecord) -> None:
        if len(self._waiting) >= _MOST_LINES:
            self._left_out += 1
            return
        try:
            self._waiting.append(Said(record.name, record.levelno, self.format(record)))
        except Exception:  # noqa: BLE001  as every handler
            self.handleError(record)

    def taken(self) -> list[Said]:
        """The records that wait now."""
        lines = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if self._left_out:
            lines.append(Said(__name__, logging.WARNING, f"{self._left_out} more log records were dropped"))
            self._left_out = 0
        return lines


def _to_send(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  our own
    except Exception:  # noqa: BLE001  an exception of a library may hold anything
        return EsspError(f"{type(error).__name__}: {error}")
    return error


def main() -> None:
    """Send what the parent asks for."""
    collect_rarely()
    connection = to_parent(sys.argv[1])
    parent, *slots = map(int, sys.argv[2:])
    Child(parent, connection, slots).run()


if __name__ == "__main__":
    main()
