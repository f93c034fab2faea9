"""Mixup and CutMix: what is drawn, by whom, and that blends and losses are those of the papers."""

from __future__ import annotations

import math
from statistics import fmean, pvariance

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from torch.nn import functional

from essp_common.job.trainer_spec import AugmentSpec
from essp_engine.learning.losses import loss
from essp_engine.learning.mixing import Blend, Rectangle, blend_of

DRAWS = 4000


def drawn(augment: AugmentSpec) -> list[Blend]:
    found = [blend_of(augment, 7, 0, index) for index in range(DRAWS)]
    assert all(found)
    return [blend for blend in found if blend is not None]


def test_a_job_that_asks_for_none_blends_nothing() -> None:
    assert blend_of(AugmentSpec(), 7, 0, 0) is None


def test_a_blend_is_a_function_of_seed_epoch_and_index() -> None:
    augment = AugmentSpec(mixup=0.4, cutmix=1.0)
    assert blend_of(augment, 7, 3, 32) == blend_of(augment, 7, 3, 32)
    others = [blend_of(augment, *identity) for identity in ((8, 3, 32), (7, 4, 32), (7, 3, 64))]
    assert blend_of(augment, 7, 3, 32) not in others
    assert len(set(others)) == 3


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_the_share_of_mixup_is_of_a_beta_distribution(alpha: float) -> None:
    """Its mean is 1 / 2 and its variance 1 / (4 (2 alpha + 1)); within 5 standard errors of means over `DRAWS`."""
    shares = [blend.share for blend in drawn(AugmentSpec(mixup=alpha))]
    variance = 1 / (4 * (2 * alpha + 1))
    assert fmean(shares) == pytest.approx(0.5, abs=5 * math.sqrt(variance / DRAWS))
    fourth = fmean((share - 0.5) ** 4 for share in shares)
    error = math.sqrt(max(fourth - variance**2, 0) / DRAWS)
    assert pvariance(shares) == pytest.approx(variance, abs=5 * error)


def test_each_batch_gets_one_of_the_two() -> None:
    """As often the one as the other, within 5 standard errors."""
    rectangles = sum(blend.rectangle is not None for blend in drawn(AugmentSpec(mixup=0.2, cutmix=1.0)))
    assert rectangles / DRAWS == pytest.approx(0.5, abs=5 * 0.5 / math.sqrt(DRAWS))
    assert all(blend.rectangle is not None for blend in drawn(AugmentSpec(cutmix=1.0)))


def test_a_rectangle_lies_within_the_picture_and_the_share_is_the_rest() -> None:
    for blend in drawn(AugmentSpec(crop=17, cutmix=1.0)):
        assert blend.rectangle is not None
        top, bottom, left, right = blend.rectangle
        assert 0 <= top <= bottom <= 17
        assert 0 <= left <= right <= 17
        assert blend.share == 1 - (bottom - top) * (right - left) / 17**2


def by_loops(blend: Blend, clips: np.ndarray, partners: np.ndarray) -> np.ndarray:
    """The definitions, pixel by pixel."""
    mixed = np.empty_like(clips)
    for at in np.ndindex(clips.shape):
        if blend.rectangle is None:
            mixed[at] = blend.share * clips[at] + (1 - blend.share) * partners[at]
        else:
            _, _, row, column, _ = at
            top, bottom, left, right = blend.rectangle
            mixed[at] = (partners if top <= row < bottom and left <= column < right else clips)[at]
    return mixed


@pytest.mark.parametrize("rectangle", [None, Rectangle(1, 3, 0, 4), Rectangle(2, 2, 1, 1), Rectangle(0, 4, 0, 4)])
def test_blends_are_those_of_the_papers(rectangle: Rectangle | None) -> None:
    random = np.random.default_rng(3)
    clips, partners = random.normal(size=(2, 3, 2, 4, 4, 3))
    blend = Blend(0.3, rectangle)
    before = clips.copy()
    found = blend.blended(torch.from_numpy(clips), torch.from_numpy(partners)).numpy()
    assert np.abs(found - by_loops(blend, clips, partners)).max() < 8 * np.finfo(float).eps * np.abs(clips).max() * 4
    assert_array_equal(clips, before)


@given(
    share=st.floats(0, 1),
    smoothing=st.sampled_from([0.0, 0.1]),
    weighted=st.booleans(),
    classes=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=6),
)
def test_the_loss_is_cross_entropy_with_soft_targets(
    share: float, smoothing: float, weighted: bool, classes: list[tuple[int, int]]
) -> None:
    """Against torch's for probabilities: they are blended, then smoothed, then weighted by class."""
    logits = torch.randn(len(classes), 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    weights = torch.tensor([1.0, 3.0, 0.5, 0.0], dtype=torch.float64) if weighted else None
    targets, partners = torch.tensor(classes, dtype=torch.int64).view(-1, 2).unbind(1)
    soft = torch.zeros(len(classes), 4, dtype=torch.float64)
    for row, (own, other) in enumerate(classes):
        soft[row, own] += share
        soft[row, other] += 1 - share
    hard = loss("cross_entropy", smoothing, weights)
    found = Blend(share, None).loss(lambda target: hard(logits, target), targets, partners)
    expected = functional.cross_entropy(logits, soft, weights, reduction="sum", label_smoothing=smoothing)
    assert found.item() == pytest.approx(expected.item(), abs=1e-12)


def test_what_is_worth_more_counts_as_right() -> None:
    targets, partners = torch.tensor([1, 2]), torch.tensor([3, 4])
    assert Blend(0.7, None).dominant(targets, partners).tolist() == [1, 2]
    assert Blend(0.3, None).dominant(targets, partners).tolist() == [3, 4]
