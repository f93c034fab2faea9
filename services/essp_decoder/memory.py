"""Memory shared with a child: where it writes clips, and where the cache and its readers find them, uncopied.

A clip's slot is taken before it is decoded and comes back by itself: when nothing refers any more to the view that
was handed out, nor to anything made of it (a slice, a NumPy array), whichever thread let go of the last of them.
So a clip that a store takes by copying (Redis) occupies its slot for the length of a request, one that a cache in
this process keeps, for as long as it is kept. Pages are used again at once, for touching new ones costs more than
copying a clip.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from essp_common.errors import Unavailable

_PAGE = 4096
_CLASSES_PER_DOUBLING = 8
_GROWTH = 1 << 24
_FULL_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Slot:
    """A range of the memory."""

    start: int
    size: int


class SharedMemory:
    """Slots in memory behind a file descriptor. Used from one thread; views may be dropped by any."""

    def __init__(self) -> None:
        self.fd = _anonymous_file()
        self.size = 0
        """Of the whole memory, in bytes; it only grows."""
        self._mapped = mmap.mmap(-1, _PAGE)
        self._end = 0
        self._free: defaultdict[int, list[Slot]] = defaultdict(list)

    def take(self, size: int) -> Slot:
        """A place of at least `size` bytes, with whatever was there before. Give it back, or hand out a view of it.

        Raises `Unavailable` when the machine has no memory for it now.
        """
        size = _size_class(size)
        try:
            return self._free[size].pop()
        except IndexError:
            pass
        slot = Slot(self._end, size)
        if self._end + size > self.size:
            self._grow(self._end + size)
        self._end += size
        return slot

    def _grow(self, needed: int) -> None:
        size = -(-needed // _GROWTH) * _GROWTH
        try:
            os.ftruncate(self.fd, size)
            self._mapped = mmap.mmap(self.fd, size)  # views keep the former mapping, of the same pages, alive
        except OSError as error:
            message = f"no shared memory for {size} bytes of clips: {error.strerror}; run fewer decoder processes here"
            raise Unavailable(message, _FULL_RETRY_S) from error
        self.size = size

    def give_back(self, slot: Slot) -> None:
        """The slot may be taken again."""
        self._free[slot.size].append(slot)

    def copy(self, slot: Slot, length: int) -> bytes:
        """The first bytes of a slot, which stays taken."""
        return self._mapped[slot.start : slot.start + length]

    def view(self, slot: Slot, length: int) -> memoryview:
        """The first bytes of a slot, read-only. The slot comes back when the view and all made of it are gone."""
        array = np.frombuffer(self._mapped, np.uint8, length, slot.start)
        weakref.finalize(array, self._free[slot.size].append, slot).atexit = False
        return array.data.toreadonly()

    def close(self) -> None:
        """Close the descriptor. Views stay valid. Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _size_class(size: int) -> int:
    """Few enough sizes that slots are found again, at most an eighth too large."""
    step = max(_PAGE, (1 << (size - 1).bit_length()) // 2 // _CLASSES_PER_DOUBLING)
    return -(-size // step) * step


def _anonymous_file() -> int:
    """A file descriptor of memory that another process can map; on disk where the system has nothing better."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("essp-clips", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
