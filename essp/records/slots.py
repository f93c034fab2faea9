"""A batch as bytes in shared memory: arrays in their memory layout, and the records' metadata as a pickle.

head: dtype, shape │ labels │ columns │ frames, from a multiple of 64 on
"""

from __future__ import annotations

import pickle
import struct
from mmap import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from essp.records.handover import Slot

_HEAD = struct.Struct("<16sqqq8q")
"""dtype, bytes of columns, records, dimensions, shape."""
_MOST_DIMENSIONS = 8
_ALIGNED = 64

Columns = dict[str, list[Any]]


class Packed:
    """A batch to be written."""

    def __init__(self, frames: NDArray[Any], labels: NDArray[np.int64], columns: Columns) -> None:
        self._frames = frames
        self._labels = labels
        self._columns = pickle.dumps(columns, pickle.HIGHEST_PROTOCOL)
        self._begin = _frames_at(len(labels), len(self._columns))
        self.size = self._begin + frames.nbytes
        """Bytes that it needs."""

    def write(self, memory: mmap, place: int) -> None:
        """Write it at this place."""
        frames, records = self._frames, len(self._labels)
        shape = (*frames.shape, *[0] * (_MOST_DIMENSIONS - frames.ndim))
        _HEAD.pack_into(memory, place, frames.dtype.str.encode(), len(self._columns), records, frames.ndim, *shape)
        at = place + _HEAD.size
        np.ndarray(records, np.int64, memory, at)[:] = self._labels
        at += 8 * records
        memory[at : at + len(self._columns)] = self._columns
        np.ndarray(frames.shape, frames.dtype, memory, place + self._begin)[...] = frames


def unpacked(memory: mmap, slot: Slot) -> tuple[NDArray[Any], NDArray[np.int64], Columns]:
    """Frames, labels and columns, copied."""
    dtype, columns_bytes, records, dimensions, *shape = _HEAD.unpack_from(memory, slot.place)
    at = slot.place + _HEAD.size
    labels = np.ndarray(records, np.int64, memory, at).copy()
    at += 8 * records
    columns = pickle.loads(memory[at : at + columns_bytes])  # noqa: S301  memory of this user's own processes
    begin = slot.place + _frames_at(records, columns_bytes)
    frames = np.ndarray(shape[:dimensions], dtype.rstrip(b"\0").decode(), memory, begin).copy()
    return frames, labels, columns


def _frames_at(records: int, columns_bytes: int) -> int:
    return -(-(_HEAD.size + 8 * records + columns_bytes) // _ALIGNED) * _ALIGNED
