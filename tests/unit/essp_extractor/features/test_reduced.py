"""Features of fewer or smaller frames than the clip has, against frames that OpenCV makes smaller beforehand."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from essp_common.errors import ConfigError
from essp_common.job.feature_layout import FeatureLayout
from essp_engine.features import registry
from essp_engine.features.declared import DeclaredFeature, DeclaredOutput
from essp_engine.features.intermediates import Intermediates, extract_with
from essp_engine.features.port import ArraySpec, Extractor, SignedExtractor
from essp_engine.features.sampling import centred_steps
from essp_engine.video.colour import Colour, pictures
from tests.harness.refused import Refusal, refused

Clip = NDArray[np.uint8]
COMPUTED = [name for name in registry.names() if name != "rgb" and registry.needs_of(name) != "motion"]


def ready(name: str, **params: Any) -> Extractor:
    extractor = registry.create(name, params)
    extractor.setup()
    return extractor


def a_clip(frames: int, height: int = 60, width: int = 90) -> Clip:
    """A texture that moves, so that no feature is empty."""
    random = np.random.default_rng(5)
    canvas = cv2.GaussianBlur(random.integers(0, 256, (height + 80, width + 80, 3), dtype=np.uint8), (7, 7), 2)
    return np.stack([canvas[i : i + height, 2 * i : 2 * i + width] for i in range(frames)])


def smaller(clip: Clip, height: int, width: int) -> Clip:
    return np.stack([cv2.resize(frame, (width, height), interpolation=cv2.INTER_AREA) for frame in clip])


@given(st.integers(1, 200), st.integers(1, 64))
def test_steps_are_as_many_as_the_clip_has_and_lie_in_its_middle(frames: int, every: int) -> None:
    steps = centred_steps(frames, every)
    before, after = steps[0], frames - 1 - steps[-1]
    assert {later - earlier for earlier, later in pairwise(steps)} <= {every}
    assert before >= 0
    assert 0 <= after - before <= 1
    assert before + after < every  # another one would not fit


@pytest.mark.parametrize("name", COMPUTED)
def test_it_is_the_feature_of_the_smaller_and_fewer_frames(name: str) -> None:
    plain = ready(name)
    clip = a_clip(2 * plain.frames_needed())
    reduced = ready(name, every=2, short_side=40)
    made = reduced.extract(clip)
    steps = centred_steps(len(clip), 2)
    assert np.array_equal(made, plain.extract(smaller(clip[steps.start : steps.stop : 2], 40, 60)))
    declared = registry.output_of(name, {"every": 2, "short_side": 40}, ArraySpec(clip.shape, "uint8"))
    assert (declared.shape, declared.dtype) == (made.shape, str(made.dtype))
    assert reduced.frames_needed() == 2 * plain.frames_needed() - 1
    assert isinstance(reduced, SignedExtractor) == isinstance(plain, SignedExtractor)


def test_frames_that_are_small_stay_as_they_are() -> None:
    clip = a_clip(11)
    assert np.array_equal(ready("flow", short_side=60).extract(clip), ready("flow").extract(clip))


@pytest.mark.parametrize("colour", [Colour(), Colour("bt709", full=True)], ids=str)
def test_clips_in_the_colours_of_their_video_are_reduced_alike(colour: Colour) -> None:
    """Flow of grey levels, which are made smaller as they are."""
    luma = np.random.default_rng(3).integers(16, 236, (11, 48, 64), dtype=np.uint8)
    planes = np.hstack([luma, np.full((11, 24, 64), 128, np.uint8)])
    reduced = ready("flow", short_side=32)
    made = extract_with(reduced, Intermediates(planes, colour))
    grey = np.stack([cv2.resize(one, (43, 32), interpolation=cv2.INTER_AREA) for one in pictures(planes, colour)])
    assert np.array_equal(made, ready("flow").extract(grey))
    assert np.array_equal(made, extract_with(reduced, Intermediates(luma[..., None], colour)))


def test_features_that_see_the_same_share_what_they_compute() -> None:
    shared = Intermediates(a_clip(16))
    reduced = [ready("flow", short_side=40), ready("flow_bidirectional", short_side=40), ready("hof")]
    made = [extract_with(extractor, shared) for extractor in reduced]
    for extractor, feature in zip(reduced, made, strict=True):
        assert np.array_equal(feature, extractor.extract(a_clip(16)))
    assert made[0].shape[1:3] == (40, 60)


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("flow", {"every": 0}, ("every", "range")),
        ("flow", {"short_side": 8}, ("short_side", "range")),
        ("rgb", {"short_side": 128}, ("short_side", "unknown")),
        ("rgb", {"every": 2}, ("every", "unknown")),
    ],
)
def test_what_cannot_be_is_refused(name: str, params: dict[str, Any], message: Refusal) -> None:
    with refused(*message):
        registry.create(name, params)


def test_a_clip_too_short_for_the_steps_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match=r"flow needs clips of 21 frames, clip\.frames is 20; set it to 21 or more"):
        registry.output_of("flow", {"every": 2}, ArraySpec((20, 64, 64, 3), "uint8"))


def test_a_feature_of_another_image_is_declared_for_what_it_sees() -> None:
    depth = DeclaredFeature("depth", 3, DeclaredOutput(shape=("T", "H", "W", 1)), FeatureLayout())
    params = {"every": 2, "short_side": 32}
    made = registry.output_of("depth", params, ArraySpec((9, 64, 96, 3), "uint8"), {"depth": depth})
    assert made.shape == (5, 32, 48, 1)
    assert registry.frames_of("depth", params, {"depth": depth}) == 5
