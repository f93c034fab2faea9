"""Views that a device cuts are those that the host makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from essp_common.colour import Colour
from essp_common.errors import ConfigError
from essp_common.features.registry import layout_of
from essp_common.job.feature_layout import COLOURS, MOTION, FeatureLayout
from essp_common.job.trainer_spec import AugmentSpec
from essp_common.learning.augment import (
    Evaluated,
    evaluation_cuts,
    evaluation_view,
    training_cut,
    training_view,
)
from essp_common.learning.wanted import Decoded
from essp_common.pb.v1.messages_pb2 import ClipRef, Control
from essp_trainer.config import ViewPlace
from essp_trainer.data import device_views
from essp_trainer.data.device import ToHost
from essp_trainer.data.device_views import DeviceViews, can_cut, on_device
from tests.harness.training_jobs import SIDE, Running, Stage, final_weights, job_spec, phase_plans

UNIT = 2.0**-24
CPU = torch.device("cpu")


@given(
    height=st.integers(8, 60),
    width=st.integers(8, 60),
    crop=st.integers(8, 40),
    kind=st.sampled_from([(3, COLOURS), (1, COLOURS), (20, MOTION), (2, MOTION)]),
    floats=st.booleans(),
    index=st.integers(0, 10**6),
    at_once=st.sampled_from([1, 2**25]),
)
def test_a_device_cuts_what_the_host_cuts(
    height: int, width: int, crop: int, kind: tuple[int, FeatureLayout], floats: bool, index: int, at_once: int
) -> None:
    channels, layout = kind
    random = np.random.default_rng(index)
    clips = random.integers(1, 256, (3, 2, height, width, channels), dtype=np.uint8)
    if floats:
        clips = (clips / np.float32(256)).astype(np.float32)
    augment = AugmentSpec(crop=crop, erase=0.5)
    cuts = [[training_cut(height, width, augment, 5, 0, index + number)] for number in range(len(clips))]
    cut = DeviceViews(crop, layout).of(ToHost()(list(clips)), cuts)
    expected = [training_view(clip, augment, layout, 5, 0, index + number) for number, clip in enumerate(clips)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_views, "_MOST_FLOATS", at_once)
        assert_alike(cut.here(), np.stack(expected))
    assert cut.shape == (2, channels, not floats)


@pytest.mark.parametrize("views", [1, 3, 10])
@pytest.mark.parametrize(("channels", "layout"), [(3, COLOURS), (4, MOTION)])
def test_all_views_of_evaluation_are_cut(views: int, channels: int, layout: FeatureLayout) -> None:
    clips = np.random.default_rng(0).integers(1, 256, (2, 3, 40, 52, channels), dtype=np.uint8)
    seen = Evaluated(24, 0.875, views)
    cut = DeviceViews(24, layout).of(ToHost()(list(clips)), [evaluation_cuts(40, 52, seen)] * 2)
    assert cut.shape == (3 * views, channels, True)
    assert_alike(cut.here(), np.stack([evaluation_view(clip, seen, layout) for clip in clips]))


def assert_alike(found: torch.Tensor, expected: np.ndarray[Any, Any]) -> None:
    assert found.dtype == torch.from_numpy(expected).dtype
    assert found.is_contiguous()
    assert found.shape == expected.shape
    if found.dtype == torch.uint8:
        assert np.abs(found.numpy().astype(int) - expected.astype(int)).max() <= 1
    else:
        # A place among at most 60 pixels is rounded a few times, each time by a unit of 60 at most; the pixels beside
        # it differ by 1 at most. The weighted sum of four pixels adds less.
        assert np.abs(found.numpy() - expected).max() < 8 * 60 * UNIT


def test_whole_frames_are_left_to_the_device_in_any_colours() -> None:
    sizes = []
    view = on_device(lambda clip, height, width: sizes.append((height, width)) or [])  # type: ignore[func-returns-value]
    pictures, planes = np.zeros((2, 8, 10, 3), np.uint8), np.zeros((2, 12, 10), np.uint8)
    assert view(ClipRef(), Decoded(pictures, None)).frames is pictures
    assert view(ClipRef(), Decoded(planes, Colour())).colour == Colour()
    assert sizes == [(8, 10), (8, 10)]


@pytest.mark.parametrize("fetches", [0, 2])
@pytest.mark.parametrize("feature", ["rgb", "flow"])
def test_a_training_learns_the_same_from_views_of_the_device(tmp_path: Path, feature: str, fetches: int) -> None:
    """To the bit where no pixel is interpolated: what is mirrored, erased and seen in evaluation is the same, too."""
    augment = {"crop": SIDE, "scales": [1.0], "evaluation_scale": 1.0, "evaluation_crops": 10, "erase": 0.5}
    found: list[tuple[bytes, list[float]]] = []
    for views in ("host", "device"):
        spec = job_spec(tmp_path / views, feature=feature, augment=augment)
        cut_in_squares = spec.clip.model_copy(update={"resize": spec.clip.resize.model_copy(update={"mode": "exact"})})
        stage = Stage(spec.model_copy(update={"clip": cut_in_squares}), phase_plans(2))
        stage.command(Control.START)
        stage.feed(stage.every_position())
        with Running(stage, views=views, fetches=fetches) as running:
            running.join()
        assert running.error is None
        found.append((final_weights(stage), [report.metrics["loss"] for report in stage.reports("phase_report")]))
    assert found[0] == found[1]


def test_what_a_device_cannot_cut_stays_with_the_host() -> None:
    clip = job_spec(Path("/out")).clip
    of_any_size = clip.model_copy(update={"resize": clip.resize.model_copy(update={"mode": "short_side"})})
    random = AugmentSpec.model_validate({"rand_augment": {}})
    assert can_cut(clip, AugmentSpec(), COLOURS)
    assert not can_cut(of_any_size, AugmentSpec(), COLOURS)
    assert not can_cut(clip, random, COLOURS)
    assert not can_cut(clip, AugmentSpec(), layout_of("trajectories"))
    with pytest.raises(ValueError, match="on the host"):
        training_cut(20, 20, random, 0)


@pytest.mark.parametrize(("place", "raises"), [("auto", False), ("host", False), ("device", True)])
def test_a_device_that_has_to_cut_and_cannot_is_an_error(tmp_path: Path, place: ViewPlace, raises: bool) -> None:
    spec = job_spec(tmp_path, epochs=1, augment={"crop": 16, "rand_augment": {"operations": 1}})
    stage = Stage(spec, phase_plans(1, train=4, validation=0, test=0))
    stage.command(Control.START)
    stage.feed(stage.every_position())
    with Running(stage, views=place) as running:
        running.join()
    if raises:
        assert isinstance(running.error, ConfigError)
        assert "ESSP_VIEWS=auto" in str(running.error)
    else:
        assert running.error is None
