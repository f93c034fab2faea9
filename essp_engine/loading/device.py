"""The device of a rank: its choice, its precision, the transfer of clips, and the error when its memory is full.

    frames ──stack──▶ pinned host memory ──side stream──▶ GPU        while the GPU trains on the previous batch
           ──stack──▶ host memory                                    on a CPU

Clips are sent as stored (mostly uint8, a quarter of the bytes of floats) and normalised on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from essp_common.errors import ConfigError, OutOfMemory
from essp_engine.learning.colour import pictures
from essp_engine.loading.batch import ClipShape, Frames, Input, alike
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
        kind = torch.from_numpy(np.empty(0, dtype)).dtype
        # Torch reuses pinned memory, but only after the copies out of it have finished.
        pinned = torch.empty((len(frames), *shape), dtype=kind, pin_memory=True)
        np.stack(frames, out=pinned.numpy())
        with torch.cuda.stream(self._stream):
            clips = pinned.to(self._device, non_blocking=True)
            return _OnGpu(clips, self._stream.record_event())


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
