"""Cuts the model's input from a clip: the augmentation of the two-stream recipe, and the views of evaluation.

Training takes a random region and resizes it to the crop. The height and width of the region are two neighbouring (or
equal) entries of `scales` times the short side; it lies at one of the four corners or the centre. Half of the clips are
mirrored. All frames and channels of a clip are treated alike. (Wang et al., "Towards Good Practices for Very Deep
Two-Stream ConvNets", 2015; TSN, 2016.)

The augmentation of a clip depends on (job seed, trainer, epoch, index) alone. The order of arrival, the number of
threads and a resumption do not change it. Arrays are `(T, H, W, C)`, uint8 or float32. Inputs are not modified.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from essp_common.features.quantization import negate
from essp_common.job.spec import AugmentSpec
from essp_common.learning.inputs import FeatureLayout
from essp_common.learning.randomness import counter_generator

_CORNERS = ((0, 0), (0, 2), (2, 0), (2, 2), (1, 1))
"""Position of a region, down and right, in halves of the free space: the four corners and the centre."""
_TEN = 10
_PLACES: dict[int, Callable[[int, int], Sequence[tuple[int, int]]]] = {
    1: lambda height, width: ((1, 1),),
    3: lambda height, width: ((0, 1), (1, 1), (2, 1)) if height > width else ((1, 0), (1, 1), (1, 2)),
    _TEN: lambda height, width: _CORNERS,
}
"""Number of views in evaluation -> their positions, in halves of the free space, by height and width of the frame."""
_COLOUR_CHANNELS = 4
"""torch has a vectorised uint8 resize for up to this many channels. For more, float is three times faster."""

Frames = NDArray[Any]


def training_view(clip: Frames, augment: AugmentSpec, layout: FeatureLayout, *identity: object) -> Frames:
    """A random region of `clip`, `(T, crop, crop, C)`. `identity`: job seed, trainer, epoch, index."""
    random = counter_generator("augment", *identity)
    rows, columns = _region(clip.shape[1], clip.shape[2], augment.scales, random)
    mirrored = augment.flip and random.random() < 0.5
    view = resized(clip[:, rows, columns], augment.crop)
    return _mirror(view, layout) if mirrored else view


def evaluation_view(clip: Frames, crop: int, views: int, layout: FeatureLayout) -> Frames:
    """The views of `clip` for evaluation, `(views * T, crop, crop, C)`. A clip smaller than `crop` is enlarged.

    1 view: the centre. 3: squares at both ends and in the middle of the long side. 10: corners and centre, each also
    mirrored. The model scores views as it scores frames: the score of a clip is the mean over frames and views.
    """
    _, height, width, _ = clip.shape
    side = min(crop, height, width)
    seen = []
    for down, right in _PLACES[views](height, width):
        top, left = (height - side) * down // 2, (width - side) * right // 2
        seen.append(resized(clip[:, top : top + side, left : left + side], crop))
    if views == _TEN:
        seen += [_mirror(view, layout) for view in seen]
    return seen[0] if views == 1 else np.concatenate(seen)


def resized(frames: Frames, side: int) -> Frames:
    """`frames` resized to squares of `side` pixels, bilinear. Always a copy."""
    if frames.shape[1] == frames.shape[2] == side:
        return frames.copy()
    exact = frames.dtype == np.uint8 and frames.shape[3] <= _COLOUR_CHANNELS
    source = _tensor(frames).permute(0, 3, 1, 2)
    made = functional.interpolate(
        source if exact else source.float(), size=(side, side), mode="bilinear", align_corners=False
    )
    if frames.dtype == np.uint8 and not exact:
        made = made.round_().to(torch.uint8)
    result: Frames = np.ascontiguousarray(made.permute(0, 2, 3, 1).numpy())
    return result


def _tensor(frames: Frames) -> torch.Tensor:
    # torch does not support read-only arrays, such as views over the cache.
    return torch.from_numpy(frames if frames.flags.writeable else frames.copy())


def _region(height: int, width: int, scales: tuple[float, ...], random: np.random.Generator) -> tuple[slice, slice]:
    """Rows and columns of a random region."""
    short = min(height, width)
    sides = [min(short, max(1, round(short * scale))) for scale in scales]
    pairs = [(i, j) for i in range(len(sides)) for j in range(len(sides)) if abs(i - j) <= 1]
    i, j = pairs[random.integers(len(pairs))]
    down, right = _CORNERS[random.integers(len(_CORNERS))]
    top, left = (height - sides[i]) * down // 2, (width - sides[j]) * right // 2
    return slice(top, top + sides[i]), slice(left, left + sides[j])


def _mirror(frames: Frames, layout: FeatureLayout) -> Frames:
    mirrored = np.ascontiguousarray(frames[:, :, ::-1])
    if layout.mirrored_channels is not None:
        horizontal = mirrored[..., layout.mirrored_channels]
        mirrored[..., layout.mirrored_channels] = negate(horizontal) if mirrored.dtype == np.uint8 else -horizontal
    return mirrored
