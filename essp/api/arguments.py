"""Arguments that several functions and classes of `essp` take, and what they stand for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from essp.uris import as_uri
from essp_common.errors import ConfigError
from essp_common.quantities import parse_bytes
from essp_common.validation import shown

if TYPE_CHECKING:
    import torch

    from essp_engine.loading.rendezvous import Rendezvous

Frames = NDArray[Any]
Transform = Callable[[Frames, np.random.Generator], Frames]

MOST_DECODERS = 1024
_MOST = 2**63 - 1


def rendezvous_of(rank: int | None, world_size: int | None) -> Rendezvous:
    """Which of how many ranks this process is. Raises `ConfigError`."""
    import torch

    from essp_engine.loading.rendezvous import Rendezvous

    found = Rendezvous.of_environment()
    distributed = torch.distributed
    if rank is None and world_size is None:
        joined = distributed.is_available() and distributed.is_initialized()
        rank = distributed.get_rank() if joined else found.rank
        world_size = distributed.get_world_size() if joined else found.world_size
    if rank is None or world_size is None:
        raise ConfigError(f"rank, world_size: {shown(rank)} and {shown(world_size)}; give both, or none of them")
    ranks = whole_number("world_size", world_size, 1)
    if (number := whole_number("rank", rank, 0)) >= ranks:
        raise ConfigError(f"rank: {number} is none of {ranks} ranks, which count from 0")
    return found.model_copy(update={"rank": number, "world_size": ranks})


def device_of(name: str | torch.device) -> torch.device:
    """Where batches go. Raises `ConfigError` for what is not here."""
    device = torch_device(name)
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device: batches cannot be sent to {device} ahead; use cpu, and `batch.to({str(device)!r})`")
    return device


def on_this_gpu(device: torch.device) -> torch.device:
    """The device, with the number of the GPU if it is the present one of this thread: other threads have another."""
    import torch

    return torch.device("cuda", torch.cuda.current_device()) if device == torch.device("cuda") else device


def torch_device(name: str | torch.device) -> torch.device:
    """A device of any kind. Raises `ConfigError` for what is none, and for a GPU that is not here."""
    import torch

    try:
        device = torch.device(name)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(f"device: {shown(name)} is none; use cpu or cuda") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device: cuda is not available here; use cpu, or install torch for CUDA")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device: there is no {device} here; GPUs: {torch.cuda.device_count()}, counted from 0")
    return device


def is_whole(value: object) -> bool:
    """Whether it is a whole number, of Python or numpy."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def whole_number(name: str, value: Any, least: int, most: int = _MOST) -> int:
    """An argument that counts something, from `least` to `most`. Raises `ConfigError`, which names it."""
    if not is_whole(value) or not least <= value <= most:
        reach = "on" if most == _MOST else f"to {most}"
        raise ConfigError(f"{name}: {shown(value)} is no whole number from {least} {reach}")
    return int(value)


def sides_of(name: str, size: Any, most: int, *, square: bool = True) -> tuple[int, int]:
    """An argument that is a height and a width, or unless `square` is False the side of a square. Raises `ConfigError`,
    which names it."""
    sides = plain(size)
    if square and isinstance(sides, int):
        sides = (sides, sides)
    if not isinstance(sides, (list, tuple)) or len(sides) != 2:
        said = "neither a side nor a height and a width" if square else "no height and width"
        raise ConfigError(f"{name}: {shown(size)} is {said}")
    height, width = (whole_number(name, side, 1, most) for side in sides)
    return height, width


def name_of(name: str, value: object) -> str:
    """An argument that is the name of something. Raises `ConfigError`, which names it."""
    if not isinstance(value, str):
        raise ConfigError(f"{name}: {shown(value)} is no name")
    return value


def path_of(name: str, value: object) -> str:
    """An argument that is a path or a URI. Raises `ConfigError`, which names it."""
    if not isinstance(value, (str, os.PathLike)) or not _can_name_a_file(str(value)):
        raise ConfigError(f"{name}: {shown(value)} is no path or URI")
    return str(value)


def _can_name_a_file(text: str) -> bool:
    try:
        return bool(text) and b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def uri_of(name: str, value: object) -> str:
    """An argument that is a path or a URI, as a URI. Raises `ConfigError`, which names it."""
    return as_uri(path_of(name, value))


def several(name: str, value: Any, *kinds: type) -> list[Any]:
    """An argument that is one thing of some kinds, or several. Raises `ConfigError`, which names it."""
    if isinstance(value, kinds):
        return [value]
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise ConfigError(f"{name}: {shown(value)} is neither one nor several")
    return list(value)


def mapping_of(name: str, value: Any) -> dict[str, Any]:
    """An argument that is a mapping. Raises `ConfigError`, which names it."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name}: {shown(value)} is no mapping of names to values")
    return dict(value)


def function_of(name: str, value: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """An argument that is a function, if it is given. Raises `ConfigError`, which names it."""
    if value is not None and not callable(value):
        raise ConfigError(f"{name}: {shown(value)} is no function")
    return value


def transformed(transform: Transform, frames: Frames, random: np.random.Generator) -> Frames:
    """What a transform makes of a clip. Raises `ConfigError` for what is no array of numbers."""
    made = np.asarray(transform(frames, random))
    if made.dtype.kind not in "biufc" or not made.ndim:
        raise ConfigError(f"transform: it gave {shown(made)}; return an array of numbers for each clip")
    return made.astype(made.dtype.newbyteorder("="), copy=False)


def plain(value: Any) -> Any:
    """Numbers and arrays of numpy as those of Python, also within mappings and lists."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: plain(inner) for name, inner in value.items()}
    return type(value)(map(plain, value)) if type(value) in (list, tuple) else value


def bytes_of(size: int | str, name: str = "memory") -> int:
    """An argument of that name as a number of bytes. Raises `ConfigError`."""
    try:
        found: Any = parse_bytes(size)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error
    if not is_whole(found) or found < 1:
        raise ConfigError(f"{name}={shown(size)}: give bytes, such as '512MiB'")
    return int(found)
