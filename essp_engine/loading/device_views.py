"""Views that the device cuts from whole frames, for many clips at once.

The host draws the cuts, from the random numbers of `essp_engine.learning.augment`, and only decodes; the device
computes the pixels. The interpolation is bilinear as there, between the same pixels: floats are equal except in their
last bits, and bytes differ by at most one level, because the host interpolates colours in integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from essp_common.job.clip_spec import ClipSpec
from essp_common.job.feature_layout import FeatureLayout
from essp_common.job.trainer_spec import AugmentSpec
from essp_common.pb.v1.messages_pb2 import ClipRef
from essp_engine.intake.wanted import Decoded
from essp_engine.learning.augment import NOTHING, negated_in_mirror
from essp_engine.learning.cut import Cut
from essp_engine.loading.batch import ClipShape, Frames, Input, Seen, View
from essp_engine.loading.device import sent

_MOST_FLOATS = 2**23
"""Bytes of whole frames to process at once, 32 MiB: a batch may have hundreds of times as many."""


def left_to_host(clip: ClipSpec, augment: AugmentSpec, layout: FeatureLayout) -> str:
    """Why the device cannot cut the views; empty: it can."""
    if layout.values == "descriptor":
        return "descriptors are not pictures"
    if augment.rand_augment is not None:
        return "augment.rand_augment is computed on the host"
    if clip.resize.mode not in ("exact", "crop"):
        return f"with clip.resize.mode: {clip.resize.mode}, frames of different videos may differ in size"
    return ""


def on_device(cuts: Callable[[ClipRef, int, int], Sequence[Cut]]) -> View:
    """Whole frames, from which the device makes the views. `cuts`: the cuts of a clip with frames of this height and
    width."""

    return _OnDevice(cuts)


@dataclass(frozen=True, slots=True)
class _OnDevice:
    """A function that can be passed to another process, if `cuts` can."""

    cuts: Callable[[ClipRef, int, int], Sequence[Cut]]

    def __call__(self, clip: ClipRef, decoded: Decoded) -> Seen:
        frames, colour = decoded.frames, decoded.colour
        height, width = _size(frames)
        return Seen(frames, colour, tuple(self.cuts(clip, height, width)))


def _size(frames: Frames) -> tuple[int, int]:
    """Height and width of decoded frames. YUV 4:2:0, `(T, 3H/2, W)`, has half as many rows in addition."""
    height, width = frames.shape[1:3]
    return (height, width) if frames.ndim == 4 else (2 * height // 3, width)


@dataclass(frozen=True, slots=True)
class DeviceViews:
    """Cuts views on the device."""

    side: int
    """The side of the squares that the model sees."""
    layout: FeatureLayout

    def of(self, clips: Input, cuts: Sequence[Sequence[Cut]]) -> Input:
        """The views of a batch, cut when the model needs them. `cuts`: equally many for each clip."""
        return _Viewed(self, clips, cuts)

    def __call__(self, clips: Tensor, cuts: Sequence[Sequence[Cut]]) -> Tensor:
        """`(B, T, H, W, C)` -> `(B, V * T, side, side, C)` on the same device, uint8 if they are, or else float32.

        `cuts`: `B` times `V`.
        """
        count, times, channels = len(clips), clips.shape[1], clips.shape[4]
        kind = torch.uint8 if clips.dtype == torch.uint8 else torch.float32
        shape = (count, len(cuts[0]), times, self.side, self.side, channels)
        made = torch.empty(shape, dtype=kind, device=clips.device)
        for number, of_all in enumerate(zip(*cuts, strict=True)):
            self._cut(clips, of_all, made[:, number])
        return made.flatten(1, 2)

    def _cut(self, clips: Tensor, cuts: Sequence[Cut], view: Tensor) -> None:
        """Cut one view of each clip."""
        grid = _grid(cuts, self.side, clips)
        for part in _parts(clips):
            view[part] = _sampled(clips[part], grid[part[0]])
        if any(cut.mirrored for cut in cuts) and (negated := negated_in_mirror(self.layout)) is not None:
            mirrored = sent(torch.tensor([cut.mirrored for cut in cuts]), clips.device)[:, None, None, None, None]
            motion = view[..., negated]
            view[..., negated] = torch.where(mirrored, -motion, motion)  # bytes: modulo 256, as `negate`
        for clip, cut in zip(view, cuts, strict=True):
            if cut.erased is not None:
                clip[:, cut.erased[0], cut.erased[1]] = NOTHING if view.dtype == torch.uint8 else 0


class _Viewed:
    """Clips that the model sees as views."""

    def __init__(self, views: DeviceViews, clips: Input, cuts: Sequence[Sequence[Cut]]) -> None:
        self._views = views
        self._clips = clips
        self._cuts = cuts
        self.shape: ClipShape = clips.shape._replace(frames=len(cuts[0]) * clips.shape.frames)

    def here(self) -> Tensor:
        return self._views(self._clips.here(), self._cuts)


def _parts(clips: Tensor) -> Iterator[tuple[slice, slice]]:
    """Clips and frames that are cut together: all frames of several clips, or some frames of one."""
    times = clips.shape[1]
    frames = max(1, _MOST_FLOATS // clips[0, 0].numel())
    rows = max(1, frames // times)
    for row in range(0, len(clips), rows):
        for time in range(0, times, frames):
            yield slice(row, row + rows), slice(time, time + frames)


def _grid(cuts: Sequence[Cut], side: int, clips: Tensor) -> Tensor:
    """The sampling positions of the pixels of the squares, `(B, side, side, 2)`, for `grid_sample`."""
    height, width = clips.shape[2:4]
    rows = np.stack([_places(cut.rows, height, side) for cut in cuts])
    columns = np.stack([_places(cut.columns, width, side)[:: -1 if cut.mirrored else 1] for cut in cuts])
    y, x = (sent(torch.from_numpy(places.astype(np.float32)), clips.device) for places in (rows, columns))
    shape = (len(cuts), side, side)
    return torch.stack([x[:, None, :].expand(shape), y[:, :, None].expand(shape)], dim=-1)


def _places(cut: slice, length: int, side: int) -> NDArray[np.float64]:
    """The positions of the pixels along one edge of a square, where frames reach from -1 to 1. Nothing outside the cut
    is sampled."""
    size = cut.stop - cut.start
    inside = ((np.arange(side) + 0.5) * (size / side) - 0.5).clip(0, size - 1)
    places: NDArray[np.float64] = (2 * (cut.start + inside) + 1) / length - 1
    return places


def _sampled(frames: Tensor, grid: Tensor) -> Tensor:
    """`(B, T, H, W, C)` sampled at the positions of a grid; bytes in whole levels."""
    count, times, height, width, channels = frames.shape
    planes = frames.permute(0, 1, 4, 2, 3).reshape(count, times * channels, height, width).float()
    made = functional.grid_sample(planes, grid, mode="bilinear", padding_mode="border", align_corners=False)
    made = made.round_() if frames.dtype == torch.uint8 else made
    return made.reshape(count, times, channels, *grid.shape[1:3]).permute(0, 1, 3, 4, 2)
