"""Memory shared with a child, which writes clips there; this process uses them without a copy.

A slot is taken before a clip is decoded. It becomes free automatically, in any thread, when nothing refers any more to
the view that was returned or to anything derived from it (a slice, a NumPy array). So a decoder's clip that the cache
copies (Redis) occupies its slot for one request, and one that an in-process cache keeps occupies it for as long as it
is kept. Free slots are reused at once, because touching new pages costs more than copying a clip.
"""

from __future__ import annotations

import mmap
import os
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from essp_common.errors import Unavailable
from essp_common.runtime.memory_file import memory_file

_PAGE = 4096
_CLASSES_PER_DOUBLING = 8
_FIRST_SIZE = 1 << 32
"""Address space, not memory: pages of the file that were never touched do not exist. Large enough that it hardly ever
has to be remapped: in a new mapping, every page of every slot faults again, which takes longer than copying a clip."""
_FULL_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Slot:
    """A range of the memory."""

    start: int
    size: int


class SharedMemory:
    """Slots in memory behind a file descriptor. Used from one thread; views may be dropped by any."""

    def __init__(self) -> None:
        self.fd = memory_file("essp-clips")
        self.size = 0
        """Number of mapped bytes, possibly most of them unused; it only grows."""
        self._mapped = mmap.mmap(-1, _PAGE)
        self._end = 0
        self._free: defaultdict[int, list[int]] = defaultdict(list)
        """Size -> where free slots of this size begin."""

    def take(self, size: int) -> Slot:
        """Take a slot of at least `size` bytes, with its previous content. Release it, or return a view of it.

        Raises `Unavailable` if the machine does not have enough memory at present.
        """
        size = _size_class(size)
        try:
            return Slot(self._free[size].pop(), size)
        except IndexError:
            pass
        slot = Slot(self._end, size)
        if self._end + size > self.size:
            self._grow(self._end + size)
        self._end += size
        return slot

    def _grow(self, needed: int) -> None:
        doubled = 1 << (needed - 1).bit_length()
        try:
            self._map(max(_FIRST_SIZE, doubled))
        except OSError:  # the address space of a process may be limited (`ulimit -v`)
            try:
                self._map(doubled)
            except OSError as error:
                message = f"no shared memory for {doubled} bytes of clips: {error.strerror}; run fewer processes here"
                raise Unavailable(message, _FULL_RETRY_S) from error

    def _map(self, size: int) -> None:
        os.ftruncate(self.fd, size)
        self._mapped = mmap.mmap(self.fd, size)  # views keep the previous mapping of the same pages alive
        self.size = size

    def give_back(self, slot: Slot) -> None:
        """Free a slot."""
        self._free[slot.size].append(slot.start)

    def copy(self, slot: Slot, length: int) -> bytes:
        """Return a copy of the first bytes of a slot. The slot stays taken."""
        return self._mapped[slot.start : slot.start + length]

    def view(self, slot: Slot, length: int, writable: bool = False) -> memoryview:
        """Return a view of the first bytes of a slot, read-only unless `writable`.

        The slot becomes free when the view and everything derived from it are gone.
        """
        lent = _Lent(length, np.uint8, self._mapped, slot.start)
        lent.start, lent.free = slot.start, self._free[slot.size]
        return lent.data if writable else lent.data.toreadonly()

    def close(self) -> None:
        """Close the descriptor. Views stay valid. Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class _Lent(np.ndarray[tuple[int], np.dtype[np.uint8]]):
    """The owner of a view's memory. It lives as long as the view and everything derived from it; then its slot is free.

    This is one object per clip for the garbage collector to visit; `weakref.finalize` would create several.
    """

    __slots__ = ("free", "start")
    start: int
    """Where its slot begins."""
    free: list[int]
    """The free list for this size."""

    def __del__(self) -> None:
        self.free.append(self.start)


def _size_class(size: int) -> int:
    """Round up to one of few sizes, so that slots can be reused; at most an eighth is wasted."""
    step = max(_PAGE, (1 << (size - 1).bit_length()) // 2 // _CLASSES_PER_DOUBLING)
    return -(-size // step) * step
