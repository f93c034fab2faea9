"""The built-in features: optical flow against motions that are known exactly, the others against plain NumPy."""

from __future__ import annotations

from functools import cache
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from essp_common.errors import BadFrames
from essp_engine.features import registry
from essp_engine.features.intermediates import Intermediates, extract_with
from essp_engine.features.port import ArraySpec, Extractor
from essp_engine.features.quantization import ZERO, negate, quantize, usage
from essp_engine.features.sampling import centre_window, evenly_spaced
from essp_engine.video.colour import Colour, pictures
from tests.harness.quantization import dequantize, quantization_error
from tests.lanes import across, often

SIDE = 128
MARGIN = 16  # flow is not judged where the picture leaves or enters
BOUND = 8.0

Clip = NDArray[np.uint8]
Matrix = NDArray[np.float64]


def ready(name: str, **params: Any) -> Extractor:
    extractor = registry.create(name, params)
    extractor.setup()
    return extractor


def moving_picture(step: Matrix, shift: tuple[float, float], frames: int, side: int = SIDE) -> Clip:
    """A smooth texture, evaluated at exact places: frame t+1 shows at `step @ p + shift` what frame t shows at p.

    Places are (x, y) from the centre of the picture.
    """
    rng = np.random.default_rng(7)
    waves = rng.uniform(-0.09, 0.09, (40, 2))  # cycles a pixel
    phases, amplitudes = rng.uniform(0, 2 * np.pi, (3, 40)), rng.uniform(4, 14, 40)
    y, x = np.mgrid[0:side, 0:side] - (side - 1) / 2
    place = np.stack([x, y], axis=-1)
    back = np.linalg.inv(step)
    clip = np.empty((frames, side, side, 3), np.uint8)
    for frame in clip:
        for channel in range(3):
            angle = 2 * np.pi * (place @ waves.T) + phases[channel]
            frame[..., channel] = np.clip(128 + np.sin(angle) @ amplitudes, 0, 255)
        place = (place - np.array(shift)) @ back.T
    return clip


@cache
def clip_of(motion: str) -> Clip:
    """Three pictures of a motion of `MOTIONS`."""
    clip = moving_picture(*MOTIONS[motion], 3)
    clip.flags.writeable = False
    return clip


def true_flow(step: Matrix, shift: tuple[float, float]) -> NDArray[np.float64]:
    y, x = np.mgrid[0:SIDE, 0:SIDE] - (SIDE - 1) / 2
    place = np.stack([x, y], axis=-1)
    flow: NDArray[np.float64] = place @ (step - np.eye(2)).T + np.array(shift)
    return flow


def rotation(degrees: float) -> Matrix:
    angle = np.radians(degrees)
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


MOTIONS = {
    "still": (np.eye(2), (0.0, 0.0)),
    "right": (np.eye(2), (2.5, 0.0)),
    "up": (np.eye(2), (0.0, -1.5)),
    "left_and_down": (np.eye(2), (-3.25, 2.0)),
    "clockwise": (rotation(2.0), (0.0, 0.0)),
    "zoom_in": (np.eye(2) * 1.03, (0.0, 0.0)),
    "zoom_out": (np.eye(2) * 0.97, (0.0, 0.0)),
}
METHODS = {
    "ultrafast": ({"method": "dis", "preset": "ultrafast"}, 0.25),
    "fast": ({"method": "dis", "preset": "fast"}, 0.20),
    "medium": ({"method": "dis", "preset": "medium"}, 0.10),
    "farneback": ({"method": "farneback"}, 0.15),
}
"""Parameters, and the mean end-point error allowed, in pixels; quantisation alone makes up to 0.03 of it."""


