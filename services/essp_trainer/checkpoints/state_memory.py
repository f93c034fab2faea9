"""The copy of a training's state that is being saved: one piece of memory, kept from save to save.

Touching new memory takes longer than copying into it. So the memory of the first save is used for all later ones, and
grows if the state does. It can be mapped by another process. Tensors keep their order in memory (`channels_last`), so
that the copy is one of bytes, and whoever packs them puts them into the order of their axes.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from essp_common.errors import Unavailable
from essp_common.tensors.packed import Array

_ALIGNMENT = 64
_PAGE = 4096

Tensors = Mapping[str, Tensor]


class Place(NamedTuple):
    """Where an array lies in the memory, and how."""

    file: str
    name: str
    offset: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In bytes."""


def arrays_at(memory: mmap.mmap, places: list[Place]) -> dict[str, dict[str, Array]]:
    """File -> name -> the array there, in the memory itself."""
    found: dict[str, dict[str, Array]] = {}
    for file, name, offset, dtype, shape, strides in places:
        array: Array = np.ndarray(tuple(shape), dtype, memory, offset, tuple(strides))
        found.setdefault(file, {})[name] = array
    return found


class StateMemory:
    """Holds one copy. Used by one thread at a time."""

    def __init__(self) -> None:
        self.fd = -1
        """Of the memory; -1: there is none yet."""
        self.size = 0
        """Bytes of it; it only grows."""
        self.places: list[Place] = []
        """What the last copy holds."""
        self._memory = mmap.mmap(-1, _PAGE)
        self._kept: list[Tensor] = []
        """Tensors over the memory, in the order of `places`."""

    def take(self, files: Mapping[str, Tensors]) -> None:
        """Copy these tensors, by file and name. Raises `Unavailable` if the machine has no memory for it."""
        tensors = [tensor.detach() for named in files.values() for tensor in named.values()]
        places, size = _places(files)
        if places != self.places:
            self._lay_out(places, size)
        if tensors:
            torch._foreach_copy_(self._kept, tensors)

    def arrays(self) -> dict[str, dict[str, Array]]:
        """File -> name -> array of the last copy, in the memory itself."""
        return arrays_at(self._memory, self.places)

    def close(self) -> None:
        """Give the memory back once no array refers to it any more. Idempotent."""
        self.places, self._kept, self.size = [], [], 0
        self._memory = mmap.mmap(-1, _PAGE)  # a mapping holds a descriptor of its own
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _lay_out(self, places: list[Place], size: int) -> None:
        if size > self.size:
            try:
                self.fd = _anonymous_file() if self.fd < 0 else self.fd
                os.ftruncate(self.fd, size)
                self._memory = mmap.mmap(self.fd, size)
            except OSError as error:
                raise Unavailable(f"no memory for a copy of {size} bytes to save: {error.strerror}") from error
            self.size = size
        self.places, self._kept = places, [self._tensor(place) for place in places]

    def _tensor(self, place: Place) -> Tensor:
        dtype = getattr(torch, place.dtype)
        count = int(np.prod(place.shape, dtype=np.int64))
        row = torch.frombuffer(self._memory, dtype=dtype, count=count, offset=place.offset) if count else None
        strides = [step // dtype.itemsize for step in place.strides]
        return torch.empty(place.shape, dtype=dtype) if row is None else row.as_strided(place.shape, strides)


def _places(files: Mapping[str, Tensors]) -> tuple[list[Place], int]:
    places, end = [], 0
    for file, named in files.items():
        for name, tensor in named.items():
            strides = tuple(step * tensor.element_size() for step in _strides(tensor))
            dtype = str(tensor.dtype).removeprefix("torch.")
            places.append(Place(file, name, end, dtype, tuple(tensor.shape), strides))
            end += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
    return places, end


def _strides(tensor: Tensor) -> tuple[int, ...]:
    """Those of the tensor, if its memory has no gaps; else those of a row of its elements."""
    if tensor.is_contiguous() or (tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)):
        return tuple(tensor.stride())
    return torch.empty(tensor.shape, device="meta").stride()


def _anonymous_file() -> int:
    """A file descriptor of memory that another process can map; without `memfd_create`, of a temporary file."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("essp-state", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
