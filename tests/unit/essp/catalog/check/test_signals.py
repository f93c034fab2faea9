"""What counts as a cut, as black, as frozen, and as the same picture."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from essp.catalog.check.signals import HASHED, SIDE, Samples, cuts, frozen, hashes, is_black, stretches
from tests.harness.photographs import photograph


def scene(count: int, seed: int, speed: int = 1) -> NDArray[np.uint8]:
    """(count, SIDE, SIDE): a picture that moves."""
    picture = photograph(4 * SIDE, 4 * SIDE, seed)[..., 0]
    moved = np.stack([np.roll(picture, number * speed, axis=1) for number in range(count)])
    cells: NDArray[np.uint8] = moved.reshape(count, SIDE, 4, SIDE, 4).mean(axis=(2, 4)).astype(np.uint8)
    return cells


def changes(pictures: NDArray[np.uint8]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    levels = pictures.astype(np.float64)
    step, leap = np.zeros(len(levels)), np.zeros(len(levels))
    step[1:] = np.abs(levels[1:] - levels[:-1]).mean(axis=(1, 2))
    leap[2:] = np.abs(levels[2:] - levels[:-2]).mean(axis=(1, 2))
    return step, leap


def test_a_cut_is_found_where_it_is() -> None:
    pictures = np.concatenate([scene(20, seed=1), scene(15, seed=2), scene(10, seed=3)])
    assert cuts(*changes(pictures)) == [20, 35]


def test_a_cut_beside_the_end_is_found() -> None:
    assert cuts(*changes(np.concatenate([scene(20, seed=1), scene(1, seed=2)]))) == [20]
    assert cuts(*changes(np.concatenate([scene(1, seed=1), scene(20, seed=2)]))) == [1]


def test_a_flash_is_no_cut() -> None:
    pictures = scene(30, seed=1)
    pictures[12] = 255
    assert cuts(*changes(pictures)) == []


def test_fast_motion_is_no_cut() -> None:
    pictures = scene(30, seed=1, speed=9)
    step, leap = changes(pictures)
    assert step.max() > 15, "as large as a cut"
    assert cuts(step, leap) == []


def test_black_is_what_is_nearly_all_dark() -> None:
    picture = np.full((SIDE, SIDE), 16, np.uint8)
    assert is_black(picture)
    picture[:4, :4] = 200
    assert is_black(picture), "a logo"
    picture[:4] = 200
    assert not is_black(picture)


def test_stretches_are_runs_of_enough_frames() -> None:
    flags = np.array([1, 1, 0, 1, 1, 1, 0, 0, 1], bool)
    assert stretches(flags, 3) == [(3, 5)]
    assert stretches(flags, 1) == [(0, 1), (3, 5), (8, 8)]
    assert stretches(np.zeros(0, bool), 1) == []


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 5))
def test_stretches_are_flagged_throughout_and_as_long_as_can_be(flags: list[bool], least: int) -> None:
    found = stretches(np.array(flags, bool), least)
    for first, last in found:
        assert all(flags[first : last + 1])
        assert last - first + 1 >= least
        assert first == 0 or not flags[first - 1]
        assert last == len(flags) - 1 or not flags[last + 1]
    inside = {frame for first, last in found for frame in range(first, last + 1)}
    runs = "".join("x" if flag else " " for flag in flags).split()
    assert len(inside) == sum(len(run) for run in runs if len(run) >= least)


def frozen_of(peak: list[int], least: int, share: float = 0.1) -> list[tuple[int, int]]:
    """Of changes whose mean is such a share of their peak."""
    return frozen(np.array(peak) * share, np.array(peak), least)


def test_a_frozen_stretch_begins_with_the_frame_that_is_repeated() -> None:
    peak = [255, 80, 80, 0, 1, 0, 0, 80, 0, 80]
    assert frozen_of(peak, 5) == [(2, 6)]
    assert frozen_of(peak, 6) == []


def test_a_keyframe_amid_frozen_frames_does_not_end_them() -> None:
    assert frozen_of([255, 0, 0, 0, 0, 20, 15, 0, 0, 0, 0], 11) == [(0, 10)]
    assert frozen_of([255, 0, 0, 0, 0, 80, 0, 0, 0, 0], 6) == [], "another picture"
    assert frozen_of([255, 0, 0, 0, 0, 20, 20, 20, 0, 0, 0, 0], 6) == [], "a movement"
    assert frozen_of([255, *[0, 20] * 10], 4) == [], "each frame shown twice"


def apart(one: list[int], other: list[int]) -> float:
    return float(np.mean([(a ^ b).bit_count() for a, b in zip(one, other, strict=True)]))


def test_hashes_survive_noise_and_brightness_and_tell_scenes_apart() -> None:
    rng = np.random.default_rng(5)
    pictures = scene(40, seed=1)
    noisy = (pictures * 0.9 + 10 + rng.normal(0, 2, pictures.shape)).clip(0, 255).astype(np.uint8)
    for one, other, unlike in zip(hashes(pictures), hashes(noisy), hashes(scene(40, seed=2)), strict=True):
        assert len(one) == HASHED
        assert apart(one, other) < 6 < 20 < apart(one, unlike)


def test_flat_pictures_have_no_hash_and_still_ones_no_motion() -> None:
    assert hashes(np.full((20, SIDE, SIDE), 90, np.uint8)) == ([], [])
    shown, moved = hashes(scene(20, seed=1, speed=0))
    assert len(shown) == HASHED
    assert moved == []
    assert hashes(np.zeros((0, SIDE, SIDE), np.uint8)) == ([], [])


@given(st.integers(1, 400), st.integers(2, 32))
def test_samples_are_few_and_at_even_distances(frames: int, most: int) -> None:
    samples: Samples[int] = Samples(most)
    for frame in range(frames):
        if samples.due(frame):
            samples.keep(frame, frame)
    kept = samples.all
    assert min(frames, most // 2) <= len(kept) <= most
    assert len(set(np.diff(kept).tolist())) <= 1
    spread = samples.spread(3, frames)
    assert 1 <= len(spread) <= 3
    assert spread == sorted(set(spread))


def test_a_spread_is_over_the_whole_video() -> None:
    samples: Samples[int] = Samples(16)
    for frame in range(100):
        if samples.due(frame):
            samples.keep(frame, frame)
    assert samples.spread(4, 100) == pytest.approx([12.5, 37.5, 62.5, 87.5], abs=4)
