"""What the model sees of a clip depends on the clip's identity, and motion stays motion."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from essp_common.job.feature_layout import COLOURS, MOTION, FeatureLayout
from essp_common.job.trainer_spec import AugmentSpec
from essp_engine.features.quantization import ZERO, quantize
from essp_engine.learning.augment import Evaluated, evaluation_view, resized, training_view
from tests.harness.quantization import dequantize

RGB, FLOW = COLOURS, MOTION


def noise(*shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(1, 256, shape, dtype=np.uint8)


def gradient(height: int, width: int) -> NDArray[np.uint8]:
    """Its two channels tell where a pixel came from."""
    rows, columns = np.mgrid[0:height, 0:width]
    return np.stack([rows, columns], axis=-1).astype(np.uint8)[None]


@given(
    height=st.integers(8, 90),
    width=st.integers(8, 90),
    channels=st.sampled_from([1, 3, 20]),
    crop=st.integers(8, 64),
    index=st.integers(0, 10**6),
)
def test_every_view_has_the_shape_of_the_crop(height: int, width: int, channels: int, crop: int, index: int) -> None:
    clip = noise(2, height, width, channels)
    before = clip.copy()
    clip.flags.writeable = False
    for view in (
        training_view(clip, AugmentSpec(crop=crop), RGB, 1, 0, index),
        evaluation_view(clip, Evaluated(crop, 0.875, 1), RGB),
    ):
        assert view.shape == (2, crop, crop, channels)
        assert view.dtype == np.uint8
        assert view.flags.writeable
    assert np.array_equal(clip, before)


def test_the_same_clip_is_seen_the_same_way_from_any_thread_in_any_order() -> None:
    clip = noise(1, 40, 50, 3)
    spec = AugmentSpec(crop=32)
    expected = {index: training_view(clip, spec, RGB, 7, 3, index) for index in range(20)}
    found: dict[int, NDArray[Any]] = {}

    def work(indices: range) -> None:
        for index in indices:
            found[index] = training_view(clip, spec, RGB, 7, 3, index)

    threads = [threading.Thread(target=work, args=(range(19 - start, -1, -4),)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[index], expected[index]) for index in expected)


@pytest.mark.parametrize("other", [(8, 3, 5), (7, 4, 5), (7, 3, 6)])
def test_each_part_of_the_identity_counts(other: tuple[object, ...]) -> None:
    clip, spec = noise(1, 200, 200, 1), AugmentSpec(crop=32)
    views = [
        {training_view(clip, spec, RGB, *identity, n).tobytes() for n in range(4)} for identity in ((7, 3, 5), other)
    ]
    assert views[0] != views[1]


def test_corners_and_centre_are_all_shown() -> None:
    clip = gradient(64, 96)
    spec = AugmentSpec(crop=32, scales=(0.5,), flip=False)
    starts = {tuple(int(v) for v in training_view(clip, spec, RGB, 0, 0, index)[0, 0, 0]) for index in range(200)}
    assert starts == {(0, 0), (0, 64), (32, 0), (32, 64), (16, 32)}


def test_sides_come_from_neighbouring_scales() -> None:
    clip = gradient(100, 100)
    spec = AugmentSpec(crop=25, scales=(1.0, 0.5, 0.25), flip=False)
    sizes = set()
    for index in range(300):
        view = training_view(clip, spec, RGB, 0, 0, index).astype(int)
        sizes.add(
            (round((view[0, -1, 0, 0] - view[0, 0, 0, 0]) / 25), round((view[0, 0, -1, 1] - view[0, 0, 0, 1]) / 25))
        )
    assert sizes == {(a, b) for a in (1, 2, 4) for b in (1, 2, 4) if {a, b} != {1, 4}}


def test_half_of_the_clips_are_mirrored() -> None:
    clip = gradient(32, 32)
    spec = AugmentSpec(crop=32, scales=(1.0,))
    views = [training_view(clip, spec, RGB, 0, 0, index) for index in range(400)]
    mirrored = sum(bool(view[0, 0, 0, 1] == 31) for view in views)
    assert 160 <= mirrored <= 240
    assert all(np.array_equal(view, clip) or np.array_equal(view, clip[:, :, ::-1]) for view in views)
    still = AugmentSpec(crop=32, scales=(1.0,), flip=False)
    assert all(np.array_equal(training_view(clip, still, RGB, 0, 0, index), clip) for index in range(50))


@given(dx=st.floats(-20, 20), dy=st.floats(-20, 20))
def test_mirrored_flow_moves_the_other_way(dx: float, dy: float) -> None:
    displacement = np.tile(np.array([dx, dy], np.float32), (1, 8, 8, 3))
    clip = quantize(displacement, 20.0)
    spec = AugmentSpec(crop=8, scales=(1.0,))
    views = [training_view(clip, spec, FLOW, 0, 0, index) for index in range(40)]
    mirrored = [view for view in views if not np.array_equal(view, clip)] or views
    moved = dequantize(mirrored[0], 20.0)
    before = dequantize(clip, 20.0)
    assert np.array_equal(moved[..., 0::2], -before[..., 0::2]) or np.all(clip[..., 0::2] == ZERO)
    assert np.array_equal(moved[..., 1::2], before[..., 1::2])


@given(
    height=st.integers(16, 90),
    width=st.integers(16, 90),
    crop=st.integers(8, 64),
    scale=st.sampled_from([1.0, 0.875, 0.75, 0.66, 0.3]),
)
def test_evaluation_shows_things_as_large_as_training_did(height: int, width: int, crop: int, scale: float) -> None:
    """For any size of frames: the views of evaluation are those that training has at the same scale."""
    clip = noise(2, height, width, 3)
    spec = AugmentSpec(crop=crop, scales=(scale,), flip=False)
    trained = {training_view(clip, spec, RGB, 0, 0, index).tobytes() for index in range(60)}
    assert evaluation_view(clip, Evaluated(crop, scale, 1), RGB).tobytes() in trained
    ten = evaluation_view(clip, Evaluated(crop, scale, 10), RGB).reshape(10, 2, crop, crop, 3)
    assert {view.tobytes() for view in ten[:5]} == trained


@pytest.mark.parametrize("side", [32, 64, 256])
def test_the_scale_of_evaluation_does_not_depend_on_the_size_of_the_frames(side: int) -> None:
    """A line that takes a quarter of the frame takes a quarter, divided by the scale, of what the model sees."""
    clip = np.zeros((1, side, side, 3), np.uint8)
    clip[:, :, side // 2 - side // 8 : side // 2 + side // 8] = 255
    view = evaluation_view(clip, Evaluated(56, 0.875, 1), RGB)
    assert abs(float(view.mean()) / 255 - 0.25 / 0.875) < 1 / 56


def test_evaluation_shows_the_centre() -> None:
    view = evaluation_view(gradient(50, 70), Evaluated(20, 0.4, 1), RGB)
    assert tuple(view[0, 0, 0]) == (15, 25)
    assert tuple(view[0, -1, -1]) == (34, 44)


@pytest.mark.parametrize(
    ("shape", "corners"), [((50, 70), [(15, 0), (15, 25), (15, 50)]), ((70, 50), [(0, 15), (25, 15), (50, 15)])]
)
def test_three_views_lie_along_the_long_side(shape: tuple[int, int], corners: list[tuple[int, int]]) -> None:
    clip = np.concatenate([gradient(*shape)] * 2)
    views = evaluation_view(clip, Evaluated(20, 0.4, 3), RGB)
    assert views.shape == (6, 20, 20, 2)
    assert [tuple(view[0, 0]) for view in views[::2]] == corners
    assert np.array_equal(views[::2], views[1::2]), "frame after frame, view after view"


def test_ten_views_are_corners_and_centre_and_their_mirror_images() -> None:
    views = evaluation_view(gradient(50, 70), Evaluated(20, 0.4, 10), RGB)
    assert [tuple(view[0, 0]) for view in views[:5]] == [(0, 0), (0, 50), (30, 0), (30, 50), (15, 25)]
    assert np.array_equal(views[5:], views[:5, :, ::-1])
    flow = np.full((1, 40, 40, 2), 130, np.uint8)
    mirrored = evaluation_view(flow, Evaluated(20, 0.5, 10), FLOW)
    assert mirrored[:, 0, 0].tolist() == [[130, 130]] * 5 + [[126, 130]] * 5


def test_what_has_no_mirror_image_is_never_mirrored() -> None:
    clip = noise(1, 32, 32, 3)
    with pytest.raises(ValueError, match="becomes in a mirror"):
        evaluation_view(clip, Evaluated(16, 0.5, 10), FeatureLayout())
    with pytest.raises(ValueError, match="becomes in a mirror"):
        [training_view(clip, AugmentSpec(crop=16), FeatureLayout(), 0, 0, index) for index in range(40)]


@pytest.mark.parametrize("channels", [3, 20])
def test_resizing_is_bilinear_for_few_and_many_channels(channels: int) -> None:
    ramp = np.broadcast_to(np.arange(0, 200, 10, dtype=np.uint8)[None, None, :, None], (1, 20, 20, channels))
    made = resized(ramp, 40).astype(float)
    expected = np.clip((np.arange(40) + 0.5) / 2 - 0.5, 0, 19) * 10
    assert np.abs(made - expected[None, None, :, None]).max() <= 1.0


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "int16", "uint16"])
def test_views_of_all_clips_have_one_type(kind: str) -> None:
    """Also of those that are cut as large as the model sees them: they are in one batch with others. A mirror does not
    wrap numbers without a sign."""
    clip = np.full((1, 16, 16, 2), 3, kind)
    augment = AugmentSpec(crop=16, scales=(1.0, 0.75))
    views = [training_view(clip, augment, MOTION, 0, 0, index) for index in range(16)]
    views += [evaluation_view(clip, Evaluated(16, scale, 10), MOTION) for scale in (1.0, 0.75)]
    assert {str(view.dtype) for view in views} == {"float32"}
    assert {abs(number) for view in views for number in np.unique(view).tolist()} == {3.0}


def test_float_features_stay_float() -> None:
    clip = np.linspace(-1, 1, 10 * 10 * 2, dtype=np.float32).reshape(1, 10, 10, 2)
    assert evaluation_view(clip, Evaluated(16, 0.875, 1), RGB).dtype == np.float32
