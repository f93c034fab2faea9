"""Clips that count more: what they win where most of a video is background, and what they cost where nothing is."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from essp_common.job.spec import HighlightSpec
from essp_predictor.highlight import clip_weights
from tests.lanes import across, often

CLASSES = 12
BACKGROUND = CLASSES
Scores = NDArray[np.float64]
Weight = Literal["contrast", "actionness"]


def scores(random: np.random.Generator, clips: int, seen: float, sure: float, learned: bool) -> tuple[Scores, int]:
    """Of a video that shows its class in a share `seen` of its clips, somewhere in it, and the class.

    A model without a background class takes the background of a video for one of its classes. Every clip has noise of
    its own. `sure`: how much the right class stands out.
    """
    label, mistaken = random.integers(CLASSES, size=2)
    logits = random.normal(size=(clips, CLASSES + learned))
    count = round(clips * seen)
    begin = int(random.integers(clips - count + 1))
    shown = np.zeros(clips, np.bool_)
    shown[begin : begin + count] = True
    logits[shown, label] += sure
    logits[~shown, BACKGROUND if learned else mistaken] += 3
    odds = np.exp(logits)
    return odds / odds.sum(axis=1, keepdims=True), int(label)


def top1(weight: Weight | None, clips: int, seen: float, sure: float, learned: bool) -> float:
    """Percent of videos whose class has the highest weighted mean."""
    random = np.random.Generator(np.random.Philox(5))
    right, videos = 0, 400
    for _ in range(videos):
        found, label = scores(random, clips, seen, sure, learned)
        background = BACKGROUND if learned else None
        weights = np.ones(clips) if weight is None else clip_weights(found, background, HighlightSpec(weight=weight))
        right += int((weights @ found)[:CLASSES].argmax()) == label
    return 100 * right / videos


@pytest.mark.parametrize(("clips", "seen"), [(10, 0.4), (25, 0.4), (25, 0.25), (200, 0.25)])
def test_contrast_finds_the_class_among_background(clips: int, seen: float) -> None:
    plain, highlighted = (top1(weight, clips, seen, 4.0, learned=False) for weight in (None, "contrast"))
    assert plain < 60
    assert highlighted >= plain + 20


@pytest.mark.parametrize(("clips", "seen"), [(10, 0.4), (25, 0.4), (25, 0.25), (200, 0.25)])
def test_a_learned_background_and_actionness_find_the_class_among_background(clips: int, seen: float) -> None:
    plain = top1(None, clips, seen, 4.0, learned=False)
    assert top1("actionness", clips, seen, 4.0, learned=True) >= plain + 20


@pytest.mark.parametrize(
    ("clips", "seen", "sure", "wins"),
    [(25, 0.4, 1.0, 3), (25, 0.25, 1.0, 5), (200, 0.05, 1.5, 15), (200, 0.02, 2.0, 20)],
)
def test_actionness_adds_the_more_to_a_learned_background_the_less_is_seen(
    clips: int, seen: float, sure: float, wins: int
) -> None:
    """The background class alone wins most: what shows nothing scores low in all classes of the mean."""
    plain, highlighted = (top1(weight, clips, seen, sure, learned=True) for weight in (None, "actionness"))
    assert plain < 90
    assert highlighted >= plain + wins


@pytest.mark.parametrize("weight", ["contrast", "actionness"])
def test_a_learned_background_is_never_made_worse(weight: Weight) -> None:
    for clips, seen in ((10, 0.4), (25, 0.25)):
        for sure in (1.0, 3.0):
            assert top1(weight, clips, seen, sure, learned=True) >= top1(None, clips, seen, sure, learned=True) - 0.5


@pytest.mark.parametrize(("sure", "clips"), often(across([1.0, 4.0, 2.0], [3, 25, 10]), 4))
def test_trimmed_videos_hardly_change(clips: int, sure: float) -> None:
    """With clips that err independently, which is the worst case."""
    assert top1("contrast", clips, 1.0, sure, learned=False) >= top1(None, clips, 1.0, sure, learned=False) - 1
    assert top1("actionness", clips, 1.0, sure, learned=True) >= top1(None, clips, 1.0, sure, learned=True) - 1


@given(st.integers(1, 40), st.integers(0, 2**32), st.floats(0.01, 1), st.sampled_from(["contrast", "actionness"]))
def test_weights_lie_between_the_floor_and_one(clips: int, seed: int, floor: float, weight: Weight) -> None:
    found = np.random.Generator(np.random.Philox(seed)).dirichlet(np.full(5, 0.3), clips)
    weights = clip_weights(found, 4, HighlightSpec(weight=weight, floor=floor))
    assert weights.shape == (clips,)
    assert (weights >= floor - 1e-12).all()
    assert (weights <= 1 + 1e-12).all()


@pytest.mark.parametrize("weight", ["contrast", "actionness"])
def test_equal_clips_count_the_same(weight: Weight) -> None:
    weights = clip_weights(np.tile([0.5, 0.3, 0.2], (9, 1)), 2, HighlightSpec(weight=weight))
    assert weights == pytest.approx(weights[0])


def test_an_example_by_hand() -> None:
    """Background, then a clip of class 1 with two neighbours, then background."""
    found = np.array([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.0, 1.0], [0.9, 0.1], [0.9, 0.1], [0.9, 0.1]])
    weights = clip_weights(found, None, HighlightSpec(floor=0.2))
    near = 0.2 + 0.8 * 0.3**2  # a third of 0.1 + 0.1 + 1.0, minus the median 0.1
    assert weights == pytest.approx([0.2, 0.2, near, near, near, 0.2, 0.2])
    seen = clip_weights(found, 0, HighlightSpec(weight="actionness", floor=0.2))
    assert seen == pytest.approx([0.28, 0.28, 0.52, 0.52, 0.52, 0.28, 0.28])
