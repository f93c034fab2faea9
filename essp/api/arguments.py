"""Checks and conversions of arguments that several functions and classes of `essp` take."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from essp.uris import as_uri
from essp_common.errors import ConfigCode, ConfigError
from essp_common.quantities import parse_bytes
from essp_common.validation import shown

if TYPE_CHECKING:
    import torch

    from essp_engine.loading.rendezvous import Rendezvous

P = ParamSpec("P")
R = TypeVar("R")

Frames = NDArray[Any]
Transform = Callable[[Frames, np.random.Generator], Frames]

MOST_DECODERS = 1024
_MOST = 2**63 - 1


def grouped(**groups: type[Any]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates a function that takes groups of arguments, each a dataclass, by these names.

    Where a field of a group is given as an argument of the function, also by one of the group's `former_names`, a
    `ConfigError` says where it belongs.
    """
    homes = {field.name: (argument, field.name) for argument, group in groups.items() for field in fields(group)}
    for argument, group in groups.items():
        former: Mapping[str, str] = getattr(group, "former_names", {})
        homes |= {old: (argument, new) for old, new in former.items()}

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        known = inspect.signature(function).parameters

        @wraps(function)
        def checked(*args: P.args, **given: P.kwargs) -> R:
            for name in given:
                if name in homes and name not in known:
                    home, part = homes[name]
                    raise ConfigError(
                        f"is part of {home}; write {home}=essp.{groups[home].__name__}({part}=...)",
                        field=name,
                        code="unknown",
                    )
            return function(*args, **given)

        return checked

    return decorated


def rendezvous_of(rank: int | None, world_size: int | None) -> Rendezvous:
    """The rank of this process and the number of ranks, from the arguments or else from the environment.

    Raises `ConfigError`.
    """
    import torch

    from essp_engine.loading.rendezvous import Rendezvous

    found = Rendezvous.of_environment()
    distributed = torch.distributed
    if rank is None and world_size is None:
        joined = distributed.is_available() and distributed.is_initialized()
        rank = distributed.get_rank() if joined else found.rank
        world_size = distributed.get_world_size() if joined else found.world_size
    if rank is None or world_size is None:
        missing, given = ("rank", "world_size") if rank is None else ("world_size", "rank")
        raise ConfigError(f"required with {given}; give both or neither", field=missing, code="missing")
    ranks = whole_number("world_size", world_size, 1)
    if (number := whole_number("rank", rank, 0)) >= ranks:
        raise ConfigError(f"must be less than world_size ({ranks}), got {number}", field="rank", code="range")
    return found.model_copy(update={"rank": number, "world_size": ranks})


def device_of(name: str | torch.device) -> torch.device:
    """The device to which batches are sent. Raises `ConfigError` if it is not available."""
    device = torch_device(name)
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(
            f"batches cannot be sent to {device} ahead; use 'cpu', and `batch.to({str(device)!r})`",
            field="device",
            code="unsupported",
        )
    return device


def on_this_gpu(device: torch.device) -> torch.device:
    """The device with its index; `cuda` is the current GPU of this thread, and other threads may have another one."""
    import torch

    return torch.device("cuda", torch.cuda.current_device()) if device == torch.device("cuda") else device


def torch_device(name: str | torch.device) -> torch.device:
    """A device of any kind. Raises `ConfigError` for an unknown one, and for a GPU that this machine lacks."""
    import torch

    try:
        device = torch.device(name)
    except (RuntimeError, TypeError, ValueError) as error:
        code: ConfigCode = "unknown" if isinstance(name, str) else "type"
        raise ConfigError(f"{shown(name)} is not a device; use 'cpu' or 'cuda'", field="device", code=code) from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "CUDA is not available here; use 'cpu', or install torch for CUDA", field="device", code="not_found"
        )
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise ConfigError(
            f"this machine has no {device}; it has {count} GPUs, numbered from 0", field="device", code="not_found"
        )
    return device


