"""What a rank computes on: which device, in which precision, how clips get there, and what it says when it is full.

    frames ──stack──▶ pinned host memory ──side stream──▶ GPU        while the GPU trains on the batch before
           ──stack──▶ host memory                                    on a CPU

Clips travel as they are (uint8 mostly, a quarter of the bytes of floats) and are normalised on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from essp_common.errors import ConfigError, OutOfMemory

Frames = NDArray[Any]


class Input(Protocol):
    """The clips of a batch, on their way to the device or there."""

    @property
    def channels(self) -> int:
        """Of each frame."""

    def here(self) -> Tensor:
        """`(B, T, H, W, C)` on the device, for kernels launched from now on by the thread that asks."""


Transfer = Callable[[Sequence[Frames]], Input]
"""Starts at least one clip, all of one shape, on their way to the device."""


class OnHost:
    """A batch in host memory, where the model is, too."""

    def __init__(self, frames: Sequence[Frames]) -> None:
        self._clips = torch.from_numpy(np.stack(frames))
        self.channels = self._clips.shape[-1]

    def here(self) -> Tensor:
        return self._clips


class ToGpu:
    """Sends batches through pinned memory on a stream of its own, so that neither thread nor GPU waits for a copy."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __call__(self, frames: Sequence[Frames]) -> Input:
        kind = torch.from_numpy(frames[0][:0]).dtype
        # Torch reuses pinned memory, and not before the copies out of it are over.
        pinned = torch.empty((len(frames), *frames[0].shape), dtype=kind, pin_memory=True)
        np.stack(frames, out=pinned.numpy())
        with torch.cuda.stream(self._stream):
            clips = pinned.to(self._device, non_blocking=True)
            return _OnGpu(clips, self._stream.record_event())


class _OnGpu:
    def __init__(self, clips: Tensor, arrived: torch.cuda.Event) -> None:
        self._clips = clips
        self._arrived = arrived
        self.channels = clips.shape[-1]

    def here(self) -> Tensor:
        stream = torch.cuda.current_stream(self._clips.device)
        stream.wait_event(self._arrived)
        self._clips.record_stream(stream)  # its memory is not given away before this stream is done with it
        return self._clips


def transfer_to(device: torch.device) -> Transfer:
    """How clips get to a device."""
    return ToGpu(device) if device.type == "cuda" else OnHost


def choose_device(wanted: str, local_rank: int, deterministic: bool) -> torch.device:
    """The device of `TrainerSpec.device`: each rank of a machine takes a GPU of its own.

    `deterministic`: see `TrainerSettings`. Raises `ConfigError` when CUDA is asked for and there is none, or too few.
    """
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError("device: cuda is not available here; use auto or cpu, or install torch for CUDA")
    if local_rank >= torch.cuda.device_count():
        raise ConfigError(f"rank {local_rank} of this machine has no GPU: it has {torch.cuda.device_count()}")
    torch.cuda.set_device(local_rank)
    torch.backends.cudnn.benchmark = not deterministic  # batches have one shape but for a phase's last: worth trying
    torch.backends.cudnn.deterministic = deterministic
    return torch.device("cuda", local_rank)


def half_type(wanted: bool, device: torch.device) -> torch.dtype | None:
    """What mixed precision computes in: bfloat16, whose range is float32's, where the GPU has it; None: float32."""
    if not wanted or device.type != "cuda":
        return None
    return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16


@contextmanager
def enough_memory(device: torch.device, clips: int) -> Iterator[None]:
    """What is done here with so many clips may be more than the device can hold: say what helps."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise OutOfMemory(
            f"{device} has too little memory for a batch of {clips} clips; lower batch_size, set amp: true, choose a "
            f"smaller model or augment.crop, or train on more ranks, which share the batch"
        ) from error
