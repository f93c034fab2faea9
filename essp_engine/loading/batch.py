"""A batch: the clips of one phase that are trained together, on the host or on the device.

This module needs no torch, so that processes that only prepare clips start without it.
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
    """The shape of each frame."""
    bytes: bool
    """Whether the numbers are uint8; otherwise they are floats."""


class Input(Protocol):
    """The clips of a batch, on the device or on the way to it."""

    @property
    def shape(self) -> ClipShape:
        """The shape of each clip."""

    def here(self) -> Tensor:
        """`(B, T, H, W, C)` on the device, ready for kernels that the calling thread launches from now on."""


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What the model sees of a clip, or the frames from which the device computes it."""

    frames: Frames
    """`(T, H, W, C)`, or the planes of their video's pixel format."""
    colour: Colour | None = None
    """The pixel format, if the device converts the frames to pictures."""
    cuts: tuple[Cut, ...] = ()
    """The views that the device cuts."""
    further: tuple[Seen, ...] = ()
    """What is seen of each further view of the event, in a stream of all its views."""


View = Callable[[ClipRef, Decoded], Seen]
"""Computes what the model sees of a clip. Must be thread-safe: it runs on the thread that decoded the clip."""

Transform = Callable[[ClipRef, Seen], Seen]
"""A user's code that changes what the model sees. It runs on one thread, on clips in their order."""


def as_stored(clip: ClipRef, decoded: Decoded) -> Seen:
    """All frames of a clip, in the pixel format of its video: the device converts them to pictures."""
    further = tuple(as_stored(clip, each) for each in decoded.further)
    return Seen(decoded.frames, decoded.colour, further=further)


def as_pictures(clip: ClipRef, decoded: Decoded) -> Seen:
    """All frames of a clip as pictures."""
    further = tuple(as_pictures(clip, each) for each in decoded.further)
    return Seen(pictures(decoded.frames, decoded.colour), further=further)


def on_host(view: Callable[[ClipRef, Frames], Frames]) -> View:
    """A view of pictures that needs no work on the device: `(T, H, W, C)` -> `(T, crop, crop, C)`."""
    return _OnHost(view)


@dataclass(frozen=True, slots=True)
class _OnHost:
    """A function that can be passed to another process, if `view` can."""

    view: Callable[[ClipRef, Frames], Frames]

    def __call__(self, clip: ClipRef, decoded: Decoded) -> Seen:
        return Seen(self.view(clip, pictures(decoded.frames, decoded.colour)))


class Shown(NamedTuple):
    """One view of the clips of a batch, as `Batch.frames` and `Batch.colours`."""

    frames: tuple[Frames, ...]
    colours: tuple[Colour, ...] = ()


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
    """In index order, including skipped items; without their bytes."""
    frames: tuple[Frames, ...]
    """What the model sees of each clip that was not skipped; empty after they are sent to the device."""
    colours: tuple[Colour, ...] = ()
    """The pixel formats of `frames`, if they are not pictures yet."""
    cuts: tuple[tuple[Cut, ...], ...] = ()
    """The views to cut from `frames`, if they are not cut yet."""
    further: tuple[Shown, ...] = ()
    """The same of each further view of the clips; empty after they are sent to the device."""
    input: Input | None = None
    """The clips on the device; None: this rank has no clip of the batch."""
    further_inputs: tuple[Input, ...] = ()
    """Each further view of the clips on the device."""

    @property
    def clips(self) -> tuple[Delivery, ...]:
        """The items that have frames."""
        return tuple(item for item in self.items if not item.skipped)

    @property
    def position(self) -> Position:
        """The position after this batch."""
        return Position(self.phase_index, self.stop)

    def digest(self) -> int:
        """The digest of its clips; see `essp_engine/planning/digest.py`."""
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
    """The shape and type of all these clips. Raises `ConfigError` if they differ."""
    kinds = {(each.shape, each.dtype) for each in frames}
    if len(kinds) > 1:
        said = " and ".join(sorted(f"{dtype} {shape}" for shape, dtype in kinds)[:2])
        raise ConfigError(
            f"the clips of a batch differ ({said}); if videos differ in shape, set clip.resize.mode: crop; "
            "a transform must give all clips the same shape and type"
        )
    [kind] = kinds
    return kind
