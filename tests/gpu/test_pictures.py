"""Clips on their way to a GPU, and what it makes of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from essp_common.job.feature_layout import COLOURS, FeatureLayout
from essp_common.job.trainer_spec import AugmentSpec
from essp_engine.features.registry import layout_of
from essp_engine.learning.augment import Evaluated, evaluation_cuts, evaluation_view, training_cut, training_view
from essp_engine.learning.colour import pictures
from essp_engine.loading.device import ToGpu
from essp_engine.loading.device_views import DeviceViews
from essp_engine.video.colour import MATRICES, Colour
from essp_engine.video.colour import pictures as pictures_on_host


@pytest.mark.parametrize("full", [False, True])
def test_pictures_are_those_of_a_cpu(gpu: torch.device, full: bool) -> None:
    random = np.random.default_rng(0)
    colours = [Colour(matrix, full) for matrix in MATRICES]
    frames = random.integers(0, 256, (len(colours), 3, 96, 48), dtype=np.uint8)
    found = pictures(torch.from_numpy(frames).to(gpu), colours).cpu().numpy()
    for made, planes, colour in zip(found, frames, colours, strict=True):
        np.testing.assert_array_equal(made, pictures_on_host(planes, colour))


@pytest.mark.parametrize(("channels", "layout"), [(3, COLOURS), (20, layout_of("flow"))], ids=["rgb", "flow"])
def test_views_are_those_of_the_host(gpu: torch.device, channels: int, layout: FeatureLayout) -> None:
    """But for one level, where the host computes in whole numbers."""
    random = np.random.default_rng(0)
    clips = random.integers(1, 256, (6, 3, 90, 120, channels), dtype=np.uint8)
    augment = AugmentSpec(crop=64, erase=0.5)
    cuts = [[training_cut(90, 120, augment, 5, 0, index)] for index in range(len(clips))]
    seen = DeviceViews(64, layout).of(ToGpu(gpu)(list(clips)), cuts).here().cpu().numpy()
    expected = [training_view(clip, augment, layout, 5, 0, index) for index, clip in enumerate(clips)]
    assert np.abs(seen.astype(int) - np.stack(expected).astype(int)).max() <= 1
    evaluated = Evaluated(64, 0.875, 10)
    of_all = [evaluation_cuts(90, 120, evaluated)] * len(clips)
    seen = DeviceViews(64, layout).of(ToGpu(gpu)(list(clips)), of_all).here().cpu().numpy()
    expected = [evaluation_view(clip, evaluated, layout) for clip in clips]
    assert np.abs(seen.astype(int) - np.stack(expected).astype(int)).max() <= 1


def test_batches_arrive_whole_while_the_gpu_is_busy(gpu: torch.device) -> None:
    """Many, through the same pinned memory, sent from beside the stream that uses them late."""
    random = np.random.default_rng(0)
    batches = [random.integers(0, 256, (16, 2, 64, 64, 3), dtype=np.uint8) for _ in range(40)]
    transfer, heavy, sums = ToGpu(gpu), torch.randn(4096, 4096, device=gpu), []
    for batch in batches:
        sent = transfer(list(batch))
        heavy = heavy @ heavy
        heavy /= heavy.norm()
        sums.append(sent.here().to(torch.int64).sum(dim=(1, 2, 3, 4)))
        del sent
    for batch, found in zip(batches, sums, strict=True):
        np.testing.assert_array_equal(found.cpu().numpy(), batch.astype(np.int64).sum(axis=(1, 2, 3, 4)))
