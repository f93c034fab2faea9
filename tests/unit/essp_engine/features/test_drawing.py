"""Features are drawn as what their layout says they are, with words that say how to read it."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from essp_common.errors import ConfigError
from essp_common.job.feature_layout import COLOURS, DESCRIPTOR, DIFFERENCES, MOTION, FeatureLayout
from essp_engine.features.drawing import drawing
from essp_engine.features.quantization import ZERO

WHITE, RED, BLUE = (255, 255, 255), (178, 24, 43), (33, 102, 172)


def maps(*channels: NDArray[np.float32]) -> NDArray[np.float32]:
    """`(1, H, W, C)`"""
    return np.stack(channels, axis=-1)[None]


RAMP = np.linspace(-1, 1, 101, dtype=np.float32)[None].repeat(8, axis=0)


def test_frames_are_shown_as_they_are() -> None:
    frames = np.random.default_rng(0).integers(0, 256, (2, 8, 9, 6), np.uint8)
    found = drawing(frames, COLOURS)
    assert found.caption == ""
    assert [picture.tolist() for picture in found.pictures] == [
        frames[t, :, :, begin : begin + 3].tolist() for t in (0, 1) for begin in (0, 3)
    ]


@pytest.mark.parametrize("channels", [1, 2, 3, 6])
def test_maps_of_unknown_values_are_a_heat_map_each_and_no_colours(channels: int) -> None:
    found = drawing(maps(*[RAMP] * channels), FeatureLayout())
    assert len(found.pictures) == channels
    for picture in found.pictures:
        assert [tuple(picture[0, x].tolist()) for x in (0, 50, 100)] == [BLUE, WHITE, RED]
    assert found.words == "a heat map of each channel: red above zero, blue below, full at 1"


def test_what_is_no_number_is_grey_and_one_large_number_makes_no_other_pale() -> None:
    values = RAMP.copy()
    values[0, 0], values[0, 1] = np.nan, 1e9
    [picture] = drawing(maps(values), FeatureLayout()).pictures
    assert picture[0, 0].tolist() == [ZERO] * 3
    assert tuple(picture[0, 1].tolist()) == tuple(picture[1, 100].tolist()) == RED


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_motion_is_drawn_on_the_wheel_whatever_the_feature_is_called(kind: type[np.generic]) -> None:
    right, down = np.zeros((4, 4, 2)), np.zeros((4, 4, 2))
    right[..., 0], down[..., 1] = 10, 10
    stack = np.concatenate([right, down], axis=-1)[None]
    found = drawing((stack + (ZERO if kind is np.uint8 else 0)).astype(kind), MOTION)
    assert [tuple(picture[0, 0].tolist()) for picture in found.pictures] == [(255, 0, 0), (128, 255, 0)]
    assert found.caption.startswith("hue: direction (right red, down yellow-green,")
    assert found.words.endswith("speed, full at 0.079 of the bound" if kind is np.uint8 else "speed, full at 10")


def test_differences_of_colours_are_colours_around_grey() -> None:
    codes = np.full((1, 4, 4, 6), ZERO, np.uint8)
    codes[..., 3] += 20
    first, second = drawing(codes, DIFFERENCES).pictures
    assert first[0, 0].tolist() == [ZERO] * 3
    assert second[0, 0].tolist() == [ZERO + 20, ZERO, ZERO]
    assert len(drawing(codes[..., :2], DIFFERENCES).pictures) == 2


def test_descriptors_are_rows_of_a_heat_map_without_facts_and_padding() -> None:
    rows = np.zeros((1, 300, 1, 104), np.float32)
    rows[0, :200, 0, 1] = 7.0  # a fact
    rows[0, :200, 0, 4 + 70] = -0.5
    found = drawing(rows, FeatureLayout(values="descriptor", facts=4))
    [picture] = found.pictures
    assert picture.shape == (200, 100, 3)
    assert tuple(picture[5, 70].tolist()) == BLUE
    assert tuple(picture[5, 69].tolist()) == WHITE
    assert found.caption.startswith("200 descriptors, a row each; its 100 numbers, a column each: ")


def test_of_many_descriptors_some_are_shown_and_few_are_enlarged() -> None:
    many = drawing(np.ones((1, 40, 40, 96), np.float32), DESCRIPTOR)
    assert many.pictures[0].shape == (256, 96, 3)
    assert many.caption.startswith("256 of 1600 descriptors")
    [few] = drawing(np.eye(2, 4, dtype=np.float32), DESCRIPTOR).pictures
    assert few.shape == (64, 64, 3)
    assert [tuple(few[y, x].tolist()) for y, x in ((0, 0), (31, 15), (0, 16), (63, 16))] == [RED, RED, WHITE, RED]


def test_a_single_descriptor_is_bars() -> None:
    found = drawing(np.array([[1.0, 0.5, 0.0, 0.25] * 20], np.float32), DESCRIPTOR)
    [picture] = found.pictures
    heights = (picture != 255).any(axis=2).sum(axis=0)
    assert heights[:4].tolist() == [65, 33, 0, 17]  # the line at zero belongs to each bar
    assert found.words == "bars of the 80 numbers of a descriptor: red above zero, full at 1"
    [signed] = drawing(np.array([[1.0, -1.0] * 40], np.float32), DESCRIPTOR).pictures
    assert tuple(signed[0, 0].tolist()) == RED
    assert tuple(signed[64, 1].tolist()) == BLUE
    assert tuple(signed[64, 0].tolist()) == tuple(signed[0, 1].tolist()) == WHITE


@pytest.mark.parametrize(
    ("array", "layout", "said"),
    [
        (np.zeros((3, 128), np.float32), FeatureLayout(), "cannot be drawn as pictures"),
        (np.zeros((1, 4, 4, 3), np.uint8), MOTION, "an even number"),
        (np.zeros((1, 9, 1, 20), np.float32), FeatureLayout(values="descriptor", facts=2), "no descriptor here"),
    ],
)
def test_what_cannot_be_drawn_says_why(array: NDArray[np.generic], layout: FeatureLayout, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        drawing(array, layout)