@pytest.mark.parametrize(("method", "motion"), often(across(METHODS, MOTIONS), 12))
def test_flow_measures_known_motion(method: str, motion: str) -> None:
    params, allowed = METHODS[method]
    step, shift = MOTIONS[motion]
    codes = ready("flow", length=2, bound=BOUND / SIDE, **params).extract(clip_of(motion))
    assert codes.shape == (1, SIDE, SIDE, 4)
    inside = np.s_[MARGIN:-MARGIN, MARGIN:-MARGIN]
    for field in (codes[0, ..., 0:2], codes[0, ..., 2:4]):
        error = np.linalg.norm(dequantize(field, BOUND) - true_flow(step, shift), axis=-1)[inside]
        assert error.mean() < allowed, f"mean end-point error {error.mean():.3f} px"


@pytest.mark.parametrize("method", METHODS)
def test_flow_of_a_still_picture_is_zero(method: str) -> None:
    clip = np.repeat(moving_picture(np.eye(2), (0, 0), 1), 4, axis=0)
    codes = ready("flow", length=3, **METHODS[method][0]).extract(clip)
    other = codes[codes != ZERO].astype(int) - ZERO
    if method == "farneback":  # its polynomials see a motion of 0.04 px at single pixels of the border
        assert np.abs(other).max(initial=0) <= 1
        assert other.size <= codes.size / 1000
    else:
        assert not other.size


@pytest.mark.parametrize("value", [0, 128, 255])
@pytest.mark.parametrize("method", METHODS)
def test_flow_of_nothing_is_zero(method: str, value: int) -> None:
    codes = ready("flow", length=1, **METHODS[method][0]).extract(np.full((2, 48, 64, 3), value, np.uint8))
    assert np.all(codes == ZERO)


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (8, 8), (15, 200), (200, 11), (31, 33), (24, 400)])
@pytest.mark.parametrize("method", METHODS)
def test_flow_takes_frames_of_any_size(method: str, size: tuple[int, int]) -> None:
    """OpenCV's DIS fails or crashes on small and on long, thin frames."""
    clip = np.random.default_rng(0).integers(0, 256, (3, *size, 3), dtype=np.uint8)
    codes = ready("flow", length=2, **METHODS[method][0]).extract(clip)
    assert codes.shape == (1, *size, 4)
    assert codes.min() >= 1


@pytest.mark.parametrize("method", METHODS)
def test_flow_depends_on_the_clip_alone(method: str) -> None:
    """OpenCV's DIS object remembers what it did for small pictures before."""
    small = moving_picture(np.eye(2), (1.0, 0.0), 3, side=40)
    large = moving_picture(np.eye(2), (1.0, 0.5), 3, side=96)
    extractor = ready("flow", length=2, **METHODS[method][0])
    first = [extractor.extract(clip) for clip in (small, large, small, large)]
    fresh = [ready("flow", length=2, **METHODS[method][0]).extract(clip) for clip in (small, large)]
    for seen, expected in zip(first, fresh * 2, strict=True):
        assert np.array_equal(seen, expected)


def test_flow_saturates_at_its_bound() -> None:
    clip = moving_picture(np.eye(2), (4.0, -4.0), 2)
    codes = ready("flow", method="farneback", length=1, bound=1.0 / SIDE).extract(clip)
    inside = codes[0, MARGIN:-MARGIN, MARGIN:-MARGIN]
    assert np.all(inside[..., 0] == 255)
    assert np.all(inside[..., 1] == 1)


