"""`essp.compute_feature` gives what the extractor gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import essp
from essp_common.errors import ConfigCode
from essp_engine.features import registry
from tests.harness.refused import refused

CLIP = np.random.default_rng(1).integers(0, 256, (16, 48, 64, 3), np.uint8)


@pytest.mark.parametrize(
    ("name", "params"), [("rgb", {"frames": 3}), ("flow", {"length": 5}), ("frame_diff", {}), ("hog", {})]
)
def test_a_feature_is_that_of_the_extractor(name: str, params: dict[str, Any]) -> None:
    extractor = registry.create(name, params)
    extractor.setup()
    assert np.array_equal(essp.compute_feature(CLIP, name, **params), extractor.extract(CLIP))


@pytest.mark.parametrize("name", essp.features())
def test_grey_frames_have_the_features_of_their_pictures(name: str) -> None:
    grey = CLIP[..., :1]
    pictures = np.repeat(grey, 3, axis=3)
    if registry.needs_of(name) == "luma":
        assert np.array_equal(essp.compute_feature(grey, name), essp.compute_feature(pictures, name))
    elif name == "rgb":
        made = essp.compute_feature(grey, name, frames=3)
        assert np.array_equal(made, essp.compute_feature(pictures, name, frames=3)[..., :1])
    else:
        with refused("frames", "conflict"):
            essp.compute_feature(grey, name)


def test_every_feature_is_listed() -> None:
    assert {"rgb", "flow", "hog", "improved_trajectories"} <= set(essp.features())


def test_frames_need_not_be_contiguous_and_stay_as_they_are() -> None:
    mirrored = CLIP[:, :, ::-1]
    mirrored.flags.writeable = False
    assert np.array_equal(essp.compute_feature(mirrored, "flow"), essp.compute_feature(mirrored.copy(), "flow"))


@pytest.mark.parametrize(
    ("frames", "name", "params", "field", "code"),
    [
        (CLIP, "colour", {}, "name", "unknown"),
        (CLIP, "flow", {"lenght": 5}, "lenght", "unknown"),
        (CLIP, "rgb", {"every": 2}, "every", "unknown"),
        (CLIP[:3], "flow", {"length": 5}, "frames", "range"),
        (CLIP[0], "flow", {}, "frames", "type"),
        (CLIP.astype(np.float32), "flow", {}, "frames", "type"),
        (CLIP, "flow", {"snippets": 3}, "snippets", "conflict"),
    ],
)
def test_what_cannot_be_computed_is_refused(
    frames: Any, name: str, params: dict[str, Any], field: str, code: ConfigCode
) -> None:
    with refused(field, code):
        essp.compute_feature(frames, name, **params)
