"""TV-L1, bi-directional and warped flow against motions that are known exactly; results shared between features."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from skimage.registration import optical_flow_tvl1

from essp_common.errors import BadFrames, ConfigError
from essp_engine.features import registry
from essp_engine.features.intermediates import Intermediates, extract_with
from essp_engine.features.port import ArraySpec
from essp_engine.features.quantization import ZERO
from essp_extractor.motion.camera import CameraMotion
from essp_extractor.motion.fields import Field, FlowFields, FlowMethod, Grey
from essp_extractor.motion.tvl1 import TvL1Params, tvl1_flow
from tests.harness.quantization import dequantize
from tests.harness.scenes import STILL, Clip, Matrix, flow_of, moving, places, ready, rotation, with_object
from tests.harness.waiting import LONGEST_S

INSIDE = np.s_[16:-16, 16:-16]
BOUND = 12.0
MOTIONS: dict[str, tuple[Matrix, tuple[float, float]]] = {
    "right": (STILL, (2.5, 0.0)),
    "up": (STILL, (0.0, -1.5)),
    "far": (STILL, (-9.25, 6.5)),
    "clockwise": (rotation(2.0), (0.0, 0.0)),
    "zoom_in": (STILL * 1.03, (0.0, 0.0)),
    "zoom_out": (STILL * 0.97, (0.0, 0.0)),
}
NEW: dict[str, dict[str, Any]] = {
    "flow": {"method": "tvl1", "length": 2, "warps": 2},
    "flow_bidirectional": {"length": 2},
    "flow_warped": {"length": 2},
    "hog": {"length": 3},
    "hof": {"length": 3},
    "mbh": {"length": 3},
    "trajectories": {"length": 3, "count": 20},
    "improved_trajectories": {"length": 3, "count": 20},
}


def motion_of(feature: NDArray[Any], index: int) -> NDArray[np.float32]:
    """One field of a stack, in pixels."""
    return dequantize(feature[0, ..., 2 * index : 2 * index + 2], BOUND)


def grey(clip: Clip) -> list[NDArray[np.uint8]]:
    return [cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY) for frame in clip]


@pytest.mark.parametrize("motion", MOTIONS)
def test_tvl1_measures_known_motion(motion: str) -> None:
    first, second = grey(moving(*MOTIONS[motion], 2))
    error = np.linalg.norm(tvl1_flow(cv2, first, second, TvL1Params()) - flow_of(*MOTIONS[motion]), axis=-1)[INSIDE]
    assert error.mean() < 0.06, f"mean end-point error {error.mean():.3f} px"


def test_tvl1_agrees_with_scikit_image_and_keeps_the_edges_of_motion() -> None:
    first, second = grey(with_object(moving(STILL, (1.5, 0.5), 2), (40, 30), (-3, 2), 40))
    truth = np.broadcast_to(np.array([1.5, 0.5], np.float32), (*first.shape, 2)).copy()
    truth[30:70, 40:80] = (-3, 2)
    ours = tvl1_flow(cv2, first, second, TvL1Params())
    rows, columns = optical_flow_tvl1(first, second)
    theirs = np.stack([columns, rows], axis=-1)
    farneback = FlowFields(FlowMethod("test", "farneback")).of(first, second)
    ours_error, theirs_error, farneback_error = (
        np.linalg.norm(flow - truth, axis=-1)[INSIDE].mean() for flow in (ours, theirs, farneback)
    )
    assert np.median(np.linalg.norm(ours - theirs, axis=-1)[INSIDE]) < 0.05
    assert ours_error < 1.3 * theirs_error
    assert ours_error < 0.5 * farneback_error


@pytest.mark.parametrize("value", [0, 128, 255])
def test_tvl1_of_nothing_is_zero(value: int) -> None:
    assert np.all(ready("flow", method="tvl1", length=1).extract(np.full((2, 48, 64, 3), value, np.uint8)) == ZERO)


def test_tvl1_of_a_still_picture_is_zero() -> None:
    assert np.all(ready("flow", method="tvl1", length=2).extract(moving(STILL, (0, 0), 3)) == ZERO)


def test_tvl1_is_smoother_with_less_weight() -> None:
    first, second = grey(with_object(moving(STILL, (0, 0), 2), (40, 30), (3, 0), 16))
    rough, smooth = (tvl1_flow(cv2, first, second, TvL1Params(weight=weight)) for weight in (0.15, 0.01))
    assert np.abs(np.diff(smooth, axis=1)).sum() < 0.7 * np.abs(np.diff(rough, axis=1)).sum()


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("flow", {"weight": 0.3}, "weight, tightness and warps need method tvl1"),
        ("flow", {"method": "tvl1", "winsize": 9}, "need method farneback"),
        ("flow", {"method": "tvl1", "preset": "fast"}, "preset needs method dis"),
        ("hof", {"method": "tvl1", "preset": "fast"}, "hof: preset needs method dis"),
        ("flow_bidirectional", {"length": 5}, "length 5 is odd"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(name: str, params: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        registry.create(name, params)


def test_bidirectional_flow_looks_from_the_middle_to_both_sides() -> None:
    clip = np.concatenate([moving(STILL, (2, 0), 3), moving(STILL, (0, -1.5), 3)[::-1]])  # 0 1 2 | 2' 1' 0'
    clip = np.delete(clip, 3, axis=0)  # frames 0 1 2 1' 0': right, right, then down, down
    clip[3:] = moving(STILL, (4, 1.5), 2)[1], moving(STILL, (4, 3), 2)[1]
    feature = ready("flow_bidirectional", length=4, bound=BOUND / 96, preset="medium").extract(clip)
    expected = [(0, 1.5), (0, 1.5), (-2, 0), (-2, 0)]
    for index, motion in enumerate(expected):
        error = np.linalg.norm(motion_of(feature, index) - motion, axis=-1)[INSIDE]
        assert error.mean() < 0.15, f"field {index}: {error.mean():.3f} px"


def test_bidirectional_flow_is_flow_of_the_second_half_and_of_the_first_one_reversed() -> None:
    clip = moving(rotation(1), (1.0, -0.5), 9)
    both = ready("flow_bidirectional", length=4).extract(clip)
    flow = ready("flow", length=2)
    assert np.array_equal(both[..., :4], flow.extract(clip[4:7]))
    assert np.array_equal(both[..., 4:], flow.extract(clip[4:1:-1]))


CAMERAS: dict[str, tuple[Matrix, tuple[float, float]]] = {
    "pan": (STILL, (-3.3, 1.7)),
    "roll": (rotation(1.5), (1.0, 0.0)),
    "zoom": (STILL * 1.02, (0.0, 0.0)),
}


@pytest.mark.parametrize("camera", CAMERAS)
def test_camera_motion_is_found_beside_a_moving_object(camera: str) -> None:
    step, shift = CAMERAS[camera]
    clip = with_object(moving(step, shift, 2), (50, 30), (2, 3), 36)
    found = CameraMotion(FlowMethod("test")).of(*grey(clip))
    assert found is not None
    y, x = np.mgrid[0:96:95, 0:128:127]
    corners = np.stack([x, y], axis=-1).reshape(-1, 1, 2).astype(np.float64)
    truth = corners + flow_of(step, shift)[[0, 0, -1, -1], [0, -1, 0, -1]].reshape(-1, 1, 2)
    assert np.abs(cv2.perspectiveTransform(corners, found) - truth).max() < 0.5


@pytest.mark.parametrize("camera", CAMERAS)
def test_warped_flow_keeps_the_object_and_drops_the_camera(camera: str) -> None:
    step, shift = CAMERAS[camera]
    clip = with_object(moving(step, shift, 2), (50, 30), (2, 3), 36)
    warped = motion_of(ready("flow_warped", length=1, bound=BOUND / 96, preset="medium").extract(clip), 0)
    plain = motion_of(ready("flow", length=1, bound=BOUND / 96, preset="medium").extract(clip), 0)
    background = np.ones(warped.shape[:2], np.bool_)
    background[20:80, 40:98] = False
    background[:16], background[-16:], background[:, :16], background[:, -16:] = False, False, False, False
    assert np.linalg.norm(warped, axis=-1)[background].mean() < 0.1
    assert np.linalg.norm(plain, axis=-1)[background].mean() > 0.6
    # The place where the object's points would be, had the camera stood still.
    place = places(96, 128)
    truth = (place + np.array([2.0, 3.0]) - np.array(shift)) @ np.linalg.inv(step).T - place
    middle = np.s_[40:56, 60:76]
    assert np.linalg.norm(warped - truth, axis=-1)[middle].mean() < 0.35


def test_warped_flow_is_the_same_whatever_else_was_drawn_at_random() -> None:
    clip = with_object(moving(rotation(1), (2.0, 1.0), 3), (50, 30), (2, 3), 36)
    clip = np.maximum(clip, np.random.default_rng(0).integers(0, 160, clip.shape, dtype=np.uint8))
    results = []
    for seed in range(3):
        cv2.setRNGSeed(seed)
        results.append(ready("flow_warped", length=2).extract(clip))
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])


@pytest.mark.parametrize("kind", ["constant", "noise", "tiny"])
def test_warped_flow_is_plain_flow_where_no_camera_is_found(kind: str) -> None:
    clip = {
        "constant": np.full((3, 64, 64, 3), 90, np.uint8),
        "noise": np.random.default_rng(0).integers(0, 256, (3, 64, 64, 3), dtype=np.uint8),
        "tiny": moving(STILL, (1, 0), 3, size=(20, 24)),
    }[kind]
    assert np.array_equal(ready("flow_warped", length=2).extract(clip), ready("flow", length=2).extract(clip))


def test_features_share_flow_and_give_what_they_give_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clip = with_object(moving(STILL, (-2.0, 0.5), 7), (20, 20), (3, 1), 24)
    chosen = [ready("flow", length=4), ready("flow_warped", length=3)]
    chosen += [ready(name, length=6, scales=1) for name in ("trajectories", "improved_trajectories")]
    chosen += [ready(name, length=6) for name in ("hog", "hof", "mbh", "flow_bidirectional", "frame_diff")]
    alone = [extractor.extract(clip) for extractor in chosen]
    pairs = []
    made = FlowFields.of

    def noted(self: FlowFields, first: Grey, second: Grey) -> Field:
        pairs.append((first.tobytes(), second.tobytes()))
        return made(self, first, second)

    monkeypatch.setattr(FlowFields, "of", noted)
    shared = Intermediates(clip)
    together = [extract_with(extractor, shared) for extractor in chosen]
    for one, other in zip(alone, together, strict=True):
        assert np.array_equal(one, other)
    assert len(pairs) == len(set(pairs)) == 6 + 3 + 6  # forward, backward, without the camera


def test_fields_of_other_parameters_are_not_mixed_up() -> None:
    shared = Intermediates(moving(rotation(1), (1, 0), 2))
    fast, medium = (ready("flow", length=1, preset=preset) for preset in ("fast", "medium"))
    first = extract_with(fast, shared)
    assert np.array_equal(extract_with(medium, shared), medium.extract(shared.clip))
    assert not np.array_equal(extract_with(medium, shared), first)


def test_nobody_can_spoil_what_is_shared() -> None:
    fields, shared = FlowFields(FlowMethod("test")), Intermediates(moving(STILL, (1, 0), 2))
    with pytest.raises(ValueError, match="read-only"):
        fields.between(shared, 0, 1)[...] = 0


@pytest.mark.parametrize("name", NEW)
@pytest.mark.parametrize("size", [(1, 1), (3, 5), (31, 33), (16, 200), (64, 48)])
def test_any_size_gives_what_was_declared(name: str, size: tuple[int, int]) -> None:
    clip = np.random.default_rng(0).integers(0, 256, (6, *size, 3), dtype=np.uint8)
    clip.flags.writeable = False
    feature = ready(name, **NEW[name]).extract(clip)
    declared = registry.output_of(name, NEW[name], ArraySpec(clip.shape, "uint8"))
    assert (feature.shape, str(feature.dtype)) == (declared.shape, declared.dtype)
    assert np.isfinite(feature).all()


@pytest.mark.parametrize("name", NEW)
def test_clip_that_is_too_short_is_refused(name: str) -> None:
    extractor = ready(name, **NEW[name])
    extractor.extract(np.zeros((extractor.frames_needed(), 32, 32, 3), np.uint8))
    with pytest.raises(BadFrames, match=r"raise clip\.frames"):
        extractor.extract(np.zeros((extractor.frames_needed() - 1, 32, 32, 3), np.uint8))


@pytest.mark.processes
def test_declaring_imports_nothing_heavy() -> None:
    program = f"""
import sys
from essp_engine.features import registry
from essp_engine.features.port import ArraySpec
for name, params in {NEW!r}.items():
    registry.output_of(name, params, ArraySpec((16, 64, 64, 3), "uint8"))
assert not {{"cv2", "scipy", "skimage", "torch"}} & set(sys.modules), "heavy"
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=LONGEST_S)
