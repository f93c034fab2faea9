"""The device of a rank: its choice, its precision, the transfer of clips, and the error when its memory is full.

    frames ──stack──▶ pinned host memory ──side stream──▶ GPU        while the GPU trains on the previous batch
           ──stack──▶ host memory                                    on a CPU

Clips are sent as stored (mostly uint8, a quarter of the bytes of floats) and normalised on the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from essp_common.errors import ConfigError, OutOfMemory
from essp_engine.learning.colour import pictures
from essp_engine.loading.batch import Clips, ClipShape, Frames, Input, alike, of_one_type
from essp_engine.loading.host_memory import HostMemory
from essp_engine.video.colour import Colour

Transfer = Callable[[Sequence[Frames]], Input]
"""Starts to send clips, at least one and all of the same shape, to the device."""


class ToHost:
    """Collects batches in host memory, where the model is, too."""

    def __init__(self) -> None:
        self._memory = HostMemory()

    def __call__(self, frames: Sequence[Frames]) -> Input:
        shape, dtype = alike(frames)
        clips = self._memory.tensor((len(frames), *shape), dtype)
        np.stack(frames, out=clips.numpy())
        return OnHost(clips)


class OnHost:
    """A batch in host memory."""

    def __init__(self, clips: Tensor) -> None:
        self._clips = clips
        self.shape = _shape(clips)

    def here(self) -> Tensor:
        return self._clips


class ToGpu:
    """Sends batches through pinned memory on its own stream: neither the thread nor the GPU waits for a copy."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __call__(self, frames: Sequence[Frames]) -> Input:
        shape, dtype = alike(frames)
        pinned = _pinned((len(frames), *shape), dtype)
        np.stack(frames, out=pinned.numpy())
        return self.begun(pinned)

    def begun(self, pinned: Tensor) -> Input:
        """Start to send what is in pinned memory."""
        with torch.cuda.stream(self._stream):
            clips = pinned.to(self._device, non_blocking=True)
            return _OnGpu(clips, self._stream.record_event())


def _pinned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Tensor:
    """Pinned memory. Torch reuses it, but only after the copies out of it have finished."""
    return torch.empty(shape, dtype=torch.from_numpy(np.empty(0, dtype)).dtype, pin_memory=True)


class _OnGpu:
    def __init__(self, clips: Tensor, arrived: torch.cuda.Event) -> None:
        self._clips = clips
        self._arrived = arrived
        self.shape = _shape(clips)

    def here(self) -> Tensor:
        stream = torch.cuda.current_stream(self._clips.device)
        stream.wait_event(self._arrived)
        self._clips.record_stream(stream)  # keep its memory until this stream has finished with it
        return self._clips


class EachToHost:
    """Collects clips that differ in size in host memory, one after the other."""

    def __init__(self) -> None:
        self._memory = HostMemory()

    def __call__(self, frames: Sequence[Frames]) -> Clips:
        memory = self._memory.tensor((sum(each.size for each in frames),), of_one_type(frames))
        return EachOnHost(_filled(memory, frames))


class EachOnHost:
    """Clips that differ in size, in host memory."""

    def __init__(self, clips: list[Tensor]) -> None:
        self._clips = clips

    def each(self) -> list[Tensor]:
        return self._clips


class EachToGpu:
    """Sends clips that differ in size together, in one copy, as `ToGpu` does."""

    def __init__(self, device: torch.device) -> None:
        self._gpu = ToGpu(device)

    def __call__(self, frames: Sequence[Frames]) -> Clips:
        pinned = _pinned((1, sum(each.size for each in frames)), of_one_type(frames))
        _filled(pinned[0], frames)
        return _EachOnGpu(self._gpu.begun(pinned), [each.shape for each in frames])


class _EachOnGpu:
    def __init__(self, flat: Input, shapes: Sequence[tuple[int, ...]]) -> None:
        self._flat = flat
        self._shapes = shapes

    def each(self) -> list[Tensor]:
        return _cut(self._flat.here()[0], self._shapes)


class EachOfPlanes:
    """Clips that differ in size and become pictures on the device."""

    def __init__(self, planes: Clips, colours: Sequence[Colour]) -> None:
        self._planes = planes
        self._colours = colours

    def each(self) -> list[Tensor]:
        planes = zip(self._planes.each(), self._colours, strict=True)
        return [pictures(clip[None], [colour])[0] for clip, colour in planes]


def _filled(memory: Tensor, frames: Sequence[Frames]) -> list[Tensor]:
    """The clips, copied into flat memory."""
    clips = _cut(memory, [each.shape for each in frames])
    for clip, each in zip(clips, frames, strict=True):
        np.copyto(clip.numpy(), each)
    return clips


def _cut(memory: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """Flat memory as tensors of these shapes, one after the other."""
    parts = memory.split_with_sizes([math.prod(shape) for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


class OfPlanes:
    """Clips that are sent in the pixel format of their videos, half the bytes of RGB, and become pictures on the
    device."""

    def __init__(self, planes: Input, colours: Sequence[Colour], dimensions: int) -> None:
        """`dimensions`: the number of dimensions of the frames of one clip; 4 for luma, `(T, H, W, 1)`."""
        self._planes = planes
        self._colours = colours
        self.shape = planes.shape._replace(channels=1 if dimensions == 4 else 3)

    def here(self) -> Tensor:
        return pictures(self._planes.here(), self._colours)


def _shape(clips: Tensor) -> ClipShape:
    return ClipShape(clips.shape[1], clips.shape[-1], clips.dtype == torch.uint8)


def transfer_to(device: torch.device) -> Transfer:
    """The transfer of clips to a device."""
    return ToGpu(device) if device.type == "cuda" else ToHost()


def transfer_of_each(device: torch.device) -> Callable[[Sequence[Frames]], Clips]:
    """The transfer of clips that may differ in size to a device."""
    return EachToGpu(device) if device.type == "cuda" else EachToHost()


def launches(device: torch.device) -> bool:
    """Whether the device computes asynchronously."""
    return device.type == "cuda"


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A host tensor on the device, or on the way there: the transfer does not block."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def choose_device(wanted: str, local_rank: int, deterministic: bool) -> torch.device:
    """The device of `TrainerSpec.device`: each rank of a machine gets a separate GPU.

    `deterministic`: see `TrainerSettings`. Raises `ConfigError` when CUDA is requested and there is no GPU, or too few.
    """
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError(
            "cuda is not available here; use auto or cpu, or install torch for CUDA", field="device", code="unsupported"
        )
    if local_rank >= torch.cuda.device_count():
        there = torch.cuda.device_count()
        raise ConfigError(
            f"rank {local_rank} of this machine has no GPU: the machine has {there}; start {there} ranks",
            field="device",
            code="range",
        )
    torch.cuda.set_device(local_rank)
    torch.backends.cudnn.benchmark = not deterministic  # all batches but a phase's last have one shape: worth a search
    torch.backends.cudnn.deterministic = deterministic
    return torch.device("cuda", local_rank)


def half_type(wanted: bool, device: torch.device) -> torch.dtype | None:
    """The type of mixed precision: bfloat16 (the range of float32) if the GPU has it, or float16; None: float32."""
    if not wanted or device.type != "cuda":
        return None
    return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16


@contextmanager
def enough_memory(device: torch.device, clips: int) -> Iterator[None]:
    """Convert out-of-memory errors of this block, which processes a batch of `clips`, into `OutOfMemory` with the
    remedy."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise OutOfMemory(
            f"{device} has too little memory for a batch of {clips} clips; set micro_batch, set amp: true, choose a "
            f"smaller model or augment.crop, or train on more ranks, which share the batch"
        ) from error
