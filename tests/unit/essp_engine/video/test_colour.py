"""YUV becomes the same RGB everywhere: by NumPy, by torch, and within less than a level of the real conversion."""

from __future__ import annotations

import av
import numpy as np
import pytest
import torch
from av.video.reformatter import ColorRange, Colorspace, Interpolation
from numpy.typing import NDArray

from essp_engine.learning import colour as on_device
from essp_engine.video.colour import MATRICES, Colour, grey, height_of, pictures
from tests.lanes import across, often

SPACES = {
    "bt601": Colorspace.ITU601,
    "bt709": Colorspace.ITU709,
    "bt2020": Colorspace.BT2020,
    "fcc": Colorspace.FCC,
    "smpte240m": Colorspace.SMPTE240M,
}
MOST = 0.5 + 0.066 + 0.02
"""Levels: rounding; luma in 1/32 (37 Y + floor(Y / 4) - 594 against 32 * 255 / 219 (Y - 16)); chroma in 1/32, and the
matrix in 1/65536 times at most 128, twice."""
LUMA = np.arange(0, 256, 15, dtype=np.uint8)


EACH = [Colour(*each) for each in across(sorted(MATRICES, key="fcc".__eq__), (False, True))]  # which is almost bt601


@pytest.fixture(params=often(EACH, 4), ids=lambda colour: f"{colour.matrix}-{'full' if colour.full else 'limited'}")
def colour(request: pytest.FixtureRequest) -> Colour:
    assert isinstance(request.param, Colour)
    return request.param


def all_chroma() -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]:
    """Every pair of chroma values with each of `LUMA`: frames `(18, 768, 512)`, and U and V of each square."""
    u, v = np.meshgrid(np.arange(256, dtype=np.uint8), np.arange(256, dtype=np.uint8))
    chroma = np.concatenate([u, v]).reshape(256, 512)
    luma = np.broadcast_to(LUMA[:, None, None], (len(LUMA), 512, 512))
    return np.concatenate([luma, np.broadcast_to(chroma, (len(LUMA), 256, 512))], axis=1), u, v


def real(colour: Colour, y: NDArray[np.float64], u: NDArray[np.float64], v: NDArray[np.float64]) -> NDArray[np.float64]:
    """The conversion of ITU-T H.273 in real numbers, from the definition of luma: `(..., 3)`."""
    red, blue = MATRICES[colour.matrix]
    y, scale = (y, 1.0) if colour.full else ((y - 16) * 255 / 219, 255 / 224)
    r = y + 2 * (1 - red) * scale * (v - 128)
    b = y + 2 * (1 - blue) * scale * (u - 128)
    g = (y - red * r - blue * b) / (1 - red - blue)
    return np.stack(np.broadcast_arrays(r, g, b), axis=-1).clip(0, 255)


def test_the_real_conversion_is_met_within_the_derived_bound(colour: Colour) -> None:
    frames, u, v = all_chroma()
    made = pictures(frames, colour)
    assert made.shape == (len(LUMA), 512, 512, 3)
    assert np.array_equal(made[:, ::2, ::2], made[:, 1::2, 1::2])  # a square has one chroma, and here one luma
    wanted = real(colour, LUMA[:, None, None].astype(float), u.astype(float), v.astype(float))
    assert np.abs(made[:, ::2, ::2] - wanted).max() <= MOST


def test_torch_and_numpy_give_the_same_integers(colour: Colour) -> None:
    frames = all_chroma()[0]
    made = on_device.pictures(torch.from_numpy(frames)[None], [colour])
    assert made.dtype is torch.uint8
    assert np.array_equal(made[0].numpy(), pictures(frames, colour))
    luma = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1)
    levels = on_device.pictures(torch.from_numpy(luma)[None], [colour])[0].numpy()
    assert np.array_equal(levels, pictures(luma, colour))


def test_grey_is_what_neutral_chroma_gives(colour: Colour) -> None:
    luma = np.arange(256, dtype=np.uint8).reshape(1, 16, 16)
    planes = np.concatenate([luma, np.full((1, 8, 16), 128, np.uint8)], axis=1)
    levels = grey(planes, colour)
    assert np.array_equal(levels, grey(luma[..., None], colour))
    assert np.array_equal(np.repeat(levels[..., None], 3, axis=3), pictures(planes, colour))
    assert (levels.reshape(-1)[[16, 235]] == ([16, 235] if colour.full else [0, 255])).all()


def test_libswscale_agrees_to_a_level(colour: Colour) -> None:
    """Frames of one colour each, so that no interpolation of chroma has a say.

    libswscale, told to be accurate, rounds the real conversion, too. So both are within `MOST` of it, and differ by
    less than two levels, which in whole numbers is one. Its own sums wrap for colours far outside of RGB, so there are
    none here.
    """
    random = np.random.default_rng(0)
    for y, u, v in random.integers(60, 196, (100, 3)):
        planes = np.concatenate([np.full(256, y), np.full(64, u), np.full(64, v)]).astype(np.uint8).reshape(24, 16)
        frame = av.VideoFrame.from_ndarray(planes, format="yuv420p")
        theirs = frame.reformat(
            format="rgb24",
            src_colorspace=SPACES[colour.matrix],
            src_color_range=ColorRange.JPEG if colour.full else ColorRange.MPEG,
            dst_color_range=ColorRange.JPEG,
            interpolation=Interpolation.BILINEAR | Interpolation.FULL_CHR_H_INT | Interpolation.ACCURATE_RND,
        ).to_ndarray()
        ours = pictures(planes[None], colour)[0]
        assert np.abs(ours.astype(int) - theirs).max() <= 1, (y, u, v)


@pytest.mark.parametrize("at_once", [1, 500, 2**22])
def test_clips_of_a_batch_may_have_different_colours(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    """However many are converted at once."""
    monkeypatch.setattr(on_device, "_MOST_PIXELS", at_once)
    frames = np.random.default_rng(1).integers(0, 256, (6, 2, 12, 10), dtype=np.uint8)
    colours = [Colour(), Colour(), Colour(), Colour("bt709", full=True), Colour(), Colour()]
    made = on_device.pictures(torch.from_numpy(frames), colours)
    assert made.shape == (6, 2, 8, 10, 3)
    for clip, own, wanted in zip(made, colours, frames, strict=True):
        assert np.array_equal(clip.numpy(), pictures(wanted, own))
    with pytest.raises(ValueError, match="2 colours for 6 clips"):
        on_device.pictures(torch.from_numpy(frames), colours[:2])


def test_frames_without_a_colour_stay_as_they_are() -> None:
    frames = np.zeros((2, 4, 4, 3), np.uint8)
    assert pictures(frames, None) is frames
    assert height_of((7, 6, 9)) == 4
