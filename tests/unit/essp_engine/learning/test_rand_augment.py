"""RandAugment against Pillow, whose operations the paper's authors used, and erasing against its definition."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageOps

from essp_common.job.feature_layout import COLOURS, MOTION
from essp_common.job.trainer_spec import AugmentSpec, RandAugmentSpec
from essp_engine.learning import rand_augment
from essp_engine.learning.augment import training_view
from essp_engine.learning.rand_augment import rand_augmented
from essp_engine.video.synthetic import texture

Operation = Callable[[Image.Image], Image.Image]
HALF = 0.5


def moved(*matrix: float) -> Operation:
    """`(a, b, c, d, e, f)`: the pixel at (x, y) comes from (ax + by + c, dx + ey + f)."""
    return lambda p: p.transform(p.size, Image.Transform.AFFINE, matrix, fillcolor=(128,) * 3)


OF_PILLOW: dict[str, Operation] = {
    "identity": lambda picture: picture,
    "brightness": lambda picture: ImageEnhance.Brightness(picture).enhance(1.45),
    "colour": lambda picture: ImageEnhance.Color(picture).enhance(1.45),
    "contrast": lambda picture: ImageEnhance.Contrast(picture).enhance(1.45),
    "sharpness": lambda picture: ImageEnhance.Sharpness(picture).enhance(1.45),
    "posterize": lambda picture: ImageOps.posterize(picture, 6),
    "solarize": lambda picture: ImageOps.solarize(picture, 128),
    "autocontrast": ImageOps.autocontrast,
    "equalize": ImageOps.equalize,
    "shear_x": moved(1, 0.15, -0.15 * 20, 0, 1, 0),  # the row in the middle stays
    "shear_y": moved(1, 0, 0, 0.15, 1, -0.15 * 20),
    "translate_x": moved(1, 0, -9, 0, 1, 0),
    "translate_y": moved(1, 0, 0, 0, 1, -9),
    "rotate": lambda picture: picture.rotate(-15, fillcolor=(128,) * 3),
}
"""What half of the strongest is in Pillow's words, of pictures of 40 pixels."""


def photographs(count: int = 2, side: int = 40) -> NDArray[np.uint8]:
    return np.stack([texture(side, side, seed) // 2 + 30 for seed in range(count)])


@pytest.mark.parametrize("name", OF_PILLOW)
def test_an_operation_is_that_of_pillow(name: str) -> None:
    frames = photographs()
    pictures = torch.from_numpy(frames).permute(0, 3, 1, 2)
    found = rand_augment._OPERATIONS[name](pictures, HALF, 1.0).permute(0, 2, 3, 1).numpy()
    expected = np.stack([np.asarray(OF_PILLOW[name](Image.fromarray(frame))) for frame in frames])
    off = np.abs(found.astype(int) - expected.astype(int)).max(axis=-1)
    # Both round, of sums of a few numbers; turned pixels may come from the neighbour at a border between two.
    assert np.quantile(off, 0.97) <= 2


def test_all_operations_are_compared() -> None:
    assert set(OF_PILLOW) == set(rand_augment._OPERATIONS)


def clips(augment: AugmentSpec, count: int, frames: NDArray[Any], layout: Any = COLOURS) -> list[NDArray[Any]]:
    return [training_view(frames, augment, layout, 5, 0, index) for index in range(count)]


def test_a_clip_is_augmented_by_its_identity_and_its_frames_alike() -> None:
    still = np.repeat(photographs(1), 3, axis=0)
    augment = AugmentSpec(crop=32, erase=0.5, rand_augment=RandAugmentSpec(operations=2, magnitude=15))
    views = clips(augment, 40, still)
    assert all(np.array_equal(one, other) for one, other in zip(views, clips(augment, 40, still), strict=True))
    assert all(np.array_equal(view[0], view[1]) and np.array_equal(view[0], view[2]) for view in views)
    assert len({view.tobytes() for view in views}) == 40


def test_what_is_off_draws_nothing() -> None:
    """A job that does not ask for them sees the views that it saw before there were any."""
    frames = photographs()
    same = AugmentSpec(crop=32, rand_augment=RandAugmentSpec(operations=1, magnitude=0))
    plain, augmented = clips(AugmentSpec(crop=32), 60, frames), clips(same, 60, frames)
    equal = sum(np.array_equal(one, other) for one, other in zip(plain, augmented, strict=True))
    assert equal >= 30, "at no strength all operations but two or three are none"


def test_photographs_in_a_row_along_the_channels_are_augmented_as_each_alone() -> None:
    frames = photographs(4)
    stacked = frames.reshape(2, 2, 40, 40, 3).transpose(0, 2, 3, 1, 4).reshape(2, 40, 40, 6)
    spec = RandAugmentSpec(operations=3, magnitude=20)
    one = rand_augmented(frames, spec, np.random.default_rng(8))
    other = rand_augmented(stacked, spec, np.random.default_rng(8))
    np.testing.assert_array_equal(other.reshape(2, 40, 40, 2, 3).transpose(0, 3, 1, 2, 4).reshape(4, 40, 40, 3), one)


@pytest.mark.parametrize(("layout", "nothing", "kind"), [(COLOURS, 128, np.uint8), (MOTION, 0, np.float32)])
def test_a_rectangle_is_erased_as_often_and_as_large_as_it_is_said(layout: Any, nothing: int, kind: Any) -> None:
    frames = np.full((2, 32, 32, 6), 200, kind)
    views = clips(AugmentSpec(crop=32, scales=(1.0,), erase=0.4, flip=False), 1000, frames, layout)
    erased = [view for view in views if (view != 200).any()]
    assert 340 <= len(erased) <= 460, "four deviations of a draw of 1,000"
    shares = []
    for view in erased:
        assert set(np.unique(view).tolist()) == {nothing, 200}
        gone = view[0, :, :, 0] == nothing
        assert all((view[frame, :, :, c] == nothing).tolist() == gone.tolist() for frame in range(2) for c in range(6))
        for axis in (0, 1):
            assert [seen for seen, _ in groupby(gone.any(axis=axis).tolist())].count(True) == 1, "one rectangle"
        assert gone.sum() == gone.any(axis=0).sum() * gone.any(axis=1).sum()
        shares.append(gone.mean())
    assert 0.01 < min(shares) < 0.04
    assert 0.29 < max(shares) < 0.36
