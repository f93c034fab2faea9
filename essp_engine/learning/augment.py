"""Cuts the model's input from a clip: the augmentation of the two-stream recipe, and the views of evaluation.

Training takes a random region and resizes it to the crop. The height and width of the region are two neighbouring (or
equal) entries of `scales` times the short side; its position is one of the four corners or the centre. Half of the
clips are mirrored. All frames and channels of a clip are treated alike. (Wang et al., "Towards Good Practices for Very
Deep Two-Stream ConvNets", 2015; TSN, 2016.) If requested, RandAugment (`rand_augment.py`) and random erasing follow.

Evaluation cuts squares whose side is a fixed fraction of the short side, and resizes them to the crop. So objects
appear at a size seen in training, whatever the frame size.

The augmentation of a clip depends only on (seed of the training, epoch, index), not on the order of arrival, the number
of threads or a resumption. Arrays are `(T, H, W, C)`, uint8 or float32. Inputs are not modified. Descriptors are not
pictures, and are used unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from essp_common.artifacts.manifest import ModelDescription
from essp_common.job.feature_layout import FeatureLayout
from essp_common.job.trainer_spec import AugmentSpec
from essp_engine.features.quantization import negate
from essp_engine.learning.cut import Cut
from essp_engine.learning.randomness import counter_generator

_CORNERS = ((0, 0), (0, 2), (2, 0), (2, 2), (1, 1))
"""Position of a region, down and right, in halves of the free space: the four corners and the centre."""
_TEN = 10
_PLACES: dict[int, Callable[[int, int], Sequence[tuple[int, int]]]] = {
    1: lambda height, width: ((1, 1),),
    3: lambda height, width: ((0, 1), (1, 1), (2, 1)) if height > width else ((1, 0), (1, 1), (1, 2)),
    _TEN: lambda height, width: _CORNERS,
}
"""Number of evaluation views -> their positions, in halves of the free space, by height and width of the frame."""
_HORIZONTAL = slice(0, None, 2)
"""The channels of horizontal motion: dx, dy, dx, dy, ..."""
_ERASED = (0.02, 1 / 3)
"""The smallest and the largest erased fraction of a picture."""
_LONGEST = float(np.log(1 / 0.3))
"""Logarithm of the largest aspect ratio of the erased rectangle, in either direction."""
NOTHING = 128
"""The value of erased pixels: grey, or no motion. 0 for float values."""
_COLOUR_CHANNELS = 4
"""torch has a vectorised uint8 resize for up to this many channels. For more, float is three times faster."""

Frames = NDArray[Any]


class Evaluated(NamedTuple):
    """What evaluation and prediction see of a frame."""

    crop: int
    """Side in pixels of the square that the model sees."""
    scale: float
    """Side of the square that is cut, as a fraction of the short side."""
    views: int
    """Squares of each frame: 1, 3 or 10."""

    @classmethod
    def by(cls, model: ModelDescription) -> Self:
        """The view of a trained model."""
        return cls(model.crop, model.evaluation_scale, model.views)


def training_view(clip: Frames, augment: AugmentSpec, layout: FeatureLayout, *identity: object) -> Frames:
    """A random region of `clip`, `(T, crop, crop, C)`. `identity`: seed of the training, epoch, index."""
    if layout.values == "descriptor":
        return clip  # nothing to crop
    random = counter_generator("augment", *identity)
    cut = _region(clip.shape[1], clip.shape[2], augment, random)
    view = resized(clip[:, cut.rows, cut.columns], augment.crop)
    view = _mirror(view, layout) if cut.mirrored else view
    if augment.rand_augment is not None:
        from essp_engine.learning.rand_augment import rand_augmented  # brings torchvision, which others do without

        view = rand_augmented(view, augment.rand_augment, random)
    if (erased := _erased(augment, random)) is not None:
        view[:, erased[0], erased[1]] = NOTHING if view.dtype == np.uint8 else 0
    return view


def training_cut(height: int, width: int, augment: AugmentSpec, *identity: object) -> Cut:
    """The cut of `training_view` for a clip with frames of this size, for cutting on a device.

    Raises `ValueError` with RandAugment, which a `Cut` cannot express.
    """
    if augment.rand_augment is not None:
        raise ValueError("RandAugment is computed on the host")
    random = counter_generator("augment", *identity)
    return _region(height, width, augment, random)._replace(erased=_erased(augment, random))


def evaluation_cuts(height: int, width: int, seen: Evaluated) -> list[Cut]:
    """The cuts of `evaluation_view` for a clip with frames of this size, one for each view."""
    side, places = squares(height, width, seen)
    cuts = [Cut(slice(top, top + side), slice(left, left + side)) for top, left in places]
    return cuts + [cut._replace(mirrored=True) for cut in cuts] if mirrors(seen) else cuts


def evaluation_view(clip: Frames, seen: Evaluated, layout: FeatureLayout) -> Frames:
    """The views of `clip` for evaluation, `(views * T, crop, crop, C)`.

    1 view: the centre. 3: squares at both ends and in the middle of the long side. 10: corners and centre, each also
    mirrored. The model scores views like frames: the score of a clip is the mean over frames and views.
    """
    if layout.values == "descriptor":
        return clip
    side, places = squares(clip.shape[1], clip.shape[2], seen)
    views = [resized(clip[:, top : top + side, left : left + side], seen.crop) for top, left in places]
    if mirrors(seen):
        views += [_mirror(view, layout) for view in views]
    return views[0] if seen.views == 1 else np.concatenate(views)


def squares(height: int, width: int, seen: Evaluated) -> tuple[int, list[tuple[int, int]]]:
    """The squares for frames of this size: their side, and the top and left of each."""
    side = _side(min(height, width), seen.scale)
    return side, [
        ((height - side) * down // 2, (width - side) * right // 2) for down, right in _PLACES[seen.views](height, width)
    ]


def mirrors(seen: Evaluated) -> bool:
    """Whether each square is also seen mirrored, after all others."""
    return seen.views == _TEN


def resized(frames: Frames, side: int) -> Frames:
    """`frames` resized to squares of `side` pixels, bilinear; uint8 stays uint8, anything else becomes float32. Always
    a copy."""
    if frames.shape[1] == frames.shape[2] == side:
        return frames.copy() if frames.dtype == np.uint8 else frames.astype(np.float32)
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
    # torch does not support read-only arrays, such as views of the cache.
    return torch.from_numpy(frames if frames.flags.writeable else frames.copy())


def _region(height: int, width: int, augment: AugmentSpec, random: np.random.Generator) -> Cut:
    """A random region, mirrored or not."""
    short = min(height, width)
    sides = [_side(short, scale) for scale in augment.scales]
    pairs = [(i, j) for i in range(len(sides)) for j in range(len(sides)) if abs(i - j) <= 1]
    i, j = pairs[random.integers(len(pairs))]
    down, right = _CORNERS[random.integers(len(_CORNERS))]
    top, left = (height - sides[i]) * down // 2, (width - sides[j]) * right // 2
    mirrored = augment.flip and random.random() < 0.5
    return Cut(slice(top, top + sides[i]), slice(left, left + sides[j]), mirrored)


def _erased(augment: AugmentSpec, random: np.random.Generator) -> tuple[slice, slice] | None:
    """Rows and columns of the erased rectangle of a view; None if nothing is erased."""
    return _rectangle(augment.crop, random) if augment.erase and random.random() < augment.erase else None


def _rectangle(side: int, random: np.random.Generator) -> tuple[slice, slice]:
    """Rows and columns of a random rectangle in a square. A rectangle that does not fit is drawn again."""
    while True:
        area = random.uniform(*_ERASED) * side**2
        aspect = np.exp(random.uniform(-_LONGEST, _LONGEST))
        height, width = (max(1, round(float(length))) for length in (np.sqrt(area * aspect), np.sqrt(area / aspect)))
        if height <= side and width <= side:
            top, left = random.integers(side - height + 1), random.integers(side - width + 1)
            return slice(top, top + height), slice(left, left + width)


def _side(short: int, scale: float) -> int:
    """A fraction of the short side in pixels."""
    return min(short, max(1, round(short * scale)))


def negated_in_mirror(layout: FeatureLayout) -> slice | None:
    """The channels of a feature whose sign changes when mirrored; None if there are none.

    Raises `ValueError` if the feature does not declare it.
    """
    if layout.mirrored == "unknown":
        raise ValueError("this feature does not say what it becomes in a mirror; the preflight refuses such jobs")
    return _HORIZONTAL if layout.mirrored == "horizontal_motion" else None


def _mirror(frames: Frames, layout: FeatureLayout) -> Frames:
    negated = negated_in_mirror(layout)
    mirrored = np.ascontiguousarray(frames[:, :, ::-1])
    if negated is not None:
        channels = mirrored[..., negated]
        mirrored[..., negated] = negate(channels) if mirrored.dtype == np.uint8 else -channels
    return mirrored
