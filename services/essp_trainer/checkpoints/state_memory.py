"""The copy of a training's state that is being saved: one piece of memory, kept from save to save.

    between two batches   take: what the next forward pass changes is copied, a thread begins with the rest
    the next step         waits for its batch, forward, backward │ wait_for_copy │ parameters and momentum change

On a CPU, a thread copies what only the optimizer changes during the next step, in one call that releases the
interpreter. A model on a GPU is copied there first, if there is room, so that the next step need not wait for the
transfer to the host; `wait` does. The copy on the GPU has the layout of the host memory, so it is transferred in one
piece, and the host has little to launch. The host memory is pinned for that.

Touching new memory takes longer than copying into it. So the memory is kept for all saves, and grows if the state does;
`reserve` prepares it for the first one. Another process can map it. Tensors keep their memory order (`channels_last`),
so that the copy is one of bytes; packing them puts them into the order of their axes.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import torch
from torch import Tensor

from essp_common.errors import Unavailable
from essp_common.runtime.memory_file import memory_file
from essp_common.tensors.packed import Array
from essp_common.tensors.places import Place, arrays_at

_ALIGNMENT = 64
_PAGE = 4096
_TOUCHED = getattr(mmap, "MAP_POPULATE", 0)
"""Lets the kernel touch the pages; without Linux, the first copy does."""

Tensors = Mapping[str, Tensor]
Moving = Collection[tuple[str, str]]
"""File and name of tensors."""


class StateMemory:
    """Contains one copy. Used by one thread at a time; `wait` and `wait_for_copy` by any."""

    def __init__(self) -> None:
        self.fd = -1
        """File descriptor of the memory; -1 if there is none yet."""
        self.size = 0
        """Size in bytes; it only grows."""
        self.places: list[Place] = []
        """The contents of the last copy."""
        self._layout: Sequence[object] = []
        """Names, devices, types, shapes and strides of the last copy's contents, quick to compare."""
        self._here: Sequence[int] = ()
        """Indices in `places` of tensors on a CPU, ascending."""
        self._there: Sequence[int] = ()
        """Indices in `places` of tensors on a GPU."""
        self._memory = mmap.mmap(-1, _PAGE)
        self._kept: list[Tensor] = []
        """Tensors over the memory, in the order of `places`."""
        self._copier = ThreadPoolExecutor(1, "essp-snapshot", partial(torch.set_num_threads, 1))
        self._copying: Future[None] | None = None
        """The copy of what only the optimizer changes, on a CPU."""
        self._on_device: _OnDevice | None = None
        """A copy of the GPU's tensors, kept on the GPU."""
        self._gpu_is_full = False
        """It had no room for that, and is not asked again: each failed attempt makes torch free its cached memory."""
        self._crossed: torch.cuda.Event | None = None
        """Recorded when the GPU's tensors are in the memory."""
        self._pinned = 0
        """Address of the memory, if it is pinned."""

    def reserve(self, size: int, pinned: bool = False) -> None:
        """Allocate memory for a copy of `size` bytes, so that no step waits for new memory. `pinned`: the state is on a
        GPU.

        Raises `Unavailable` if the machine does not have enough memory.
        """
        self._make_room(size)
        if pinned and size:
            self._pin()

    def take(self, files: Mapping[str, Tensors], moving: Moving) -> None:
        """Begin to copy these tensors, by file and name. Those that are `moving` may change when this returns, the
        others after `wait_for_copy`. Raises `Unavailable` if the machine does not have enough memory.
        """
        self.wait_for_copy()
        tensors = [tensor for named in files.values() for tensor in named.values()]
        layout = [
            (file, name, tensor.device, tensor.dtype, tensor.shape, tensor.stride())
            for file, named in files.items()
            for name, tensor in named.items()
        ]
        if layout != self._layout:
            self._lay_out(*_places(files), [tensor.is_cuda for tensor in tensors])
            self._layout = layout
        self._copying = self._copy_here(tensors, frozenset(moving))
        self._crossed = self._send([tensors[number] for number in self._there]) if self._there else None

    def wait_for_copy(self) -> None:
        """Wait until everything taken may change. Raises nothing: `wait` does."""
        if (copying := self._copying) is not None:
            copying.exception()

    def wait(self) -> None:
        """Wait until the copy is complete. Raises what has prevented it."""
        if (copying := self._copying) is not None:
            copying.result()
        if self._crossed is not None:
            self._crossed.synchronize()

    def arrays(self) -> dict[str, dict[str, Array]]:
        """Return file -> name -> array of the last copy, as views of the memory."""
        return arrays_at(self._memory, self.places)

    def close(self) -> None:
        """Free the memory once no array refers to it any more. Idempotent."""
        self._copier.shutdown()
        if self._crossed is not None:
            self._crossed.synchronize()
        self._unpin()
        self._copying = self._crossed = self._on_device = None
        self.places, self._kept, self._layout, self.size = [], [], [], 0
        self._memory = mmap.mmap(-1, _PAGE)  # an existing mapping keeps its own reference to the file
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _lay_out(self, places: list[Place], size: int, of_gpu: Sequence[bool]) -> None:
        if self._crossed is not None:
            self._crossed.synchronize()
        self._on_device, self._gpu_is_full = None, False
        self._make_room(size)
        whole = self._whole()
        self.places, self._kept = places, [_tensor(whole, place) for place in places]
        self._here = [number for number, there in enumerate(of_gpu) if not there]
        self._there = [number for number, there in enumerate(of_gpu) if there]

    def _make_room(self, size: int) -> None:
        """Allocate memory of this size, with all pages touched."""
        if size <= self.size:
            return
        self._unpin()
        try:
            self.fd = memory_file("essp-state") if self.fd < 0 else self.fd
            os.ftruncate(self.fd, size)
            self._memory = mmap.mmap(self.fd, size, mmap.MAP_SHARED | _TOUCHED)
        except OSError as error:
            raise Unavailable(f"no memory for a copy of {size} bytes to save: {error.strerror}") from error
        self.places, self._kept, self._layout, self.size = [], [], [], size

    def _copy_here(self, tensors: Sequence[Tensor], moving: Moving) -> Future[None] | None:
        """Copy the moving tensors now, and begin to copy the others in the thread, if there are any."""
        now: list[tuple[Tensor, Tensor]] = []
        rest: list[tuple[Tensor, Tensor]] = []
        for number in self._here:
            place = self.places[number]
            chosen = now if (place.file, place.name) in moving else rest
            chosen.append((self._kept[number], tensors[number]))
        _copy(now)
        return self._copier.submit(_copy, rest) if rest else None

    def _send(self, tensors: Sequence[Tensor]) -> torch.cuda.Event:
        """Transfer the GPU's tensors to the host; the next step proceeds meanwhile if there is room for a copy on the
        GPU."""
        self._pin()
        device = tensors[0].device
        current = torch.cuda.current_stream(device)
        if self._on_device is None and not self._gpu_is_full:
            try:
                self._on_device = _OnDevice(device, [self.places[number] for number in self._there])
            except torch.OutOfMemoryError:
                self._gpu_is_full = True
        if self._on_device is None:  # ordered before the next step, which waits for the transfer
            for number, tensor in zip(self._there, tensors, strict=True):
                self._kept[number].copy_(tensor.detach(), non_blocking=True)
            crossed: torch.cuda.Event = current.record_event()
            return crossed
        # The kept copy on the GPU may be overwritten only when its previous transfer is over.
        if self._crossed is not None:
            current.wait_event(self._crossed)
        return self._on_device.cross(tensors, self._whole())

    def _pin(self) -> None:
        """Pin the memory. If that fails, the transfer is slower, but the result is the same."""
        if not self._pinned:
            address = self._whole().data_ptr()
            runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            if int(runtime.cudaHostRegister(address, self.size, 0)) == 0:
                self._pinned = address

    def _unpin(self) -> None:
        if self._pinned:
            runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            runtime.cudaHostUnregister(self._pinned)
            self._pinned = 0

    def _whole(self) -> Tensor:
        """Return the memory as bytes."""
        return torch.frombuffer(self._memory, dtype=torch.uint8)


