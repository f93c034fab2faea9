"""Views that a device cuts are those that the host makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from essp_common.errors import ConfigError
from essp_common.job.clip_spec import ClipSpec, ResizeSpec
from essp_common.job.feature_layout import COLOURS, MOTION, FeatureLayout
from essp_common.job.trainer_spec import AugmentSpec
from essp_common.pb.v1.messages_pb2 import ClipRef, Control
from essp_engine.features.registry import layout_of
from essp_engine.intake.wanted import Decoded
from essp_engine.learning.augment import Evaluated, evaluation_cuts, evaluation_view, training_cut, training_view
from essp_engine.learning.cut import Cut
from essp_engine.loading import device_views
from essp_engine.loading.device import ToHost
from essp_engine.loading.device_views import DeviceViews, left_to_host, on_device
from essp_engine.loading.settings import ViewPlace
from essp_engine.video.colour import Colour
from essp_trainer.assignment import Assignment
from essp_trainer.views import views
from tests.harness.training_jobs import SIDE, Running, Stage, final_weights, job_spec, phase_plans
from tests.lanes import often

UNIT = 2.0**-24


@given(
    height=st.integers(8, 60),
    width=st.integers(8, 60),
    crop=st.integers(8, 40),
    kind=st.sampled_from([(3, COLOURS), (1, COLOURS), (20, MOTION), (2, MOTION)]),
    stored=st.sampled_from([np.uint8, np.float32, np.float16, np.int16]),
    index=st.integers(0, 10**6),
    at_once=st.sampled_from([1, 3_000, 2**23]),
)
def test_a_device_cuts_what_the_host_cuts(
    height: int,
    width: int,
    crop: int,
    kind: tuple[int, FeatureLayout],
    stored: type[np.generic],
    index: int,
    at_once: int,
) -> None:
    channels, layout = kind
    random = np.random.default_rng(index)
    clips = random.integers(1, 256, (3, 2, height, width, channels), dtype=np.uint8).astype(stored)
    augment = AugmentSpec(crop=crop, erase=0.5)
    cuts = [[training_cut(height, width, augment, 5, 0, index + number)] for number in range(len(clips))]
    cut = DeviceViews(crop, layout).of(ToHost()(list(clips)), cuts)
    expected = [training_view(clip, augment, layout, 5, 0, index + number) for number, clip in enumerate(clips)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_views, "_MOST_FLOATS", at_once)
        assert_alike(cut.here(), np.stack(expected))
    assert cut.shape == (2, channels, stored is np.uint8)


@pytest.mark.parametrize("count", [1, 3, 10])
@pytest.mark.parametrize(("channels", "layout"), [(3, COLOURS), (4, MOTION)])
def test_all_views_of_evaluation_are_cut(count: int, channels: int, layout: FeatureLayout) -> None:
    clips = np.random.default_rng(0).integers(1, 256, (2, 3, 40, 52, channels), dtype=np.uint8)
    seen = Evaluated(24, 0.875, count)
    cut = DeviceViews(24, layout).of(ToHost()(list(clips)), [evaluation_cuts(40, 52, seen)] * 2)
    assert cut.shape == (3 * count, channels, True)
    assert_alike(cut.here(), np.stack([evaluation_view(clip, seen, layout) for clip in clips]))


def assert_alike(found: torch.Tensor, expected: np.ndarray[Any, Any]) -> None:
    assert found.dtype == (torch.uint8 if expected.dtype == np.uint8 else torch.float32)
    assert found.is_contiguous()
    assert found.shape == expected.shape
    if expected.dtype == np.uint8:
        assert np.abs(found.numpy().astype(int) - expected.astype(int)).max() <= 1
    else:
        # A place among at most 60 pixels is rounded a few times, each time by a unit of 60 at most; the pixels beside
        # it differ by 256 at most. The weighted sum of four pixels adds less.
        assert np.abs(found.numpy() - expected.astype(np.float32)).max() < 8 * 60 * 256 * UNIT


def test_a_feature_that_knows_no_mirror_is_not_mirrored_in_silence() -> None:
    clips = np.zeros((1, 1, 8, 8, 3), np.uint8)
    cuts = [evaluation_cuts(8, 8, Evaluated(8, 1.0, 10))]
    with pytest.raises(ValueError, match="in a mirror"):
        DeviceViews(8, FeatureLayout()).of(ToHost()(list(clips)), cuts).here()


def test_whole_frames_are_left_to_the_device_in_any_colours() -> None:
    def cuts(clip: ClipRef, height: int, width: int) -> list[Cut]:
        return [Cut(slice(0, height), slice(clip.index, width))]

    view, whole = on_device(cuts), (Cut(slice(0, 8), slice(3, 10)),)
    for frames, colour in (
        (np.zeros((2, 8, 10, 3), np.uint8), None),
        (np.zeros((2, 12, 10), np.uint8), Colour()),
        (np.zeros((2, 8, 10, 1), np.uint8), Colour()),
    ):
        seen = view(ClipRef(index=3), Decoded(frames, colour))
        assert seen.frames is frames
        assert (seen.colour, seen.cuts) == (colour, whole)


@pytest.mark.parametrize(
    ("feature", "fetches", "ranks"), often([("rgb", 0, 1), ("flow", 2, 2), ("rgb", 2, 1), ("flow", 0, 1)], 2)
)
def test_a_training_learns_the_same_from_views_of_the_device(
    tmp_path: Path, feature: str, fetches: int, ranks: int
) -> None:
    """To the bit where no pixel is interpolated: what is mirrored, erased and seen in evaluation is the same, too; also
    of ranks that exchange clips, one of which has none in some batches."""
    augment = {"crop": SIDE, "scales": [1.0], "evaluation_scale": 1.0, "evaluation_crops": 10, "erase": 0.5}
    augment |= {"mixup": 0.5} if ranks > 1 else {}
    found: list[tuple[bytes, list[float]]] = []
    for place in ("host", "device"):
        spec = job_spec(tmp_path / place, epochs=1, feature=feature, augment=augment)
        stage = Stage(spec, phase_plans(1, train=9, validation=5, test=5))
        stage.command(Control.START)
        stage.feed(stage.every_position(), skipped=[(0, 1)])
        with Running(stage, ranks, views=place, fetches=fetches) as running:
            running.join()
        assert running.error is None
        found.append((final_weights(stage), [report.metrics["loss"] for report in stage.reports("phase_report")]))
    assert found[0] == found[1]


def assignment(augment: dict[str, Any], resize: str) -> Assignment:
    spec = job_spec(Path("/out"), augment=augment)
    resized = spec.clip.model_copy(update={"resize": ResizeSpec.model_validate({"mode": resize})})
    stage = Stage(spec.model_copy(update={"clip": resized}), phase_plans(1))
    return Assignment.of(stage.control(Control.START), "one")


@pytest.mark.parametrize("resize", ["crop", "exact"])
def test_a_gpu_cuts_and_a_cpu_does_not_unless_told_to(resize: str) -> None:
    training = assignment({"crop": 16}, resize)
    cuts = {
        (place, device): views(training, place, torch.device(device))[1] is not None
        for place in get_args(ViewPlace)
        for device in ("cpu", "cuda")
    }
    assert {where for where, device_cuts in cuts.items() if device_cuts} == {
        ("auto", "cuda"),
        ("device", "cpu"),
        ("device", "cuda"),
    }


@pytest.mark.parametrize(
    ("augment", "resize", "words"),
    [
        ({"crop": 16, "rand_augment": {}}, "crop", "augment.rand_augment is computed on the host"),
        ({"crop": 16}, "short_side", "with clip.resize.mode: short_side, frames"),
        ({"crop": 16}, "none", "with clip.resize.mode: none, frames"),
    ],
)
def test_what_a_gpu_cannot_cut_stays_with_the_host(augment: dict[str, Any], resize: str, words: str) -> None:
    training, gpu = assignment(augment, resize), torch.device("cuda")
    assert views(training, "auto", gpu)[1] is None
    with pytest.raises(ConfigError, match=f"not for trainer one: {words}.*; use ESSP_VIEWS=auto"):
        views(training, "device", gpu)


def test_descriptors_and_random_operations_are_not_cut() -> None:
    assert left_to_host(ClipSpec(), AugmentSpec(), layout_of("trajectories"))
    with pytest.raises(ValueError, match="on the host"):
        training_cut(20, 20, AugmentSpec.model_validate({"rand_augment": {}}), 0)
