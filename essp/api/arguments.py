"""Arguments that several functions and classes of `essp` take, and what they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from essp_common.errors import ConfigError
from essp_common.quantities import parse_bytes

if TYPE_CHECKING:
    import torch

    from essp_trainer.config import Rendezvous

Frames = NDArray[Any]
Transform = Callable[[Frames, np.random.Generator], Frames]


def rendezvous_of(rank: int | None, world_size: int | None) -> Rendezvous:
    """Which of how many ranks this process is."""
    import torch

    from essp_trainer.config import Rendezvous

    found = Rendezvous.of_environment()
    distributed = torch.distributed
    if rank is None and world_size is None:
        if distributed.is_available() and distributed.is_initialized():
            rank, world_size = distributed.get_rank(), distributed.get_world_size()
        else:
            return found
    if rank is None or world_size is None or not 0 <= rank < world_size:
        raise ConfigError(f"rank: {rank} is none of {world_size} ranks; give both, and count from 0")
    return found.model_copy(update={"rank": rank, "world_size": world_size})


def device_of(name: str | torch.device) -> torch.device:
    """Where batches go. Raises `ConfigError` for what is not here."""
    import torch

    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device: {name!r} is none; use cpu or cuda") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device: batches cannot be sent to {device} ahead; use cpu, and `batch.to({str(device)!r})`")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device: cuda is not available here; use cpu, or install torch for CUDA")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device: there is no {device} here; GPUs: {torch.cuda.device_count()}, counted from 0")
    return device


def whole_number(name: str, value: object, least: int, beyond: int = 2**63) -> int:
    """An argument that counts something, from `least` on and below `beyond`. Raises `ConfigError`, which names it."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not least <= value < beyond:
        raise ConfigError(f"{name}: {value!r} is no whole number from {least} on")
    return int(value)


def bytes_of(size: int | str, name: str = "memory") -> int:
    """An argument of that name as a number of bytes. Raises `ConfigError`."""
    try:
        found = parse_bytes(size)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error
    if not isinstance(found, int) or found < 1:
        raise ConfigError(f"{name}={size!r}: give bytes, such as '512MiB'")
    return found
