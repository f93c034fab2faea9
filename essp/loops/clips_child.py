"""The process that prepares the clips of a loop: `python -m essp.loops.clips_child PARENT CONNECTION SLOT...`, started
by `clips_process.py`, which see.

PARENT is a process id, CONNECTION and the SLOTs are descriptors: of a socket, and of memory for a batch each. It ends
when the connection is closed, and when the parent is gone; a fork of the parent may keep the connection open. It
ignores SIGINT and SIGTERM, which may come to all processes of a terminal or of a container: the parent ends it.
"""

from __future__ import annotations

import logging
import mmap
import os
import pickle
import signal
import sys
import threading
from contextlib import closing, suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch

from essp.loops.clips import JobClips
from essp.loops.clips_messages import Given, Over, Said, Wanted
from essp_common.errors import EsspError
from essp_common.learning.wanted import Decoded
from essp_common.messages.ordered import PhaseEnd
from essp_common.pb.v1.messages_pb2 import ClipRef
from essp_common.planning.position import Position
from essp_trainer.data.device import alike
from essp_trainer.data.prefetch import Batch, Seen

_NEXT_S = 0.2
_LOOK_S = 1.0


class _Left(Exception):
    """The parent wants no more."""


class Child:
    """Gives batches until the job is over, or the parent leaves."""

    def __init__(self, parent: int, connection: Connection, slots: list[int]) -> None:
        self._parent = parent
        self._connection = connection
        self._sending = threading.Lock()
        self._slots = slots
        self._memory = [mmap.mmap(-1, mmap.PAGESIZE) for _ in slots]
        self._free: SimpleQueue[int] = SimpleQueue()
        for number in range(len(slots)):
            self._free.put(number)
        self._left = threading.Event()

    def run(self) -> None:
        """Until there is nothing more to give."""
        try:
            sys.path[:] = self._connection.recv()  # where the user's own features are
            wanted: Wanted = self._connection.recv()
            logging.basicConfig(level=wanted.log_level, handlers=[_Lines(self)])
            threading.Thread(target=self._listen, name="essp-clips-listen", daemon=True).start()
            job, membership = wanted.source.join(wanted.consumer, wanted.start)
            with closing(JobClips(job, membership, wanted.consumer, _as_they_are, loaders=0)) as clips:
                self._give(clips)
        except (_Left, EOFError, BrokenPipeError):
            return
        except Exception as error:  # noqa: BLE001  raised again by the parent
            with suppress(OSError):
                self._say(Over(_to_send(error)))
            self._left.wait()  # it has read that by then

    def say(self, record: logging.LogRecord) -> None:
        """Have a line of the log be one of the parent's."""
        with suppress(OSError):
            self._say(Said(record.name, record.levelno, record.getMessage()))

    def _give(self, clips: JobClips) -> None:
        while True:
            item = clips.next(_NEXT_S)
            if self._left.is_set():
                raise _Left
            if item is None:
                clips.check()
            elif isinstance(item, PhaseEnd):
                clips.reached(Position(item.phase_index + 1, 0))
                clips.tell_of_failures()
                self._say(item.phase_index)
                if item.phase_index + 1 == len(clips.phases):
                    self._left.wait()
                    raise _Left
            else:
                self._say(self._written(item))
                clips.finish(item.items)
                clips.reached(item.position)

    def _written(self, batch: Batch) -> Given:
        slot, dtype = None, np.dtype(np.uint8)
        shape: tuple[int, ...] = ()
        if batch.frames:
            one, dtype = alike(batch.frames)
            slot, shape = self._free.get(), (len(batch.frames), *one)
            if self._left.is_set():
                raise _Left
            np.stack(batch.frames, out=self._array(slot, shape, dtype))
        clips = tuple(item.clip.SerializeToString() for item in batch.items)
        skipped = tuple(item.skipped for item in batch.items)
        place = (batch.phase_index, batch.begin, batch.stop)
        return Given(slot, shape, dtype.str, *place, clips, skipped, batch.colours)

    def _array(self, slot: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if size > len(self._memory[slot]):
            os.ftruncate(self._slots[slot], size)
            self._memory[slot] = mmap.mmap(self._slots[slot], size)
        return np.ndarray(shape, dtype, self._memory[slot])

    def _say(self, what: object) -> None:
        with self._sending:
            self._connection.send(what)

    def _listen(self) -> None:
        with suppress(EOFError, OSError):
            while os.getppid() == self._parent:
                if self._connection.poll(_LOOK_S):
                    self._free.put(self._connection.recv())
        self._left.set()
        self._free.put(0)  # whoever waits for one sees that the parent has left


class _Lines(logging.Handler):
    def __init__(self, child: Child) -> None:
        super().__init__()
        self._child = child

    def emit(self, record: logging.LogRecord) -> None:
        self._child.say(record)


def _as_they_are(clip: ClipRef, decoded: Decoded) -> Seen:
    """In the colours of their videos: the GPU makes pictures of them."""
    return Seen(*decoded)


def _to_send(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  our own
    except Exception:  # noqa: BLE001  what an exception of a library is made of, nobody knows
        return EsspError(f"{type(error).__name__}: {error}")
    return error


def main() -> None:
    """Give what the parent wants."""
    for ignored in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)
    torch.set_num_threads(1)
    parent, connection, *slots = map(int, sys.argv[1:])
    Child(parent, Connection(connection), slots).run()


if __name__ == "__main__":
    main()