def test_a_scene_gives_the_same_codes_at_any_size_of_the_frame() -> None:
    """Twice the size, twice the displacement in pixels: the codes say how the scene moves, not how it is scanned."""
    small = moving_picture(np.eye(2), (1.5, -1.0), 2, side=96)
    large = np.stack([cv2.resize(frame, (192, 192), interpolation=cv2.INTER_CUBIC) for frame in small])
    flow = ready("flow", length=1, preset="medium")
    of_small, of_large = (
        flow.extract(clip)[0, side // 4 : -side // 4, side // 4 : -side // 4].mean(axis=(0, 1)) - ZERO
        for clip, side in ((small, 96), (large, 192))
    )
    assert np.abs(of_small - np.array([1.5, -1.0]) * 127 / (0.08 * 96)).max() < 2
    assert np.abs(of_large - of_small).max() < 2


def test_usage_counts_what_is_clipped_and_what_is_zero() -> None:
    displacement = np.array([-30.0, -20.0, 0.0, 0.05, 0.1, 20.0, 30.0, 5.0], np.float32)
    codes = np.tile(quantize(displacement, 20.0), (1, 8, 3, 1))
    assert usage(codes) == (2 * 3 * 8, 2 * 3 * 4, 2 * 3 * 2), "of every fourth row"
    beyond = [usage(np.full((1, 4, 1, 1), code, np.uint8)).clipped for code in (0, 1, 2, 254, 255)]
    assert beyond == [0, 1, 0, 0, 1], "the ends of the range are 1 and 255"


def test_flow_uses_the_middle_of_a_long_clip() -> None:
    clip = moving_picture(np.eye(2), (1.0, 0.0), 9)
    extractor = ready("flow", length=2)
    assert np.array_equal(extractor.extract(clip), extractor.extract(clip[3:6]))


@given(
    hnp.arrays(np.float32, hnp.array_shapes(max_dims=3, max_side=8), elements=st.floats(-200, 200, width=32)),
    st.floats(0.5, 100),
)
def test_quantisation_error_is_bounded(flow: NDArray[np.float32], bound: float) -> None:
    codes = quantize(flow, bound)
    assert codes.dtype == np.uint8
    assert codes.min() >= 1
    error = np.abs(dequantize(codes, bound) - np.clip(flow, -bound, bound))
    assert error.max() <= quantization_error(bound) * (1 + 1e-4)


@given(hnp.arrays(np.float32, (3, 4), elements=st.floats(-50, 50, width=32)), st.floats(0.5, 100))
def test_negated_codes_are_codes_of_negated_flow(flow: NDArray[np.float32], bound: float) -> None:
    assert np.array_equal(negate(quantize(flow, bound)), quantize(-flow, bound))


def test_zero_and_what_is_no_number_are_the_code_of_zero() -> None:
    flow = np.array([0.0, -0.0, np.nan], np.float32)
    assert np.all(quantize(flow, 20.0) == ZERO)
    assert np.all(dequantize(quantize(flow, 20.0), 20.0) == 0)


clips = st.tuples(st.integers(1, 8), st.integers(1, 5), st.integers(1, 5)).flatmap(
    lambda size: hnp.arrays(np.uint8, (*size, 3))
)


@given(clips, st.data())
def test_frame_stack_is_frames_side_by_side(clip: Clip, data: st.DataObject) -> None:
    length = data.draw(st.integers(1, len(clip)))
    stack = ready("frame_stack", length=length).extract(clip)
    assert np.array_equal(stack[0], np.concatenate(list(clip[centre_window(len(clip), length)]), axis=-1))


@given(clips.filter(lambda clip: len(clip) > 1), st.data())
def test_frame_diff_is_saturated_difference(clip: Clip, data: st.DataObject) -> None:
    length = data.draw(st.integers(1, len(clip) - 1))
    difference = np.diff(clip[centre_window(len(clip), length + 1)].astype(int), axis=0)
    expected = np.clip(difference, -128, 127) + 128
    assert np.array_equal(ready("frame_diff", length=length).extract(clip)[0], np.concatenate(list(expected), axis=-1))


@pytest.mark.parametrize("name", ["frame_stack", "frame_diff", "flow", "flow_bidirectional"])
def test_the_longest_clips_become_features(name: str) -> None:
    """Of more channels than OpenCV takes at once."""
    feature = ready(name, length=64)
    clip = np.random.default_rng(0).integers(0, 256, (feature.frames_needed(), 24, 32, 3), np.uint8)
    made = feature.extract(clip)
    assert made.shape == feature.output(ArraySpec(clip.shape, "uint8")).shape
    if name == "frame_stack":
        assert np.array_equal(made[0], np.concatenate(list(clip), axis=-1))


@given(clips, st.data())
def test_rgb_gives_frames_of_the_clip(clip: Clip, data: st.DataObject) -> None:
    frames = data.draw(st.integers(1, len(clip)))
    chosen = ready("rgb", frames=frames).extract(clip)
    assert np.array_equal(chosen, clip[evenly_spaced(len(clip), frames)])


@given(st.integers(1, 500), st.integers(1, 500))
def test_evenly_spaced_frames_are_the_middles_of_equal_segments(frame_count: int, wanted: int) -> None:
    if frame_count < wanted:
        with pytest.raises(BadFrames):
            evenly_spaced(frame_count, wanted)
        return
    frames = np.array(evenly_spaced(frame_count, wanted))
    middles = (np.arange(wanted) + 0.5) * frame_count / wanted
    assert np.all(np.abs(frames + 0.5 - middles) <= 0.5 + 1e-9)
    assert np.all(np.diff(frames) >= 1)


def test_single_frame_is_inside_the_centre_window() -> None:
    for frame_count in range(1, 40):
        window = centre_window(frame_count, min(frame_count, 11))
        assert window.start <= evenly_spaced(frame_count, 1)[0] < window.stop


BUILT_IN = {"rgb": {"frames": 3}, "frame_stack": {"length": 4}, "frame_diff": {"length": 4}, "flow": {"length": 4}}


@pytest.mark.parametrize("name", BUILT_IN)
def test_declared_output_is_what_is_made(name: str) -> None:
    clip = np.random.default_rng(0).integers(0, 256, (7, 40, 56, 3), dtype=np.uint8)
    clip.flags.writeable = False
    feature = ready(name, **BUILT_IN[name]).extract(clip)
    declared = registry.output_of(name, BUILT_IN[name], ArraySpec(clip.shape, "uint8"))
    assert (declared.shape, declared.dtype) == (feature.shape, str(feature.dtype))
    assert declared.nbytes == feature.nbytes


@pytest.mark.parametrize("name", BUILT_IN)
def test_clip_that_is_too_short_is_refused(name: str) -> None:
    extractor = ready(name, **BUILT_IN[name])
    with pytest.raises(BadFrames, match=r"raise clip\.frames"):
        extractor.extract(np.zeros((extractor.frames_needed() - 1, 32, 32, 3), np.uint8))


ALIKE = {"flow_bidirectional", "flow_warped", "frame_stack"}
"""Features that see pictures as another one does."""
OF_FRAMES = [name for name in registry.names() if registry.needs_of(name) != "motion"]


@pytest.mark.parametrize(
    ("name", "colour"),
    often(
        across(sorted(OF_FRAMES, key=ALIKE.__contains__), [Colour(), Colour("bt709", full=True)]),
        len({*OF_FRAMES} - ALIKE),
    ),
    ids=str,
)
def test_clips_in_the_colours_of_their_video_give_the_feature_of_their_pictures(name: str, colour: Colour) -> None:
    """Features of luma take grey levels as they are: those of the pictures' RGB differ by its rounding, so they are
    compared where chroma is neutral and RGB is grey."""
    random = np.random.default_rng(3)
    extractor = registry.create(name, {})
    extractor.setup()
    frames = extractor.frames_needed()
    luma = random.integers(16, 236, (frames, 48, 64), dtype=np.uint8)
    chroma = random.integers(0, 256, (frames, 24, 64), dtype=np.uint8)
    if registry.needs_of(name) == "luma":
        chroma[:] = 128
        grey_only = extract_with(extractor, Intermediates(luma[..., None], colour))
        assert np.array_equal(grey_only, extract_with(extractor, Intermediates(np.hstack([luma, chroma]), colour)))
    planes = np.hstack([luma, chroma])
    made = extract_with(extractor, Intermediates(planes, colour))
    assert np.array_equal(made, extractor.extract(pictures(planes, colour)))
