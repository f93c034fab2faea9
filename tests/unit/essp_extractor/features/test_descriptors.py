"""HOG, HOF and MBH against scikit-image, against plain loops, and on motions whose histograms are known."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from skimage.feature import hog as scikit_hog

from essp_common.errors import ConfigError
from essp_engine.features import registry
from essp_engine.features.intermediates import Intermediates
from essp_extractor.motion.fields import FlowFields, FlowMethod
from essp_extractor.motion.orientation import cell_sums, flow_planes, gradient_planes
from tests.harness.scenes import STILL, Clip, moving, places, ready, rotation, texture
from tests.lanes import often

SMALL: dict[str, Any] = {"side": 12, "stride": 8, "length": 4, "cells": 2, "time_cells": 2}
RIGHT, DOWN, LEFT, UP = 0, 2, 4, 6
"""Bins of eight."""

Vectors = NDArray[np.float64]


def reference(
    vectors_of: Callable[[int], Vectors], size: tuple[int, int], first: int, bins: int, still_px: float | None = None
) -> NDArray[np.float64]:
    """The descriptors of the grid `SMALL` pixel by pixel, `(rows, columns, dimensions)`."""
    side, stride, cells, cell = SMALL["side"], SMALL["stride"], SMALL["cells"], SMALL["side"] // SMALL["cells"]
    steps = SMALL["length"] // SMALL["time_cells"]
    tops, lefts = (
        [(extent - side) % stride // 2 + n * stride for n in range((extent - side) // stride + 1)] for extent in size
    )
    width = bins + (still_px is not None)
    volumes = np.zeros((len(tops), len(lefts), SMALL["time_cells"], cells, cells, width))
    for step in range(SMALL["length"]):
        vectors = vectors_of(first + step)
        for row, top in enumerate(tops):
            for column, left in enumerate(lefts):
                for y in range(side):
                    for x in range(side):
                        into = volumes[row, column, step // steps, y // cell, x // cell]
                        dx, dy = vectors[top + y, left + x]
                        length = math.hypot(dx, dy)
                        if still_px is not None and length <= still_px:
                            into[bins] += 1
                            continue
                        angle = math.atan2(dy, dx) % (2 * math.pi) * bins / (2 * math.pi)
                        below = math.floor(angle)
                        into[below % bins] += length * (1 - (angle - below))
                        into[(below + 1) % bins] += length * (angle - below)
    flat = volumes.reshape(len(tops), len(lefts), -1)
    unit: NDArray[np.float64] = flat / np.maximum(np.linalg.norm(flat, axis=-1, keepdims=True), 1e-9)
    return unit


def slopes(picture: NDArray[Any]) -> Vectors:
    """Central differences, none across the border: `(H, W, 2)`."""
    values = picture.astype(np.float64)
    vectors = np.zeros((*values.shape, 2))
    vectors[:, 1:-1, 0] = values[:, 2:] - values[:, :-2]
    vectors[1:-1, :, 1] = values[2:] - values[:-2]
    return vectors


def shared_flow(clip: Clip) -> Callable[[int], NDArray[np.float32]]:
    fields, shared = FlowFields(FlowMethod("test")), Intermediates(clip)
    return lambda frame: fields.between(shared, frame, frame + 1)


def test_hog_is_what_plain_loops_give() -> None:
    clip = moving(rotation(3), (1, 0), 7, size=(29, 38))
    greys = [cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY) for frame in clip]
    expected = reference(lambda i: slopes(greys[i]), (29, 38), first=1, bins=8)
    found = ready("hog", **SMALL).extract(clip)
    assert found.shape == (1, 3, 4, 2 * 2 * 2 * 8)
    assert np.abs(found[0] - expected).max() < 0.01


def test_hof_is_what_plain_loops_give() -> None:
    clip = moving(rotation(2), (1, 0), 6, size=(29, 38))
    flow = shared_flow(clip)
    expected = reference(lambda i: flow(i).astype(np.float64), (29, 38), first=0, bins=6, still_px=0.7)
    found = ready("hof", bins=6, still_px=0.7, **SMALL).extract(clip)
    assert found.shape == (1, 3, 4, 2 * 2 * 2 * 7)
    assert np.abs(found[0] - expected).max() < 0.01


def test_mbh_is_what_plain_loops_give() -> None:
    clip = moving(rotation(2), (1, 0), 5, size=(29, 38))
    flow = shared_flow(clip)

    def slopes_of(component: int, frame: int) -> Vectors:
        return slopes(flow(frame)[..., component])

    found = ready("mbh", **SMALL).extract(clip)
    assert found.shape == (1, 3, 4, 2 * 2 * 2 * 2 * 8)
    for component, half in enumerate(np.split(found[0], 2, axis=-1)):
        expected = reference(partial(slopes_of, component), (29, 38), first=0, bins=8)
        assert np.abs(half - expected).max() < 0.01


def test_cells_of_gradients_are_those_of_scikit_image() -> None:
    """It has half the circle in hard bins, here so fine that they can be dealt to ours, folded, by nearness."""
    fine, side = 180, 16
    grey = np.asarray(cv2.cvtColor(texture(places(96, 128), seed=3), cv2.COLOR_RGB2GRAY), np.uint8)
    cells = scikit_hog(
        grey.astype(np.float64), fine, (side, side), (1, 1), block_norm="L1", feature_vector=False
    ).reshape(6, 8, fine)
    away = np.abs((np.arange(fine) + 0.5)[:, None] / 45 - np.arange(4)[None, :])
    theirs = cells @ np.maximum(1 - np.minimum(away, 4 - away), 0)
    sums = cell_sums(cv2, gradient_planes(cv2, grey, 8), side)[::side, ::side]
    ours = sums[..., :4] + sums[..., 4:]
    shares = ours / ours.sum(axis=-1, keepdims=True)
    assert np.abs(shares - theirs / theirs.sum(axis=-1, keepdims=True)).max() < 0.01
    lengths = np.linalg.norm(slopes(grey), axis=-1).reshape(6, side, 8, side).sum(axis=(1, 3))
    assert np.allclose(ours.sum(axis=-1), lengths, rtol=1e-3)


def test_directions_are_shared_between_the_nearest_bins() -> None:
    vectors = np.array([[(2, 0), (0, 3), (-1, 0), (0, -1)], [(1, 1), (-2, 2), (0.3, 0), (0, 0)]], np.float32)
    planes = flow_planes(cv2, vectors, 8, still_px=0.4)
    bins = [(0, 0, RIGHT), (0, 1, DOWN), (0, 2, LEFT), (0, 3, UP), (1, 0, 1), (1, 1, 3)]
    for row, column, direction in bins:
        length = float(np.linalg.norm(vectors[row, column]))
        assert planes[direction, row, column] == pytest.approx(length, rel=0.01)
        assert planes[:, row, column].sum() == pytest.approx(length, rel=0.001)
    assert planes[:, 1, 2:].sum() == planes[8, 1, 2:].sum() == 2
    between = np.array([[(math.cos(math.pi / 8), math.sin(math.pi / 8))]], np.float32)
    assert flow_planes(cv2, between, 8, 0.4)[:2, 0, 0] == pytest.approx([0.5, 0.5], abs=0.01)


@pytest.mark.parametrize(
    ("shift", "direction"),
    often([((0, -1.5), UP), ((2, 2), 1), ((0, 0), 8), ((2.5, 0), RIGHT), ((0, 2), DOWN), ((-2, 0), LEFT)], 3),
)
def test_hof_of_a_translation_is_in_its_bin(shift: tuple[float, float], direction: int) -> None:
    found = ready("hof", preset="medium").extract(moving(STILL, shift, 16))
    energy = (found.reshape(-1, 3, 2, 2, 9) ** 2).sum(axis=(1, 2, 3))
    assert np.all(energy[:, direction] > 0.9)


@pytest.mark.parametrize(
    ("step", "of_dx", "of_dy"), [(rotation(3), UP, RIGHT), (STILL * 1.04, RIGHT, DOWN), (STILL * 0.96, LEFT, UP)]
)
def test_mbh_of_a_turn_or_zoom_is_the_slope_of_its_flow(step: NDArray[np.float64], of_dx: int, of_dy: int) -> None:
    found = ready("mbh", method="tvl1", length=3).extract(moving(step, (0, 0), 4))
    halves = found.reshape(5, 7, 2, 3, 2, 2, 8)[1:-1, 1:-1]
    energy = (halves**2).sum(axis=(3, 4, 5))
    assert energy[:, :, 0, of_dx].mean() > 0.7
    assert energy[:, :, 1, of_dy].mean() > 0.7


def test_mbh_is_weak_where_all_moves_alike() -> None:
    """Descriptors have length 1 whatever is in them, so this looks before that."""
    even, turn = (shared_flow(moving(step, (2, 1), 2))(0) for step in (STILL, rotation(3)))
    sums = [sum(np.abs(gradient_planes(cv2, flow[..., c].copy(), 8)).sum() for c in (0, 1)) for flow in (even, turn)]
    assert sums[0] < 0.2 * sums[1]


def test_nothing_has_no_gradients_and_no_boundaries_and_is_still() -> None:
    clip = np.full((16, 48, 48, 3), 77, np.uint8)
    assert not ready("hog").extract(clip).any()
    assert not ready("mbh").extract(clip).any()
    still = ready("hof").extract(clip).reshape(-1, 9)
    assert not still[:, :8].any()
    assert np.allclose((still[:, 8].reshape(-1, 12) ** 2).sum(axis=1), 1)


@pytest.mark.parametrize("name", ["hog", "hof", "mbh"])
def test_descriptors_have_length_one(name: str) -> None:
    found = ready(name).extract(moving(rotation(2), (1, 0), 16))
    halves = found.reshape(-1, found.shape[-1] // (2 if name == "mbh" else 1))
    assert np.allclose(np.linalg.norm(halves, axis=-1), 1, atol=1e-4)


def test_hog_turns_with_the_picture() -> None:
    clip = moving(STILL, (0, 0), 15, size=(80, 80))
    upright = ready("hog").extract(clip).reshape(4, 4, 3, 2, 2, 8)
    turned = ready("hog").extract(np.rot90(clip, k=-1, axes=(1, 2))).reshape(4, 4, 3, 2, 2, 8)  # clockwise
    expected = np.rot90(np.rot90(upright, k=-1, axes=(0, 1)), k=-1, axes=(3, 4))
    assert np.abs(turned - np.roll(expected, 2, axis=-1)).max() < 0.01


def test_time_cells_hold_the_frames_of_their_time() -> None:
    clip = np.full((15, 48, 48, 3), 128, np.uint8)
    clip[5:10] = moving(STILL, (0, 0), 1, size=(48, 48))
    found = ready("hog").extract(clip).reshape(2, 2, 3, -1)
    assert not found[:, :, [0, 2]].any()
    assert np.allclose(np.linalg.norm(found[:, :, 1], axis=-1), 1, atol=1e-4)


def test_volumes_hold_the_pixels_of_their_place() -> None:
    clip = np.zeros((15, 70, 102, 3), np.uint8)  # 3 pixels beside the grid above, 3 below, left and right
    clip[:, 38, 58] = 200  # 35, 55 from the grid's corner
    found = ready("hog").extract(clip)[0]
    assert found.shape[:2] == (3, 5)
    rows, columns = np.nonzero(np.abs(found).sum(axis=-1))
    assert sorted(zip(rows.tolist(), columns.tolist(), strict=True)) == [(1, 2), (1, 3), (2, 2), (2, 3)]


def test_small_picture_has_one_volume_with_empty_cells_outside() -> None:
    found = ready("hog").extract(moving(STILL, (0, 0), 15, size=(40, 14))).reshape(1, 1, 3, 2, 2, 8)
    assert found[..., 0, :].any()
    assert found[..., 1, :].sum() == 0


@pytest.mark.parametrize("name", ["hog", "hof", "mbh", "trajectories", "improved_trajectories"])
@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"side": 33}, "side 33 does not divide into 2 cells"),
        ({"length": 16}, "length 16 does not divide into 3 time_cells"),
        ({"bins": 1}, "bins: must be 2 or more"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(name: str, params: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        registry.create(name, params)


def test_hog_reads_the_middle_of_a_long_clip() -> None:
    clip = moving(rotation(2), (1, 0), 9)
    hog, hof = ready("hog", length=3), ready("hof", length=3)
    assert np.array_equal(hog.extract(clip), hog.extract(clip[3:6]))
    assert np.array_equal(hof.extract(clip), hof.extract(clip[2:6]))