class _OnDevice:
    """A copy of tensors on their GPU, with the layout of the host memory."""

    def __init__(self, device: torch.device, places: Sequence[Place]) -> None:
        """`places`: of these tensors, ascending. Raises `torch.OutOfMemoryError`."""
        begin, stop = places[0].offset, _end(places[-1])
        self._memory = torch.empty(stop - begin, dtype=torch.uint8, device=device)
        self._tensors = [_tensor(self._memory, place, begin) for place in places]
        self._runs = [(first - begin, last - begin) for first, last in _runs(places)]
        self._begin = begin
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def cross(self, tensors: Sequence[Tensor], memory: Tensor) -> torch.cuda.Event:
        """Copy the tensors on the GPU, and start the transfer of the copy to `memory`. Work launched afterwards may
        change them."""
        _copy(list(zip(self._tensors, tensors, strict=True)))
        # The transfer has its own stream, which waits for the copy; the step's stream does not wait for the transfer.
        self._stream.wait_stream(torch.cuda.current_stream(self._memory.device))
        with torch.cuda.stream(self._stream):
            for begin, stop in self._runs:
                target = memory[self._begin + begin : self._begin + stop]
                target.copy_(self._memory[begin:stop], non_blocking=True)
            crossed: torch.cuda.Event = self._stream.record_event()
        return crossed


def bytes_of(files: Mapping[str, Tensors]) -> int:
    """Return the size of a copy of these tensors, which may be on the device `meta`."""
    return _places(files)[1]


def _copy(pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Copy sources to targets, with one call per type, as GPUs require; each call releases the interpreter."""
    by_type: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
    for target, source in pairs:
        by_type.setdefault(source.dtype, []).append((target, source))
    with torch.no_grad():
        for alike in by_type.values():
            torch._foreach_copy_([target for target, _ in alike], [source for _, source in alike])


def _tensor(memory: Tensor, place: Place, begin: int = 0) -> Tensor:
    """Return the tensor at this place in a memory that begins at `begin`."""
    dtype = getattr(torch, place.dtype)
    row = memory[place.offset - begin : _end(place) - begin].view(dtype)
    return row.as_strided(place.shape, [step // dtype.itemsize for step in place.strides])


def _end(place: Place) -> int:
    dtype: torch.dtype = getattr(torch, place.dtype)
    return place.offset + math.prod(place.shape) * dtype.itemsize


def _runs(places: Iterable[Place]) -> Iterator[tuple[int, int]]:
    """Yield the ranges of places that are contiguous except for alignment gaps."""
    begin = stop = -1
    for place in places:
        if begin >= 0 and place.offset - stop >= _ALIGNMENT:
            yield begin, stop
            begin = -1
        begin, stop = place.offset if begin < 0 else begin, _end(place)
    if begin >= 0:
        yield begin, stop


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
    """Return the tensor's strides if its memory has no gaps, else the strides of a contiguous tensor."""
    if tensor.is_contiguous() or (tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)):
        return tuple(tensor.stride())
    return torch.empty(tensor.shape, device="meta").stride()
