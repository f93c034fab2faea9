"""Motion vectors as a feature: they are read with the frames, and look like flow."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from essp_engine.features import registry
from essp_engine.features.intermediates import Intermediates, extract_with
from essp_engine.features.port import ArraySpec
from essp_engine.features.quantization import ZERO
from essp_engine.video.motion_layout import UNIT, motion_shape
from tests.harness.refused import refused

FRAMES, HEIGHT, WIDTH = 6, 64, 96
DX, DY = 4, -2


def shared(dx: float = DX, dy: float = DY) -> Intermediates:
    """A clip of which everything moves alike."""
    motion = np.zeros((FRAMES, *motion_shape(HEIGHT, WIDTH)), np.int16)
    motion[...] = np.array([dx, dy]) * UNIT
    return Intermediates(np.zeros((FRAMES, HEIGHT, WIDTH, 3), np.uint8), motion=motion)


def stack(clip: Intermediates, **params: object) -> NDArray[np.uint8]:
    extractor = registry.create("motion_vectors", {"length": 5, **params})
    extractor.setup()
    made: NDArray[np.uint8] = extract_with(extractor, clip)
    spec = extractor.output(ArraySpec((FRAMES, HEIGHT, WIDTH, 3), "uint8"))
    assert (made.shape, str(made.dtype)) == (spec.shape, spec.dtype)
    return made


def test_the_stack_has_the_coding_of_flow() -> None:
    made = stack(shared())
    step = 0.08 * HEIGHT / 127
    assert made.shape == (1, HEIGHT, WIDTH, 10)
    assert set(made[..., ::2].ravel().tolist()) == {ZERO + round(DX / step)}
    assert set(made[..., 1::2].ravel().tolist()) == {ZERO + round(DY / step)}


def test_cells_are_not_enlarged() -> None:
    assert stack(shared(), picture=False).shape == (1, 8, 12, 10)


def test_reduced_frames_move_by_reduced_pixels_and_over_more_frames() -> None:
    """Half the size, every second frame."""
    made = stack(shared(2, -1), length=2, every=2, short_side=32)
    step = 0.08 * 32 / 127
    assert made.shape == (1, 32, 48, 4)
    assert set(made[..., 0].ravel().tolist()) == {ZERO + round(2 / step)}


def test_the_motion_is_that_up_to_each_frame_but_the_first() -> None:
    clip = shared()
    assert clip.motion is not None
    clip.motion[:] = np.arange(FRAMES).reshape(-1, 1, 1, 1)
    made = stack(clip, bound=0.01, picture=False)
    assert np.all(np.diff(made[0, 0, 0, ::2].astype(int)) > 0)


def test_frames_alone_have_no_motion_vectors() -> None:
    extractor = registry.create("motion_vectors", {})
    with refused("feature", "unsupported"):
        extractor.extract(np.zeros((11, 64, 64, 3), np.uint8))
