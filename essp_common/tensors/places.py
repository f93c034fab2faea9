"""The locations of arrays in memory that two processes share."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from essp_common.tensors.packed import Array


class Place(NamedTuple):
    """The location and layout of an array in the memory."""

    file: str
    name: str
    offset: int
    dtype: str
    shape: Sequence[int]
    strides: Sequence[int]
    """In bytes."""


def arrays_at(memory: mmap.mmap, places: Sequence[Place]) -> dict[str, dict[str, Array]]:
    """File -> name -> a view of the array in the shared memory."""
    found: dict[str, dict[str, Array]] = {}
    for place in places:
        array: Array = np.ndarray(place.shape, place.dtype, memory, place.offset, place.strides)
        found.setdefault(place.file, {})[place.name] = array
    return found
