"""Memory for pictures that is used again.

New memory of this size comes from the system page by page, which takes longer than decoding a picture does. So a block
is kept, and used again once no item and no view refers to it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from essp_common.runtime.forks import Mutex

_LEAST_BYTES = 1 << 18
"""Smaller arrays come from Python's own memory."""
_OURS = 3
"""References to a free block while it is looked at: of the list, the variable, and the call that counts them."""


class Buffers:
    """Blocks of memory. At most `most_bytes` are kept. Thread-safe."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._blocks: list[NDArray[np.uint8]] = []
        self._mutex = Mutex()

    def empty(self, shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
        """An array with any content, as `np.empty`."""
        size = prod(shape) * np.dtype(dtype).itemsize
        if size < _LEAST_BYTES:
            return np.empty(tuple(shape), dtype)
        with self._mutex.held:
            block = self._free(size)
            if block is None:
                block = np.empty(size, np.uint8)
                self._blocks.append(block)
                self._forget()
            return block[:size].view(dtype).reshape(tuple(shape))

    def _free(self, size: int) -> NDArray[np.uint8] | None:
        for block in self._blocks:
            if size <= block.nbytes <= 2 * size and sys.getrefcount(block) == _OURS:
                return block
        return None

    def _forget(self) -> None:
        """Keep no more than allowed: the oldest are left to those who use them."""
        held = sum(block.nbytes for block in self._blocks)
        while held > self._most_bytes and len(self._blocks) > 1:
            held -= self._blocks.pop(0).nbytes
