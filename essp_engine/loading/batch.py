"""A batch: the clips of one phase that are trained together, on the host or on the device.

This needs no torch: a process that only prepares clips starts without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from essp_common.errors import ConfigError
from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import ClipRef, PhasePlan
from essp_engine.intake.ordered import Delivery
from essp_engine.intake.wanted import Decoded
from essp_engine.learning.cut import Cut
from essp_engine.planning.digest import joined, ref_digest
from essp_engine.video.colour import Colour, pictures

if TYPE_CHECKING:
    from torch import Tensor

Frames = NDArray[Any]


class ClipShape(NamedTuple):
    """What the clips of a batch have in common."""

    frames: int
    channels: int
    """Of each frame."""
    bytes: bool
    """They are uint8, and not floats."""


class Input(Protocol):
    """The clips of a batch, on the device or on the way to it."""

    @property
    def shape(self) -> ClipShape:
        """That of each clip."""

    def here(self) -> Tensor:
        """`(B, T, H, W, C)` on the device, for kernels that the calling thread launches from now on."""


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What the model sees of a clip, or what the device makes that of."""

    frames: Frames
    """`(T, H, W, C)`, or in the colours of their video."""
    colour: Colour | None = None
    """The device makes pictures of the frames."""
    cuts: tuple[Cut, ...] = ()
    """The device cuts these views."""


View = Callable[[ClipRef, Decoded], Seen]
"""What the model sees of a clip. It runs on whatever thread has decoded the clip, so it has to be thread-safe."""

Transform = Callable[[ClipRef, Seen], Seen]
"""Code of the user's that changes what the model sees. It runs on one thread, on clips in their order."""


def as_stored(clip: ClipRef, decoded: Decoded) -> Seen:
    """All of a clip, in the colours of its video: the device makes pictures of them."""
    return Seen(*decoded)


def as_pictures(clip: ClipRef, decoded: Decoded) -> Seen:
    """All of a clip."""
    return Seen(pictures(*decoded))


def on_host(view: Callable[[ClipRef, Frames], Frames]) -> View:
    """A view of pictures that leaves nothing to the device: `(T, H, W, C)` -> `(T, crop, crop, C)`."""
    return _OnHost(view)


@dataclass(frozen=True, slots=True)
class _OnHost:
    """A function that another process can be given, if `view` is one."""

    view: Callable[[ClipRef, Frames], Frames]

    def __call__(self, clip: ClipRef, decoded: Decoded) -> Seen:
        return Seen(self.view(clip, pictures(*decoded)))


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """This rank's share of the clips of one phase that are trained together."""

    phase_index: int
    plan: PhasePlan
    begin: int
    """The first index of the whole batch, on all ranks."""
    stop: int
    """The index after the last of the whole batch, on all ranks."""
    items: tuple[Delivery, ...]
    """In index order, skipped ones included; without their bytes."""
    frames: tuple[Frames, ...]
    """What the model sees of each clip that was not skipped; empty once they are sent to the device."""
    colours: tuple[Colour, ...] = ()
    """Of `frames`, if they are still in the colours of their videos."""
    cuts: tuple[tuple[Cut, ...], ...] = ()
    """Of `frames`, if views of them are still to be cut."""
    input: Input | None = None
    """The clips on the device; None: this rank has no clip of the batch."""

    @property
    def clips(self) -> tuple[Delivery, ...]:
        """The items that have frames."""
        return tuple(item for item in self.items if not item.skipped)

    @property
    def position(self) -> Position:
        """The position after this batch."""
        return Position(self.phase_index, self.stop)

    def digest(self) -> int:
        """Digest of its clips; see `essp_engine/planning/digest.py`."""
        return joined(ref_digest(self.phase_index, item.clip) for item in self.clips)

    def labels(self) -> NDArray[np.int64]:
        """`(N,)` class ids."""
        return np.array([item.clip.class_id for item in self.clips], dtype=np.int64)

    def label_sets(self, labels: int) -> NDArray[np.bool_]:
        """`(N, labels)`: which labels each clip has."""
        found = np.zeros((len(self.clips), labels), np.bool_)
        for row, item in enumerate(self.clips):
            found[row, list(item.clip.labels)] = True
        return found


def alike(frames: Sequence[Frames]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """The shape and type of each of these clips. Raises `ConfigError` if they differ."""
    kinds = {(each.shape, each.dtype) for each in frames}
    if len(kinds) > 1:
        said = " and ".join(sorted(f"{dtype} {shape}" for shape, dtype in kinds)[:2])
        raise ConfigError(
            f"the clips of a batch differ ({said}); where videos differ in shape, clip.resize.mode has to be crop, and "
            "a transform has to give all the same shape and type"
        )
    [kind] = kinds
    return kind
