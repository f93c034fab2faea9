"""The copy of a training's state that is being saved: one piece of memory, kept from save to save.

Touching new memory takes longer than copying into it. So the memory of the first save is used for all later ones, and
grows if the state does. It can be mapped by another process. Tensors keep their order in memory (`channels_last`), so
that the copy is one of bytes, and whoever packs them puts them into the order of their axes.

Of a model on a GPU the copy is made there first, where that has room, so that the next step need not wait until it has
crossed the bus; `wait` does. The memory is pinned for that.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from essp_common.errors import Unavailable
from essp_common.tensors.packed import Array
from essp_trainer.checkpoints.places import Place, arrays_at

_ALIGNMENT = 64
_PAGE = 4096

Tensors = Mapping[str, Tensor]


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
        self._on_device: list[Tensor] = []
        """Copies of the tensors of a GPU, kept there."""
        self._crossed: torch.cuda.Event | None = None
        """Those of a GPU are in the memory."""
        self._pinned = 0
        """Address of the memory, if it is pinned."""

    def take(self, files: Mapping[str, Tensors]) -> None:
        """Copy these tensors, by file and name. Raises `Unavailable` if the machine has no memory for it."""
        tensors = [tensor.detach() for named in files.values() for tensor in named.values()]
        places, size = _places(files)
        if places != self.places:
            self._lay_out(places, size)
        here = [(kept, tensor) for kept, tensor in zip(self._kept, tensors, strict=True) if not tensor.is_cuda]
        there = [(kept, tensor) for kept, tensor in zip(self._kept, tensors, strict=True) if tensor.is_cuda]
        if here:
            torch._foreach_copy_([kept for kept, _ in here], [tensor for _, tensor in here])
        self._crossed = self._send([kept for kept, _ in there], [tensor for _, tensor in there]) if there else None

    def wait(self) -> None:
        """Until the copy is complete."""
        if self._crossed is not None:
            self._crossed.synchronize()

    def arrays(self) -> dict[str, dict[str, Array]]:
        """File -> name -> array of the last copy, in the memory itself."""
        return arrays_at(self._memory, self.places)

    def close(self) -> None:
        """Give the memory back once no array refers to it any more. Idempotent."""
        self.wait()
        self._unpin()
        self._crossed, self._on_device = None, []
        self.places, self._kept, self.size = [], [], 0
        self._memory = mmap.mmap(-1, _PAGE)  # a mapping holds a descriptor of its own
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _lay_out(self, places: list[Place], size: int) -> None:
        self.wait()
        self._on_device = []
        if size > self.size:
            self._unpin()
            try:
                self.fd = _anonymous_file() if self.fd < 0 else self.fd
                os.ftruncate(self.fd, size)
                self._memory = mmap.mmap(self.fd, size)
            except OSError as error:
                raise Unavailable(f"no memory for a copy of {size} bytes to save: {error.strerror}") from error
            self.size = size
        self.places, self._kept = places, [self._tensor(place) for place in places]

    def _send(self, kept: list[Tensor], tensors: list[Tensor]) -> torch.cuda.Event:
        """Let tensors of a GPU cross the bus, while the next step goes on if there is room for a copy there."""
        self._pin()
        device = tensors[0].device
        stream = current = torch.cuda.current_stream(device)
        try:
            self._on_device = self._on_device or [torch.empty_like(tensor) for tensor in tensors]
        except torch.OutOfMemoryError:
            sent = tensors  # in order with the next step, which waits for them
        else:
            torch._foreach_copy_(self._on_device, tensors)
            sent, stream = self._on_device, torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            stream.wait_stream(current)
        with torch.cuda.stream(stream):
            for target, source in zip(kept, sent, strict=True):
                target.copy_(source, non_blocking=True)
            crossed = torch.cuda.Event()  # type: ignore[no-untyped-call]
            crossed.record(stream)
        return crossed

    def _pin(self) -> None:
        """Without it the copy is a slow one, and no other one."""
        if not self._pinned:
            address = torch.frombuffer(self._memory, dtype=torch.uint8, count=1).data_ptr()
            runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            if int(runtime.cudaHostRegister(address, self.size, 0)) == 0:
                self._pinned = address

    def _unpin(self) -> None:
        if self._pinned:
            runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            runtime.cudaHostUnregister(self._pinned)
            self._pinned = 0

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
