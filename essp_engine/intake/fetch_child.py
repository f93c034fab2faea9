"""The process that fetches clips for a thread of another process: `python -m essp_engine.intake.fetch_child
CONNECTION MEMORY`, started by `fetch_processes.py`.

    in     `Work`; then, again and again, (size of the memory, requested clips)
    out    nothing; then, again and again, an answer for each clip

Each message is a pickle. The process ends when the connection is closed.
"""

from __future__ import annotations

import mmap
import pickle
import sys
from contextlib import closing, suppress
from typing import Any

from essp_common.cache.port import FrameCache
from essp_common.pb.v1.messages_pb2 import ClipRef
from essp_common.runtime.child_process import to_parent
from essp_common.runtime.shared_slots import Slot
from essp_engine.intake.fetch_processes import Answer, Asked, Made, TooLarge, Work, places_of


class Child:
    """Fetches and prepares the requested clips."""

    def __init__(self, work: Work, cache: FrameCache, memory_fd: int) -> None:
        self._work = work
        self._cache = cache
        self._memory_fd = memory_fd
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)

    def answers(self, memory_bytes: int, asked: list[Asked]) -> list[Answer]:
        """One answer for each requested clip."""
        if memory_bytes != len(self._memory):
            self._memory = mmap.mmap(self._memory_fd, memory_bytes)
        return [self._answer(each) for each in asked]

    def _answer(self, asked: Asked) -> Answer:
        try:
            value = self._work.read(self._cache, asked.key, asked.size_bytes)
            if self._work.prepare is not None:
                value = self._work.prepare(ClipRef.FromString(asked.clip), value)
            return self._left(value, asked.slot)
        except Exception as error:  # noqa: BLE001  the parent gets the same error in the clip's turn
            return f"{type(error).__name__}: {error}"

    def _left(self, value: Any, slot: Slot) -> Answer:
        arrays: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(value, protocol=5, buffer_callback=arrays.append)
        raw = [array.raw() for array in arrays]
        sizes = tuple(len(array) for array in raw)
        places = places_of(sizes)
        if places[-1] > slot.size:
            return TooLarge(places[-1])
        for begin, array in zip(places, raw, strict=False):
            self._memory[slot.start + begin : slot.start + begin + len(array)] = array
        return Made(pickled, sizes)


def main() -> None:
    """Answer requests until the connection is closed."""
    parent, memory_fd = to_parent(sys.argv[1]), int(sys.argv[2])
    work: Work = pickle.loads(parent.receive())  # noqa: S301  from our own parent
    with closing(work.open_cache()) as cache, suppress(EOFError, OSError):
        child = Child(work, cache, memory_fd)
        parent.send(b"")
        while True:
            parent.send(pickle.dumps(child.answers(*pickle.loads(parent.receive()))))  # noqa: S301


if __name__ == "__main__":
    main()