def is_whole(value: object) -> bool:
    """Whether it is an integer, of Python or NumPy; a bool is not."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def whole_number(name: str, value: Any, least: int, most: int = _MOST) -> int:
    """An argument that must be an integer from `least` to `most`. Raises `ConfigError`."""
    if not is_whole(value) or not least <= value <= most:
        open_ended = most == _MOST and not (is_whole(value) and value > most)
        reach = f">= {least}" if open_ended else f"from {least} to {most}"
        code: ConfigCode = "range" if is_whole(value) else "type"
        raise ConfigError(f"must be an integer {reach}, got {shown(value)}", field=name, code=code)
    return int(value)


def sides_of(name: str, size: Any, most: int, *, least: int = 1, square: bool = True) -> tuple[int, int]:
    """An argument that is a height and a width, or with `square` also the side of a square. Raises `ConfigError`."""
    sides = plain(size)
    if square and isinstance(sides, int):
        sides = (sides, sides)
    if not isinstance(sides, (list, tuple)) or len(sides) != 2:
        wanted = "an integer or (height, width)" if square else "(height, width)"
        raise ConfigError(f"must be {wanted}, got {shown(size)}", field=name, code="type")
    height, width = (whole_number(name, side, least, most) for side in sides)
    return height, width


def name_of(name: str, value: object) -> str:
    """An argument that names something. Raises `ConfigError`."""
    if not isinstance(value, str):
        raise ConfigError(f"must be a string, got {shown(value)}", field=name, code="type")
    return value


def path_of(name: str, value: object) -> str:
    """An argument that is a path or a URI. Raises `ConfigError`."""
    if not isinstance(value, (str, os.PathLike)):
        raise ConfigError(f"must be a path or URI, got {shown(value)}", field=name, code="type")
    if not _can_name_a_file(str(value)):
        raise ConfigError(f"{shown(value)} is not a path or URI", field=name, code="invalid")
    return str(value)


def _can_name_a_file(text: str) -> bool:
    try:
        return bool(text) and b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def uri_of(name: str, value: object) -> str:
    """An argument that is a path or a URI, as a URI. Raises `ConfigError`."""
    return as_uri(path_of(name, value))


def several(name: str, value: Any, *kinds: type) -> list[Any]:
    """An argument that is one value of these types, or an iterable of values. Raises `ConfigError`."""
    if isinstance(value, kinds):
        return [value]
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise ConfigError(f"must be {wanted}, or a list of these, got {shown(value)}", field=name, code="type")
    return list(value)


def mapping_of(name: str, value: Any) -> dict[str, Any]:
    """An argument that is a mapping. Raises `ConfigError`."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"must be a mapping of names to values, got {shown(value)}", field=name, code="type")
    return dict(value)


def function_of(name: str, value: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """An argument that is a function or None. Raises `ConfigError`."""
    if value is not None and not callable(value):
        raise ConfigError(f"must be a function, got {shown(value)}", field=name, code="type")
    return value


def transformed(transform: Transform, frames: Frames, random: np.random.Generator) -> Frames:
    """The clip as `transform` returns it. Raises `ConfigError` if that is not an array of numbers."""
    made = np.asarray(transform(frames, random))
    if made.dtype.kind not in "biufc" or not made.ndim:
        raise ConfigError(
            f"must return an array of numbers for each clip, returned {shown(made)}", field="transform", code="type"
        )
    return made.astype(made.dtype.newbyteorder("="), copy=False)


def plain(value: Any) -> Any:
    """Scalars and arrays of NumPy as numbers and lists of Python, also within mappings and lists."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: plain(inner) for name, inner in value.items()}
    return type(value)(map(plain, value)) if type(value) in (list, tuple) else value


def bytes_of(size: int | str, name: str = "memory") -> int:
    """An argument that is a number of bytes, such as `"512MiB"`. Raises `ConfigError`."""
    try:
        found: Any = parse_bytes(size)
    except ValueError as error:
        raise ConfigError(str(error), field=name, code="type") from error
    if not is_whole(found) or found < 1:
        code: ConfigCode = "range" if is_whole(found) else "type"
        raise ConfigError(f"must be a number of bytes such as '512MiB', got {shown(size)}", field=name, code=code)
    return int(found)
